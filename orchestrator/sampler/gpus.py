"""The GPUs: read through NVML, or else by nvidia-smi, in a thread of their own: a driver may never answer."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Protocol

from orchestrator.sampler.log import Log, Number
from orchestrator.sampler.proc import cpu_ns

SILENT_S = 10.0
"""A driver that has not answered for so long is given up."""
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def die_with_parent() -> None:
    """From now on this process is killed when the thread that started it has ended, as it is with its process."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class NoGpu(Exception):
    """Why no GPU can be read in this way."""


class Source(Protocol):
    """A way to the GPUs."""

    def run(self, watch: Watch) -> None:
        """Reads until `watch.over`. Raises NoGpu."""

    def cpu_ns(self) -> int:
        """CPU time that it uses in other processes."""

    def kill(self) -> None:
        """Ends those."""


class Watch:
    """The watch over the GPUs, by the first of the given ways that works."""

    def __init__(self, log: Log, interval_s: float, sources: Sequence[Source]) -> None:
        self.log, self.interval_s = log, interval_s
        self.over = threading.Event()
        self._sources = sources
        self._current: Source | None = None
        self._heard_s = time.monotonic()
        if sources:
            threading.Thread(target=self._run, daemon=True).start()

    def devices(self, through: str, devices: Sequence[dict[str, Any]]) -> None:
        """Writes down which GPUs there are."""
        self._heard_s = time.monotonic()
        self.log.write({"devices": devices, "through": through})

    def readings(self, source: str, rows: dict[str, list[Number]], at: tuple[int, int] | None = None) -> None:
        """Writes down what one round of readings gave: `gpu` by UUID, `gpu_process` by UUID/PID."""
        self._heard_s = time.monotonic()
        if rows:
            self.log.write({source: rows}, at)

    def _run(self) -> None:
        why = []
        for source in self._sources:
            self._current = source
            try:
                return source.run(self)
            except NoGpu as error:
                why.append(str(error))
            if self.over.is_set():
                return None
        self._current = None
        return self.log.write({"note": f"no GPU is sampled: {'; '.join(why)}"})

    def look_after(self) -> None:
        """Gives up what does not answer."""
        if self._current and time.monotonic() - self._heard_s > SILENT_S:
            self.log.write({"note": f"no GPU is sampled any more: no answer in {SILENT_S:g} s"})
            self.end()

    def cpu_ns(self) -> int:
        """CPU time that it uses in other processes."""
        return self._current.cpu_ns() if self._current else 0

    def end(self) -> None:
        """Ends it, whatever the thread is waiting for."""
        self.over.set()
        if self._current:
            self._current.kill()
        self._current = None


# ---------------------------------------------------------------- NVML


class Nvml:
    """NVIDIA's management library, through `nvidia-ml-py`."""

    def __init__(self) -> None:
        self._round = 0
        self._gpus: dict[str, Any] = {}

    def run(self, watch: Watch) -> None:
        nv = self._nv = _pynvml()
        handles = [nv.nvmlDeviceGetHandleByIndex(n) for n in range(nv.nvmlDeviceGetCount())]
        self._gpus = {_text(nv.nvmlDeviceGetUUID(handle)): handle for handle in handles}
        labels = [_text(nv.nvmlDeviceGetName(handle)) for handle in handles]
        known = [{"uuid": u, "index": n, "name": labels[n]} for n, u in enumerate(self._gpus)]
        watch.devices("NVML", known)
        while not watch.over.wait(watch.interval_s):
            watch.readings("gpu", {uuid: self._reading(n) for n, uuid in enumerate(self._gpus)})
            watch.readings("gpu_process", dict(self._processes()))
            self._round += 1

    def _reading(self, n: int) -> list[Number]:
        """The columns of `gpu`."""
        nv, gpu = self._nv, list(self._gpus.values())[n]
        use, milliwatts = self._ask("UtilizationRates", gpu), self._ask("PowerUsage", gpu)
        reasons = self._ask("CurrentClocksEventReasons", gpu)
        return [
            use and use.gpu, use and use.memory, self._memory(gpu),
            self._ask("ClockInfo", gpu, nv.NVML_CLOCK_SM), self._ask("ClockInfo", gpu, nv.NVML_CLOCK_MEM),
            None if milliwatts is None else milliwatts / 1000,
            self._ask("Temperature", gpu, nv.NVML_TEMPERATURE_GPU),
            self._ask("CurrentClocksThrottleReasons", gpu) if reasons is None else reasons,  # before driver 535
            *self._pcie(n, gpu),
        ]  # fmt: skip

    def _memory(self, gpu: Any) -> Number:
        """Without what the driver keeps for itself, as nvidia-smi has it; with it where the driver is old."""
        found = self._ask("MemoryInfo", gpu, self._nv.nvmlMemory_v2) or self._ask("MemoryInfo", gpu)
        return int(found.used) if found else None

    def _pcie(self, n: int, gpu: Any) -> list[Number]:
        """For each question the driver counts for 20 ms, so only one GPU is asked in a round."""
        if self._round % len(self._gpus) != n:
            return [None, None]
        ways = (self._nv.NVML_PCIE_UTIL_TX_BYTES, self._nv.NVML_PCIE_UTIL_RX_BYTES)
        kilobytes = [self._ask("PcieThroughput", gpu, way) for way in ways]
        return [None if kb is None else 1000 * kb for kb in kilobytes]

    def _processes(self) -> Iterator[tuple[str, list[Number]]]:
        for uuid, gpu in self._gpus.items():
            for kind in ("Compute", "Graphics"):
                for process in self._ask(f"{kind}RunningProcesses", gpu) or ():
                    yield f"{uuid}/{process.pid}", [process.usedGpuMemory]

    def _ask(self, what: str, *words: Any) -> Any:
        """None where this GPU or this driver does not say."""
        try:
            return getattr(self._nv, f"nvmlDeviceGet{what}")(*words)
        except (self._nv.NVMLError, AttributeError):
            return None

    def cpu_ns(self) -> int:
        return 0

    def kill(self) -> None:
        pass


def _pynvml() -> Any:
    """The module, with the library at work. Raises NoGpu."""
    try:
        import pynvml
    except ImportError as error:
        raise NoGpu("nvidia-ml-py is not installed") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoGpu(f"NVML: {error}") from error
    return pynvml


def _text(text: str | bytes) -> str:
    """nvidia-ml-py before 11.5 gives bytes."""
    return text.decode() if isinstance(text, bytes) else text


# ---------------------------------------------------------------- nvidia-smi

_GAUGES = (
    "utilization.gpu", "utilization.memory", "memory.used", "clocks.sm", "clocks.mem", "power.draw", "temperature.gpu"
)  # fmt: skip
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""Two names of one thing: since driver 535, and before."""


class Smi:
    """nvidia-smi, which prints a line for each GPU at each interval."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._watch: Watch | None = None
        self._programs: list[subprocess.Popen[str]] = []

    def run(self, watch: Watch) -> None:
        self._watch = watch
        every = f"--loop-ms={max(1, round(1000 * watch.interval_s))}"
        fields = self._fields()
        apps = threading.Thread(target=self._watch_apps, args=(every,), daemon=True)
        known: dict[str, dict[str, Any]] = {}
        for cells in self._lines(f"--query-gpu={','.join(fields)}", every):
            if len(cells) != len(fields):
                raise NoGpu(f"nvidia-smi: {', '.join(cells)}")
            row = dict(zip(fields, cells, strict=True))
            if row["uuid"] not in known:
                known[row["uuid"]] = {"uuid": row["uuid"], "index": number(row["index"]), "name": row["name"]}
                watch.devices("nvidia-smi", list(known.values()))
            if not apps.ident:
                apps.start()
            watch.readings("gpu", {row["uuid"]: _reading(row)}, _time(row["timestamp"]))
        if not watch.over.is_set():
            raise NoGpu("nvidia-smi has ended")

    def _fields(self) -> list[str]:
        """Those that this version knows: for one that it does not know it refuses them all."""
        fields = ["timestamp", "uuid", "index", "name", *_GAUGES, *_REASONS]
        while True:
            said = " ".join(next(self._lines(f"--query-gpu={','.join(fields)}"), ()))
            refused = [name for name in fields if f'"{name}"' in said]
            if not refused:
                return fields
            fields.remove(refused[0])

    def _watch_apps(self, every: str) -> None:
        for cells in self._lines("--query-compute-apps=timestamp,gpu_uuid,pid,used_gpu_memory", every):
            if self._watch and len(cells) == 4 and cells[2].isdigit():
                row: list[Number] = [_bytes(cells[3])]
                self._watch.readings("gpu_process", {f"{cells[1]}/{cells[2]}": row}, _time(cells[0]))

    def _lines(self, *words: str) -> Iterator[list[str]]:
        """The cells of each line that it prints; it is killed when nobody wants more."""
        if self._watch and self._watch.over.is_set():
            return
        argv = [self._path, *words, "--format=csv,noheader,nounits"]
        try:
            program = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                preexec_fn=_before_exec,
            )
        except OSError as error:
            raise NoGpu(f"{self._path}: {error.strerror}") from error
        self._programs.append(program)
        try:
            for line in program.stdout or ():
                if line.strip():
                    yield [cell.strip() for cell in line.split(",")]
        finally:
            program.kill()

    def cpu_ns(self) -> int:
        return sum(cpu_ns(program.pid) or 0 for program in self._programs if program.poll() is None)

    def kill(self) -> None:
        for program in self._programs:
            program.kill()


def _before_exec() -> None:
    die_with_parent()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _reading(row: dict[str, str]) -> list[Number]:
    """The columns of `gpu`; nvidia-smi does not tell of PCIe traffic in this form."""
    values: dict[str, Number] = {name: number(row.get(name)) for name in _GAUGES}
    values["memory.used"] = _bytes(row.get("memory.used"))
    masks: Iterable[Number] = (number(row.get(name)) for name in _REASONS)
    return [*values.values(), next((mask for mask in masks if mask is not None), None), None, None]


def _bytes(mebibytes: str | None) -> Number:
    mib = number(mebibytes)
    return None if mib is None else mib * 2**20


def number(text: str | None) -> Number:
    """None for `[N/A]`, `[Not Supported]`, `Unknown` and whatever else is no number."""
    try:
        return int(text, 16) if text and text.startswith("0x") else float(text or "")
    except ValueError:
        return None


def _time(stamp: str) -> tuple[int, int] | None:
    """nvidia-smi's own time, in case its lines come late; None where that is not to be read."""
    try:
        t = round(datetime.strptime(stamp, "%Y/%m/%d %H:%M:%S.%f").timestamp() * 1e9)
    except ValueError:
        return None
    return t, time.monotonic_ns() - (time.time_ns() - t)
