"""The timeline stage: what the tools of one pass have recorded, on one clock, as a Perfetto trace.

Passes are different runs of the program, and nothing that stands below one another in two of them happened together: so
one is drawn, the one of which the most tools tell on the same clock. Imported files are each by themselves.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import launching
from orchestrator.formats.stacks import split_frame
from orchestrator.model import Capture, Finding

if TYPE_CHECKING:
    import numpy as np
    import pandas
    import pyarrow
    from numpy.typing import NDArray

    from orchestrator.folder import Folder
    from orchestrator.perfetto import Kind, Slice, Track, Writer
    from orchestrator.report import Report

FILE = "timeline.perfetto-trace"
EPOCH_FROM_NS = 10**18
"""Times after September 2001 are counted from the Unix epoch; smaller ones are relative."""
BATCH_ROWS = 1 << 16
BATCH_BYTES, LONG_ROWS, READ_BYTES = 1 << 26, 1 << 12, 1 << 20
"""Of a table with so many bytes of texts fewer rows are read at a time: Arrow takes no 2 GiB of them."""
MOST_STACKS, MOST_FRAMES = 1 << 12, 1 << 14
"""So many stacks of a piece, and functions of all stacks, are remembered."""
MOST_MOMENTS = 100
"""So many findings are looked up in the events."""
MOST_EVENTS = 8_000_000
"""Of more, those of a part of the time are drawn: 100 bytes each are 800 MB for a browser, and Perfetto takes two."""
COSTS = {"gpu_gaps": 10}
"""Hardly two gaps are alike: each is made by itself, which takes as long as so many others."""
WHOLE = frozenset({"steps", "samples"})
"""The tables that are drawn for all of the time: what is left out can be found by them."""
PIDS = 1 << 22
"""No process has a number from here on (PID_MAX_LIMIT of the kernel): those of other hosts get it added, host by
host."""


@dataclass(frozen=True)
class Layer:
    """How the rows of a table become slices: which line they stand on, what they are called, what else is said of them.

    line: kind of the line (`Lines`), and its label. joins: the column whose number an arrow leads from or to."""

    table: str
    line: str
    label: str
    title: tuple[str, ...]
    said: tuple[str, ...] = ()
    joins: str | None = None
    text: str = "{}"
    """The name, of the first of `title` that is known."""


STACKS, SAMPLES, MEMORY = "stack_spans", "samples", "memory"
LAYERS = (
    Layer(
        "steps", "process", "steps", ("step",),
        ("kind", "warmup", "profiled", "stall", "data_wait_ns", "forward_ns", "backward_ns", "optimizer_ns",
         "zero_grad_ns", "checkpoint_ns", "evaluation_ns", "cpu_ns", "gpu_ns", "loss"),
        text="step {}",
    ),
    Layer("ranges", "thread", "ranges", ("name",), ("domain", "gpu_ns")),
    Layer("op_spans", "thread", "torch", ("name",), ("kind",)),
    Layer("cuda_calls", "thread", "CUDA calls", ("name",), joins="correlation"),
    Layer("os_calls", "thread", "OS calls", ("name",)),
    Layer("syscall_spans", "thread", "system calls", ("name",), ("path", "error", "class")),
    Layer(
        "gpu_kernels", "stream", "", ("short_name", "name"), ("name", "grid", "block", "registers", "shared_bytes"),
        joins="correlation",
    ),
    Layer("gpu_graphs", "stream", "", ("graph_id",), ("graph_exec_id",), joins="correlation", text="graph {}"),
    Layer("gpu_transfers", "stream", "", ("kind",), ("bytes", "source", "target"), joins="correlation"),
    Layer(
        "gpu_gaps", "device", "gaps", ("cause", "kind"),
        ("before", "after", "kind", "phase", "step", "api", "range", "os_call", "function", "python", "syscall", "path",
         "told_by"),
        text="gap: {}",
    ),
)  # fmt: skip
"""The tables that are drawn as they are, in this order. Ranges of torch.profiler stand among its operators."""
DRAWN = (STACKS, *(layer.table for layer in LAYERS), SAMPLES, MEMORY)


def write(report: Report, target: Folder) -> Path | None:
    """Writes the timeline of a report whose tables are written; None where nothing in it has a time."""
    from orchestrator import perfetto

    scene = choose(report)
    if scene is None:
        return None
    with target.stream(FILE) as file:
        _Drawing(report, scene, perfetto.Writer(file.write)).draw()
    return target.path / FILE


Function = tuple[str, str | None]
"""The name under which it is drawn, and its file."""
Stack = tuple[Function, ...]


# ---------------------------------------------------------------- what is drawn


@dataclass(frozen=True)
class Scene:
    """The captures that are drawn together, their tables, and when the first event is, in ns.

    left_out: captures of the same pass whose times are on no common clock."""

    captures: tuple[str, ...]
    tables: Mapping[str, tuple[str, ...]]
    """By capture."""
    start_ns: int
    left_out: tuple[str, ...] = ()
    span: tuple[int, int] | None = None
    """What is drawn of the tables that are not WHOLE; None: all."""

    @property
    def is_epoch(self) -> bool:
        return self.start_ns >= EPOCH_FROM_NS


@dataclass
class _Known:
    """What a capture has that can be drawn."""

    tables: list[str] = field(default_factory=list)
    rows: int = 0
    single: int = 0
    """Rows of the tables that are not WHOLE."""
    start_ns: int | None = None
    end_ns: int = 0
    """Start of its last row."""


def choose(report: Report) -> Scene | None:
    """The scene with the most captures on one clock; of equal ones that with more kinds of events, then more events."""
    scenes = []
    for members in _together(report):
        known = {id_: found for id_, found in members.items() if found.start_ns is not None}
        epoch = {id_: found for id_, found in known.items() if (found.start_ns or 0) >= EPOCH_FROM_NS}
        parts = [epoch] if epoch else [{id_: found} for id_, found in known.items()]
        scenes += [(part, tuple(id_ for id_ in known if id_ not in part)) for part in parts if part]
    if not scenes:
        return None
    best, left_out = max(scenes, key=lambda scene: _richness(scene[0].values()))
    return Scene(
        tuple(best),
        {id_: tuple(found.tables) for id_, found in best.items()},
        min(found.start_ns or 0 for found in best.values()),
        left_out,
        _span(best.values()),
    )


def _span(found: Iterable[_Known]) -> tuple[int, int] | None:
    """The middle of the time, of which so many events are drawn as there is room for; the same in all ranks."""
    parts = [one for one in found if one.start_ns is not None]
    events = sum(one.single for one in parts)
    if events <= MOST_EVENTS:
        return None
    first, last = min(one.start_ns or 0 for one in parts), max(one.end_ns for one in parts)
    half = int((last - first) * MOST_EVENTS / events / 2)
    return (first + last) // 2 - half, (first + last) // 2 + half


def _richness(found: Any) -> tuple[int, int, int]:
    parts = list(found)
    return len(parts), len({name for part in parts for name in part.tables}), sum(part.rows for part in parts)


def _together(report: Report) -> list[dict[str, _Known]]:
    """The captures of each pass, with what they have; each imported one alone."""
    found: dict[str, _Known] = {}
    for name in DRAWN:
        if name in report.tables:
            _look(report.folder / report.tables[name].path, name, found)
    passes: dict[str, dict[str, _Known]] = {}
    by_id = {capture.id: capture for capture in report.captures}
    for id_, known in found.items():
        capture = by_id.get(id_)
        group = _group(capture, id_, report.captures)
        passes.setdefault(group, {})[id_] = known
    return list(passes.values())


def _group(capture: Capture | None, id_: str, captures: Sequence[Capture]) -> str:
    """What is drawn together: a pass; of imported files those of one tool that are each of another rank."""
    if capture is None:
        return id_
    if not capture.imported:
        return capture.pass_id
    alike = [one.rank for one in captures if one.imported and one.collector == capture.collector]
    return id_ if None in alike or len({*alike}) < max(2, len(alike)) else f"ranks of {capture.collector}"


def _look(path: Path, name: str, found: dict[str, _Known]) -> None:
    """Adds how many rows each capture has in a table, and when its first and its last one are."""
    time = "time_ns" if name in (SAMPLES, MEMORY) else "start_ns"
    for capture, count, first, last in _extent(path, time):
        known = found.setdefault(capture, _Known())
        known.tables += [name] if name not in known.tables else []
        known.rows += count
        known.single += 0 if name in WHOLE else count * COSTS.get(name, 1)
        known.start_ns = max(first, 0) if known.start_ns is None else min(max(first, 0), known.start_ns)
        known.end_ns = max(known.end_ns, last)


def _extent(path: Path, time: str) -> Iterator[tuple[str, int, int, int]]:
    """Capture, number of rows with a time, the first and the last time: as the file's statistics say where rows of one
    capture stand together, else as the rows do."""
    import pyarrow.parquet as pq

    metadata, names = pq.read_metadata(path), pq.read_schema(path).names
    for place in range(metadata.num_row_groups):
        group = metadata.row_group(place)
        whose, when = (group.column(names.index(name)).statistics for name in ("capture", time))
        told = whose is not None and when is not None and whose.has_min_max and whose.min == whose.max
        if told and not whose.null_count and when.has_null_count and (when.has_min_max or not when.num_values):
            if when.num_values:
                yield whose.min, when.num_values, when.min, when.max
            continue
        for batch in _batches(path, ["capture", time], groups=[place]):
            sums = [(time, "count"), (time, "min"), (time, "max")]
            for row in batch.group_by("capture").aggregate(sums).to_pylist():
                if row[f"{time}_count"]:
                    yield row["capture"], row[f"{time}_count"], row[f"{time}_min"], row[f"{time}_max"]


def _touches(group: Any, names: Sequence[str], time: str, span: tuple[int, int]) -> bool:
    """Whether any of these rows may lie in that time."""
    told = group.column(names.index(time)).statistics
    return told is None or not told.has_min_max or (told.max >= span[0] and told.min <= span[1])


def _batches(
    path: Path,
    columns: Sequence[str] | None = None,
    span: tuple[int, int] | None = None,
    groups: Sequence[int] | None = None,
) -> Iterator[pyarrow.Table]:
    """The table piece by piece, its texts as numbers of a dictionary. groups: of these row groups only; span: only
    those of which a row may begin in that time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema, metadata = pq.read_schema(path), pq.read_metadata(path)
    every = [metadata.row_group(place) for place in range(metadata.num_row_groups)]
    sizes = [_sizes(group) for group in every]
    known = [name for name in schema.names if columns is None or name in columns]  # as Arrow gives them
    texts = [name for name in schema.names if pa.types.is_string(schema.field(name).type)]
    long = [name for name in texts if any(size[name] > BATCH_BYTES for size in sizes)]
    # Arrow lets the dictionary of a column grow from batch to batch: one of long texts is made for each batch alone
    short = [name for name in texts if name not in long]
    most = LONG_ROWS if any(name in long for name in known) else BATCH_ROWS
    with pq.ParquetFile(path, metadata=metadata, read_dictionary=short, buffer_size=READ_BYTES) as file:
        for place, group in enumerate(every):
            if groups is not None and place not in groups:
                continue
            if span is not None and not _touches(group, schema.names, _time(schema.names), span):
                continue
            size = sum(sizes[place][name] for name in known)
            rows = max(1, min(most, BATCH_BYTES * group.num_rows // max(size, 1)))
            for batch in file.iter_batches(rows, row_groups=[place], columns=known):
                table = pa.Table.from_batches([batch])
                for name in set(long) & set(known):
                    table = table.set_column(known.index(name), name, table[name].dictionary_encode())
                yield table


def _time(names: Sequence[str]) -> str:
    return "start_ns" if "start_ns" in names else "time_ns"


def _sizes(group: Any) -> dict[str, int]:
    """The bytes of each column of a row group when they are unpacked; a text that is there often counts once."""
    columns = (group.column(place) for place in range(group.num_columns))
    return {column.path_in_schema: column.total_uncompressed_size for column in columns}


# ---------------------------------------------------------------- lines


class Lines:
    """The lines of the timeline by what they are of: a process, a thread, a GPU, a stream. Each is made when it is
    first needed."""

    def __init__(self, writer: Writer, captures: Sequence[Capture], crew: Crew) -> None:
        self.writer = writer
        self._tracks: dict[tuple[Any, ...], Track] = {}
        self._commands = _commands(captures)
        self._crew = crew
        self.thread_names: dict[tuple[int, int], str] = {}

    def __call__(self, *key: Any) -> Track:
        """`("process", pid)`, `("thread", pid, tid)`, `("device", pid, number)`, `("stream", table, pid, device,
        number)`; a label, or a counter, below one of these: `("label", text, *one of these)`."""
        track = self._tracks.get(key)
        if track is None:
            track = self._tracks[key] = getattr(self, f"_{key[0]}")(*key[1:])
        return track

    @property
    def tracks(self) -> list[Track]:
        return list(self._tracks.values())

    def _process(self, pid: int | None) -> Track:
        command = self._commands.get((pid or 0) % PIDS, ())
        if pid is None:
            return self.writer.track("process not known")
        if pid in self._crew.names:
            return self.writer.process(pid, self._crew.names[pid], command, self._crew.place(pid))
        name = launching.name_of(launching.without_interpreter(command)) if command else f"process {pid}"
        return self.writer.process(pid, name, command)

    def _thread(self, pid: int | None, tid: int | None) -> Track:
        if pid is None:  # some tool may have told whose it is
            pid = next((key[1] for key in self._tracks if key[0] == "thread" and key[2] == tid and key[1]), None)
        process = self("process", pid)
        if pid is None or tid is None:
            return self.writer.track("thread not known" if tid is None else f"thread {tid}", process)
        if known := self._tracks.get(("thread", pid, tid)):
            return known
        process.line()  # it comes before its threads
        name = self.thread_names.get((pid, tid)) or ("MainThread" if pid == tid else f"thread {tid}")
        return self.writer.thread(pid, tid, name)

    def _device(self, pid: int | None, number: int | None) -> Track:
        name = "GPU" if number is None else f"GPU {number}"
        return self.writer.track(name, self("process", pid) if pid is not None else None)

    def _stream(self, _: str, pid: int | None, device: int | None, number: int | None) -> Track:
        return self.writer.track("stream" if number is None else f"stream {number}", self("device", pid, device))

    def _label(self, text: str, *above: Any) -> Track:
        return self.writer.track(text, self(*above) if above else None)

    def _counter(self, name: str, *above: Any) -> Track:
        return self.writer.counter(name, self(*above))


@dataclass(frozen=True)
class Crew:
    """The processes that are ranks. Numbers of processes are told apart by host: two hosts may have the same.

    names: by number, in the order of ranks. nodes: of each rank and of each capture, the number of its host."""

    names: Mapping[int, str] = field(default_factory=dict)
    nodes: Mapping[int | str, int] = field(default_factory=dict)

    def place(self, pid: int) -> int:
        return list(self.names).index(pid)

    def told_apart(self, batch: pyarrow.Table) -> pyarrow.Table:
        """The rows with the numbers of their processes as they are drawn."""
        import numpy as np
        import pyarrow as pa

        if not any(self.nodes.values()) or "pid" not in batch.column_names:
            return batch
        codes, rows = combinations(batch, ["capture", "rank"])
        nodes = [self.nodes.get(row.get("rank"), self.nodes.get(row["capture"], 0)) for row in rows]  # type: ignore[arg-type]
        pid = _ints(batch["pid"])
        drawn = pid + PIDS * np.array(nodes, np.int64)[codes]
        column = pa.array(drawn, pa.int64(), mask=pid == UNKNOWN)
        return batch.set_column(batch.column_names.index("pid"), "pid", column)


def _known_ranks(frame: pandas.DataFrame) -> list[tuple[int, str | None, int]]:
    """Rank, host and process of those whose process is known, by rank."""
    known = frame[frame["pid"].notna()].sort_values("rank", kind="stable")
    hosts = known["host"].astype(object).where(known["host"].notna(), None)
    return [(int(rank), host, int(pid)) for rank, host, pid in zip(known["rank"], hosts, known["pid"], strict=True)]


def crew_of(report: Report, captures: Sequence[Capture]) -> Crew:
    """Those of the captures' pass, as the table `ranks` has them."""
    frame = report.table("ranks")
    passes = {capture.pass_id for capture in captures}
    ours = {capture.id for capture in report.captures if capture.pass_id in passes} | passes
    known = [] if frame is None else _known_ranks(frame[frame["capture"].isin(ours)])
    hosts = list(dict.fromkeys(host for _, host, _ in known))
    names, nodes = dict[int, str](), dict[int | str, int]()
    for rank, host, pid in known:
        nodes[rank] = hosts.index(host)
        names[pid + PIDS * nodes[rank]] = f"rank {rank}{f' · {host}' if host else ''} · {pid}"
    nodes |= {capture.id: hosts.index(capture.host) for capture in captures if capture.host in hosts}
    return Crew(names, nodes)


def _commands(captures: Sequence[Capture]) -> dict[int, tuple[str, ...]]:
    """The command lines of the processes that are known."""
    found: dict[int, tuple[str, ...]] = {}
    for run in (capture.run for capture in captures if capture.run):
        found |= {one.pid: one.argv for one in run.attached} | {one.pid: one.argv for one in run.pythons}
        if run.pid is not None:
            found.setdefault(run.pid, run.argv)
    return found


# ---------------------------------------------------------------- drawing


class _Drawing:
    """A scene while it is drawn."""

    def __init__(self, report: Report, scene: Scene, writer: Writer) -> None:
        self.report, self.scene, self.writer = report, scene, writer
        self.captures = [capture for capture in report.captures if capture.id in scene.captures]
        self.crew = crew_of(report, self.captures)
        self.lines = Lines(writer, self.captures, self.crew)

    def draw(self) -> None:
        if self.scene.is_epoch:
            self.writer.clock(self.scene.start_ns)
        self._clocks()
        for pid in self.crew.names:  # in their order
            self.lines("process", pid).line()
        if STACKS in self.report.tables:
            self._stacks()
        for layer in LAYERS:
            if layer.table in self.report.tables:
                self._layer(layer)
        for name, columns in ((SAMPLES, _sampled), (MEMORY, _allocated)):
            if name in self.report.tables:
                self._counters(name, columns)
        self._findings()
        self.writer.close(self.lines.tracks)

    def _own(self, name: str, columns: Sequence[str] | None = None) -> Iterator[pyarrow.Table]:
        """The rows of a table that belong to the scene."""
        span = None if name in WHOLE else self.scene.span
        for batch in _batches(self.report.folder / self.report.tables[name].path, columns, span):
            own = batch.filter(_among(batch, self.scene.captures))
            own = own.filter(_within(own, span)) if span is not None else own
            if len(own):
                yield self.crew.told_apart(own)

    def _instant(self, track: Track, time_ns: int, title: str, said: Mapping[str, Any]) -> None:
        import numpy as np

        from orchestrator import perfetto

        args = tuple((name, value) for name, value in said.items() if value is not None)
        packet = self.writer.packet(perfetto.INSTANT, track.line(), title, args)
        self.writer.event(packet, perfetto.times(np.array([time_ns]))[0])

    # -- slices --------------------------------------------------------------------------------------------------------

    def _layer(self, layer: Layer) -> None:
        for batch in self._own(layer.table):
            if layer.table == "ranges":
                batch = self._without_recorded(batch)
            if len(batch):
                self.writer.slices(self._slices(layer, batch))

    def _without_recorded(self, ranges: pyarrow.Table) -> pyarrow.Table:
        """The ranges that do not stand among the operators of their capture: those of a domain (NVTX, the plan's)."""
        import pyarrow.compute as pc

        recorded = [id_ for id_, tables in self.scene.tables.items() if "op_spans" in tables]
        if not recorded:
            return ranges
        return ranges.filter(pc.invert(pc.and_(_among(ranges, recorded), pc.is_null(ranges["domain"]))))

    def _slices(self, layer: Layer, batch: pyarrow.Table) -> Iterable[Slice]:
        """The slices of some rows. What many rows have in common is looked up once."""
        import numpy as np

        from orchestrator import perfetto

        start, end = _times(batch)
        order = np.lexsort((-end, start))
        order = order[start[order] >= 0]
        batch, start, end = batch.take(order), start[order], end[order]
        codes, rows = combinations(batch, [*_WHERE[layer.line], *layer.title, *layer.said])
        flows, joined = self._flows(layer, batch)
        used, codes = np.unique(2 * codes + joined, return_inverse=True)
        kinds = [self._kind(layer, rows[code >> 1], "flow" if code & 1 else "") for code in used.tolist()]
        both = start.tolist(), end.tolist(), perfetto.times(start), perfetto.times(end)
        return zip(map(kinds.__getitem__, codes.tolist()), *both, flows, strict=True)

    def _kind(self, layer: Layer, row: Mapping[str, Any], joined: str) -> Kind:
        from orchestrator import perfetto

        title = next((row[name] for name in layer.title if row.get(name) is not None), "not known")
        shown = layer.text.format(title)
        said = ((name, row.get(name)) for name in layer.said)
        args = tuple((name, value) for name, value in said if value is not None and value != shown)
        begin = partial(self.writer.packet, perfetto.BEGIN, name=shown, args=args, value=joined)
        return perfetto.Kind(self._line(layer, row), begin)

    def _line(self, layer: Layer, row: Mapping[str, Any]) -> Track:
        place = (row.get(name) for name in _WHERE[layer.line])
        if not layer.label:  # each table is written in its turn, and so needs a line of its own, also of the same name
            return self.lines(layer.line, layer.table, *place)
        return self.lines("label", layer.label, layer.line, *place)

    def _flows(self, layer: Layer, batch: pyarrow.Table) -> tuple[Sequence[bytes], NDArray[np.int64]]:
        """The arrow of each row, from the call that launches to the work, and whether it has one."""
        import numpy as np

        from orchestrator import perfetto

        if layer.joins is None or layer.joins not in batch.column_names:
            return [b""] * len(batch), np.zeros(len(batch), np.int64)
        number, pid = (_ints(batch[name]) for name in (layer.joins, "pid"))
        capture, rows = combinations(batch, ["capture"])
        place = np.array([self.scene.captures.index(row["capture"]) for row in rows], np.int64)[capture]
        flows = (place << 56) ^ (np.maximum(pid, 0) << 32) ^ (number & 0xFFFFFFFF)
        encoded, joined = perfetto.values(flows.astype(np.uint64)), number != UNKNOWN
        for lacking in np.flatnonzero(~joined).tolist():
            encoded[lacking] = b""
        return encoded, joined.astype(np.int64)

    # -- stacks --------------------------------------------------------------------------------------------------------

    def _stacks(self) -> None:
        """Stacks of a thread one after the other as functions that call one another."""
        from orchestrator import perfetto

        drawn: dict[tuple[int | None, int | None], _Calls] = {}
        function = lru_cache(MOST_FRAMES)(_function)  # so that stacks share their functions
        for batch in self._own(STACKS):
            start, end = _times(batch)
            codes, rows = combinations(batch, ["pid", "tid", "thread"])
            for row in rows:
                key = row["pid"], row["tid"]
                if key not in drawn:
                    self.lines.thread_names.setdefault(key, row["thread"])
                    drawn[key] = _Calls(self.writer, self.lines("label", "Python", "thread", *key))
            called = [drawn[row["pid"], row["tid"]] for row in rows]
            stacks, places = _stacks_of(batch, function)
            encoded = zip(start.tolist(), end.tolist(), perfetto.times(start), perfetto.times(end), strict=True)
            for code, place, times in zip(codes.tolist(), places, encoded, strict=True):
                called[code].take(stacks(place), *times)
        for calls in drawn.values():
            calls.close()

    # -- counters ------------------------------------------------------------------------------------------------------

    def _counters(self, name: str, columns: Callable[[Lines, Mapping[str, Any]], Track]) -> None:
        import numpy as np

        from orchestrator import perfetto

        value = {SAMPLES: "value", MEMORY: "allocated_bytes"}[name]
        key = {SAMPLES: ["source", "subject", "metric"], MEMORY: ["pid", "device"]}[name]
        for batch in self._own(name):
            time, shown = _ints(batch["time_ns"]), batch[value].cast("float64").fill_null(np.nan).to_numpy()
            codes, rows = combinations(batch, key)
            lines = [columns(self.lines, row).line() for row in rows]
            packets = [self.writer.packet(perfetto.COUNTER, line, "", (), "counter") for line in lines]
            known = np.flatnonzero(~np.isnan(shown) & (time >= 0))
            for code, when, what in zip(
                codes[known].tolist(), perfetto.times(time[known]), perfetto.values(shown[known]), strict=True
            ):
                self.writer.event(packets[code], when, what)

    # -- what is said of it all ----------------------------------------------------------------------------------------

    def _clocks(self) -> None:
        """What each tool's times are worth, as an instant at the beginning for each."""
        track = self.lines("label", "clocks")
        for capture in self.captures:
            clock = capture.clock
            said = {
                "collector": capture.collector,
                "clock": "Unix time" if self.scene.is_epoch else "relative: only differences mean something",
                "error_ns": clock.error_ns if clock else None,
                "known_by": clock.source if clock else None,
                "trust": capture.trust,
                "tables": ", ".join(self.scene.tables[capture.id]),
            }
            self._instant(track, self.scene.start_ns, capture.id, said)
        if self.scene.span is not None:
            first, last = ((moment - self.scene.start_ns) / 1e9 for moment in self.scene.span)
            why = f"there are more than {MOST_EVENTS:,} events: steps and samples are drawn for all of the time"
            title = f"single events are drawn from {first:.3f} s to {last:.3f} s"
            self._instant(track, self.scene.span[0], title, {"why": why})
        for id_ in self.scene.left_out:
            self._instant(track, self.scene.start_ns, f"{id_}: left out", {"why": "its times are on another clock"})

    def _findings(self) -> None:
        told = self.report.findings[:MOST_MOMENTS]
        for finding, moment in zip(told, self._moments(told), strict=True):
            if moment is not None:
                said = {
                    "rule": finding.rule,
                    "severity": finding.severity,
                    "category": finding.category,
                    "cost_s": finding.cost_s,
                    "advice": finding.advice,
                    "where": json.dumps(dict(finding.where), default=str) if finding.where else None,
                }
                self._instant(self.lines("label", "findings"), moment, finding.title, said)

    def _moments(self, findings: Sequence[Finding]) -> list[int | None]:
        """When the longest event is that each finding is about; None where it is about none of those that are drawn.
        A table is read once for all of them."""
        times = [finding.where.get("start_ns") for finding in findings]
        moments = [time if isinstance(time, int) else None for time in times]
        for key, table, column in _MOMENTS:
            places = [finding.where.get(key) if moments[n] is None else None for n, finding in enumerate(findings)]
            wanted = [value for value in places if type(value) in (str, int)]
            if not wanted or table not in self.report.tables:
                continue
            longest: dict[Any, tuple[int, int]] = {}
            for batch in self._own(table, ["capture", column, "start_ns", "duration_ns"]):
                for value in set(wanted):
                    if found := _longest(batch, column, value):
                        longest[value] = max(found, longest.get(value, found))
            for n, value in enumerate(places):
                if moments[n] is None and type(value) in (str, int) and value in longest:
                    moments[n] = -longest[value][1]
        return moments


_WHERE = {
    "process": ("pid",),
    "thread": ("pid", "thread"),
    "device": ("pid", "device"),
    "stream": ("pid", "device", "stream"),
}
_MOMENTS = (
    ("step", "steps", "step"),
    ("kernel", "gpu_kernels", "name"),
    ("kernel", "gpu_kernels", "short_name"),
    ("path", "syscall_spans", "path"),
    ("syscall", "syscall_spans", "name"),
    ("op", "op_spans", "name"),
    ("api", "cuda_calls", "name"),
    ("function", STACKS, "stack"),
)
"""What a finding's place may be, and where such events are."""
UNKNOWN = -(2**63)


def _longest(batch: pyarrow.Table, column: str, wanted: Any) -> tuple[int, int] | None:
    """Duration and start (negative: of equals the first) of the longest of the rows with that value; of stacks, those
    with that function."""
    import pyarrow as pa
    import pyarrow.compute as pc

    coded = _coded(batch, column)
    values = coded.dictionary  # each text is looked at once, where it lies
    if column == "stack":
        frame = f"{wanted} ("
        has = pc.or_(pc.starts_with(values, frame), pc.match_substring(values, f";{frame}"))
    else:
        has = pc.equal(values, pa.scalar(wanted, values.type))
    mask = has.take(coded.indices)
    rows = batch.filter(pc.fill_null(mask, False)).select(["duration_ns", "start_ns"])
    times = zip(*(rows[name].to_pylist() for name in rows.column_names), strict=True)
    return max(((duration or 0, -start) for duration, start in times if start is not None), default=None)


def _within(batch: pyarrow.Table, span: tuple[int, int]) -> Any:
    """Which rows begin in that time."""
    import pyarrow.compute as pc

    time = batch[_time(batch.column_names)]
    return pc.and_(pc.greater_equal(time, span[0]), pc.less_equal(time, span[1]))


def _among(batch: pyarrow.Table, captures: Sequence[str]) -> Any:
    """Which rows are of one of these captures."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.is_in(batch["capture"].cast(pa.string()), pa.array(captures, pa.string()))


def _coded(batch: pyarrow.Table, name: str) -> Any:
    """A column as the numbers of its distinct values, and these."""
    import pyarrow as pa

    column = batch[name]
    column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    return column if pa.types.is_dictionary(column.type) else column.dictionary_encode()


def _stacks_of(batch: pyarrow.Table, function: Callable[[str], Function]) -> tuple[Callable[[int], Stack], list[int]]:
    """What makes the stack of a number, and the number of each row. A stack is taken apart when it is needed: all of
    them at once would be much."""
    coded = _coded(batch, "stack")
    texts = coded.dictionary

    @lru_cache(MOST_STACKS)
    def stack(place: int) -> Stack:
        return tuple(map(function, (texts[place].as_py() if place >= 0 else "").split(";")))

    return stack, coded.indices.fill_null(-1).to_pylist()


def _ints(column: Any) -> NDArray[np.int64]:
    """UNKNOWN where there is none."""
    found: NDArray[np.int64] = column.fill_null(UNKNOWN).to_numpy()
    return found


def _times(batch: pyarrow.Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Start and end of each row; the end is far away where it is unknown, the start below 0."""
    import numpy as np

    from orchestrator import perfetto

    start, duration = _ints(batch["start_ns"]), _ints(batch["duration_ns"])
    return start, np.where(duration == UNKNOWN, perfetto.ENDLESS, start + np.maximum(duration, 0))


def combinations(batch: pyarrow.Table, columns: Sequence[str]) -> tuple[NDArray[np.int64], list[dict[str, Any]]]:
    """For each row the place of its combination of values in the list; columns that the table lacks are left out."""
    import numpy as np

    names = [name for name in dict.fromkeys(columns) if name in batch.column_names]
    codes, parts = np.zeros(len(batch), np.int64), []
    for name in names:
        coded = _coded(batch, name)
        own = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64) + 1
        _, codes = np.unique(codes * (len(coded.dictionary) + 1) + own, return_inverse=True)
        parts.append((name, coded.dictionary, own))
    first = np.zeros(int(codes.max(initial=-1)) + 1, np.int64)
    first[codes] = np.arange(len(codes))
    rows = [
        {name: values[int(own[place]) - 1].as_py() if own[place] else None for name, values, own in parts}
        for place in first.tolist()
    ]
    return codes, rows


# ---------------------------------------------------------------- stacks as calls


class _Calls:
    """The functions of one thread that are open."""

    def __init__(self, writer: Writer, track: Track) -> None:
        self.writer, self.track = writer, track
        self.open: Stack = ()
        self.until = -1
        self.ended = b""

    def take(self, stack: Stack, start: int, end: int, began: bytes, ended: bytes) -> None:
        """A stack, from when to when. Functions that were open until then and are on it still, stay so."""
        from orchestrator import perfetto

        if start < max(self.until, 0):  # two files of one thread overlap: what was seen first stands
            return
        kept = 0
        if start == self.until:
            pairs = zip(self.open, stack, strict=False)
            kept = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        self._end(len(self.open) - kept)
        for name, file in stack[kept:]:
            args = (("file", file),) if file else ()
            self.writer.event(self.writer.packet(perfetto.BEGIN, self.track.line(), name, args), began)
        self.open, self.until, self.ended = stack, end, ended

    def close(self) -> None:
        self._end(len(self.open))
        self.open = ()

    def _end(self, count: int) -> None:
        from orchestrator import perfetto

        for _ in range(count):
            self.writer.event(self.writer.packet(perfetto.END, self.track.line()), self.ended)


def _function(frame: str) -> Function:
    """The name under which a frame is drawn, and its file. Lines would cut one call into many."""
    function, file, _ = split_frame(frame)
    return (f"{function} ({Path(file).name})" if file else function), file


# ---------------------------------------------------------------- counters


def _sampled(lines: Lines, row: Mapping[str, Any]) -> Track:
    """The line of a series of samples."""
    source, subject, metric = row["source"], str(row["subject"] or ""), str(row["metric"])
    if source in ("process", "memory") and subject.isdecimal():
        return lines("counter", metric, "process", int(subject))
    return lines("counter", f"{metric} ({subject})" if subject else metric, "label", str(source))


def _allocated(lines: Lines, row: Mapping[str, Any]) -> Track:
    return lines("counter", f"allocated on {row['device']}, bytes", "process", row["pid"])
