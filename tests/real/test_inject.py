"""Real programs under profrun and without: they behave the same, their steps are kept, a trace holds the window."""

from __future__ import annotations

import json
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cli import Result, environment, profrun, script, write_plan
from injecting import Seen, bare, inject
from light_torch import LIGHT

pytest.importorskip("torch")

WINDOW = {"window": "{skip: 2, steps: 3}", "report": "{formats: []}"}
INSIDE = [f"ProfilerStep#{step}" for step in (2, 3, 4)]

TRAIN = """
import os, signal, sys, torch
torch.set_num_threads(1)

def end(how=None):
    if how == "sys.exit": sys.exit(7)
    if how == "exception": raise ValueError("as the program says")
    if how == "SIGTERM": os.kill(os.getpid(), signal.SIGTERM)
    if how == "SIGKILL": os.kill(os.getpid(), signal.SIGKILL)
    if how == "os._exit": os._exit(9)

def main(last=7, how=None):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(last):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()
        print("step", step, __name__, sys.argv[0], flush=True)
    end(how)

if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *sys.argv[2:])
"""


@dataclass(frozen=True)
class Outcome:
    """A program run bare, and by profrun in a timing pass and in a profiled one."""

    plain: Seen
    result: Result

    @property
    def passes(self) -> list[Seen]:
        return [self._seen(one["id"], one["exit_code"]) for one in self.result.summary["passes"]]

    def _seen(self, pass_id: str, code: int) -> Seen:
        logs = self.result.folder / "raw" / f"{pass_id}-target"
        return Seen(code, (logs / "stdout.log").read_text(), (logs / "stderr.log").read_text())

    @property
    def torch(self) -> dict[str, Any]:
        return self.result.captures()["torch"]

    @property
    def notes(self) -> list[str]:
        return [note for one in self.result.summary["passes"] for note in one["notes"]]

    def steps(self) -> list[dict[str, Any]]:
        """The rows of the last pass's table of steps."""
        import pyarrow.parquet as parquet

        path = self.result.folder / "tables" / "steps.parquet"
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist() if path.exists() else []
        return [row for row in rows if row["capture"] == rows[-1]["capture"]]

    def traces(self) -> dict[str, list[str]]:
        """The steps in each trace, by its file's name."""
        found = {}
        for path in sorted(self.result.folder.glob("raw/*/traces/*.trace.json")):
            events = json.loads(path.read_text())["traceEvents"]
            names = {e["name"] for e in events if e.get("cat") == "user_annotation"}
            found[path.name] = sorted(name for name in names if name.startswith("ProfilerStep"))
        return found


def run(folder: Path, *argv: str | Path, env: dict[str, str] | None = None, timing: bool = False) -> Outcome:
    """Both at the same time, and holds that they looked the same."""
    collectors = ["{use: timing, warmup: 0, repeats: 1}"] if timing else []
    plan = write_plan(folder, *collectors, "{use: torch}", **WINDOW)
    given = environment(**(env or {}))
    with ThreadPoolExecutor(2) as pool:
        plain = pool.submit(bare, argv, folder, given)
        result = pool.submit(partial(profrun, plan, "--keep-going", "--", *argv, cwd=folder, env=given))
    outcome = Outcome(plain.result(), result.result())
    code = outcome.plain.code if outcome.plain.code >= 0 else 128 - outcome.plain.code
    expected = [Seen(code, outcome.plain.stdout, outcome.plain.stderr)] * (1 + timing)
    assert outcome.passes == expected
    assert outcome.result.code == code
    assert not [note for note in outcome.notes if "could not do all of its work" in note]
    return outcome


def program(folder: Path, text: str = TRAIN, name: str = "train.py") -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return [row["step"] for row in rows]


# ---------------------------------------------------------------- ways to start


def test_a_script(tmp_path: Path) -> None:
    outcome = run(tmp_path, sys.executable, program(tmp_path), timing=True)
    rows = outcome.steps()
    assert numbers(rows) == list(range(7))
    assert [row["step"] for row in rows if row["profiled"]] == [1, 2, 3, 4]  # torch.profiler warms up in the first
    assert list(outcome.traces().values()) == [INSIDE]
    assert outcome.torch["status"] == "ok"
    phases = ("forward_ns", "backward_ns", "optimizer_ns", "zero_grad_ns")
    for row in rows[1:]:
        assert all(row[name] > 0 for name in phases)
        assert sum(row[name] for name in phases) <= row["duration_ns"]
        assert row["data_wait_ns"] is None  # it has no DataLoader
    assert all(a["start_ns"] + a["duration_ns"] <= b["start_ns"] for a, b in pairwise(rows[1:]))


def test_a_module(tmp_path: Path) -> None:
    program(tmp_path, "", "pkg/__init__.py")
    program(tmp_path, TRAIN, "pkg/__main__.py")
    outcome = run(tmp_path, sys.executable, "-m", "pkg")
    assert (numbers(outcome.steps()), list(outcome.traces().values())) == (list(range(7)), [INSIDE])


def test_a_console_script_beside_a_sitecustomize_of_the_program_s_own(tmp_path: Path) -> None:
    program(tmp_path)
    program(tmp_path, "import sys; print('customised', sys.argv)", "site/sitecustomize.py")
    target = script(tmp_path / "train-it", f"#!{sys.executable}\nimport sys, train\nsys.exit(train.main())\n")
    outcome = run(tmp_path, target, env={"PYTHONPATH": str(tmp_path / "site")})
    assert outcome.plain.stdout.startswith("customised")
    assert (numbers(outcome.steps()), list(outcome.traces().values())) == (list(range(7)), [INSIDE])


RANKS = """
import os, sys, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(7):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def test_the_ranks_of_torchrun(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, "{use: torch}", **WINDOW)
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", program(tmp_path, RANKS))
    result = profrun(plan, "--", sys.executable, *words, cwd=tmp_path, env=environment(OMP_NUM_THREADS="1"))
    assert result.code == 0, result.stderr
    outcome = Outcome(Seen(0, "", ""), result)
    names = sorted(re.sub(r"\d+\.trace", "N.trace", name) for name in outcome.traces())
    assert names == [f"{os.uname().nodename}-rank{rank}-pidN.trace.json" for rank in (0, 1)]
    assert list(outcome.traces().values()) == [INSIDE, INSIDE]
    assert sorted({(row["rank"], row["step"]) for row in outcome.steps()}) == [(r, s) for r in (0, 1) for s in range(7)]


# ---------------------------------------------------------------- ways to end


@pytest.mark.parametrize(
    ("how", "last", "code"),
    [("sys.exit", 4, 7), ("exception", 4, 1), ("SIGTERM", 4, 143), ("SIGKILL", 4, 137), ("os._exit", 4, 9)],
)
def test_every_end_stays_as_it_was_and_saves_what_there_is(tmp_path: Path, how: str, last: int, code: int) -> None:
    outcome = run(tmp_path, sys.executable, program(tmp_path, LIGHT + TRAIN), str(last), how)
    assert outcome.result.code == code
    assert ("ValueError: as the program says" in outcome.plain.stderr) == (how == "exception")
    assert numbers(outcome.steps()) == list(range(last))
    if how == "SIGKILL":  # no trace outlives that
        assert outcome.traces() == {}
        assert outcome.torch["status"] == "empty"
        return
    (steps,) = outcome.traces().values()
    assert steps[:2] == INSIDE[:2]
    why = {"sys.exit": "exit", "exception": "exit"}.get(how, how)
    assert f"truncated: the program ended ({why})" in outcome.torch["reason"]


SAVING = """
import torch.profiler
write = torch.profiler.profile.export_chrome_trace
def written(*words):
    signal.raise_signal(signal.SIGTERM)
    return write(*words)
torch.profiler.profile.export_chrome_trace = written
"""


@pytest.mark.parametrize("last", [4, 9])
def test_a_signal_amid_the_writing_of_the_trace_ends_the_program_after_it(tmp_path: Path, last: int) -> None:
    text = TRAIN.replace("import os, signal, sys, torch", "import os, signal, sys, torch" + SAVING)
    plan = write_plan(tmp_path, "{use: torch}", **WINDOW)
    result = profrun(
        plan, "--keep-going", "--", sys.executable, program(tmp_path, LIGHT + text), str(last), cwd=tmp_path
    )
    outcome = Outcome(Seen(143, "", ""), result)
    assert result.code == 143
    (steps,) = outcome.traces().values()
    inside = INSIDE[: last - 2]
    assert steps[: len(inside)] == inside
    assert outcome.torch["artifacts"]
    assert list((result.folder / "raw").glob("*/*.facts.json"))


def test_an_end_before_the_window_says_so(tmp_path: Path) -> None:
    outcome = run(tmp_path, sys.executable, program(tmp_path, LIGHT + TRAIN), "1")
    assert outcome.traces() == {}
    assert outcome.torch["reason"] == "the target ended after 1 steps, before the window opened"


# ---------------------------------------------------------------- other processes

WORKERS = """
import multiprocessing, os, subprocess, sys, torch
torch.set_num_threads(1)

class Data(torch.utils.data.Dataset):
    transform = torch.nn.Linear(4, 4)
    def __len__(self):
        return 14
    def __getitem__(self, index):
        with torch.no_grad():
            return self.transform(torch.ones(4))

def child():
    print("child", torch.nn.Linear(2, 2)(torch.ones(2)).shape, flush=True)
    sys.exit(3)

if __name__ == "__main__":
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(Data(), 2, num_workers=2, multiprocessing_context=sys.argv[1])
    for step, x in enumerate(loader):
        if step == 3:  # amid the window
            process = multiprocessing.get_context("fork").Process(target=child)
            process.start()
            process.join()
            print("exit", process.exitcode, flush=True)
            subprocess.run([sys.executable, "-c", "print('sub', flush=True)"], check=True)
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
    print("end")
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_and_children_make_no_steps_and_no_traces(tmp_path: Path, method: str) -> None:
    outcome = run(tmp_path, sys.executable, program(tmp_path, LIGHT + WORKERS), method)
    rows = outcome.steps()
    assert numbers(rows) == list(range(7))
    assert len({row["pid"] for row in rows}) == 1
    assert all(row["data_wait_ns"] > 0 for row in rows)
    assert list(outcome.traces().values()) == [INSIDE]


OWN = """
import json, torch
from torch.profiler import ProfilerActivity, profile, schedule
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=4, repeat=1)) as own:
    for _ in range(7):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()
        own.step()
own.export_chrome_trace("own.json")
names = {event["name"] for event in json.load(open("own.json"))["traceEvents"]}
print(sorted(name for name in names if name.startswith("ProfilerStep")), "aten::addmm" in names)
print(sum(row.count for row in own.key_averages() if row.key == "aten::addmm"))
"""


def test_a_program_with_a_profiler_of_its_own_keeps_it(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, "{use: torch}", **WINDOW)
    target = program(tmp_path, OWN)
    plain = bare([sys.executable, target], tmp_path, environment())
    result = profrun(plan, "--", sys.executable, target, cwd=tmp_path)
    outcome = Outcome(plain, result)
    assert result.code == 0
    assert outcome.passes[0].stdout == plain.stdout
    assert "True\n4\n" in plain.stdout
    assert outcome.torch["status"] == "empty"
    assert "the target profiles itself with torch.profiler" in outcome.torch["reason"]
    assert outcome.traces() == {}
    assert numbers(outcome.steps()) == list(range(7))


# ---------------------------------------------------------------- programs of other kinds

INFERENCE = """
import torch
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
with torch.no_grad():
    for x in torch.utils.data.DataLoader(torch.ones(14, 4), 2):
        print(model(x).shape)
"""


def test_a_program_that_only_infers(tmp_path: Path) -> None:
    outcome = run(tmp_path, sys.executable, program(tmp_path, INFERENCE))
    assert {row["kind"] for row in outcome.steps()} == {"inference"}
    assert numbers(outcome.steps()) == list(range(7))
    assert list(outcome.traces().values()) == [INSIDE]


def test_a_program_without_torch_and_pythons_that_keep_us_out(tmp_path: Path) -> None:
    """All in one run: each Python that profrun sees and is not in is named, with the reason."""
    flags = ("-I", "-E", "-S", "-u")
    lines = [f"'{sys.executable}' {flag} -c 'import time; time.sleep(0.4); print(\"{flag}\")'" for flag in flags]
    target = script(tmp_path / "all.sh", "#!/bin/sh\n" + "\n".join(lines) + "\nexit 5\n")
    outcome = run(tmp_path, target)
    assert outcome.plain.stdout.split() == list(flags)
    assert outcome.steps() == []
    assert "no Python process with torch" in outcome.torch["reason"]
    said = " ".join(outcome.notes)
    for why in ("-I (isolated)", "-E (its environment is ignored)", "-S (no site)"):
        assert f"python was started with {why}" in said
    assert len(re.findall(r"not in force in pid", said)) == 3


COMPILED = """
import sys, torch, torch._dynamo.utils
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
whole = torch.compile(model, backend="eager")
method = torch.nn.Linear(4, 1)
method.compile(backend="eager")

@torch.compile(backend="eager")
def function(x):
    return model(x).mean()

@torch.compile(backend="eager")
def everything(x):
    optimizer.zero_grad(set_to_none=True)
    model(x).mean().backward()
    optimizer.step()

for step in range(7):
    for form in (whole, method, function):
        form(torch.ones(2, 4)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
everything(torch.ones(2, 4))
counters = torch._dynamo.utils.counters
print(sum(counters["graph_break"].values()), counters["stats"], sum(counters["recompiles"].values()))
print(model(torch.ones(2, 4)).tolist())
"""


def test_torch_compile_in_all_its_forms_compiles_the_same(tmp_path: Path) -> None:
    target = program(tmp_path, COMPILED)
    env = {"TORCH_LOGS": "graph_breaks,recompiles", "TORCH_LOGS_FORMAT": "%(message)s"}
    plan = write_plan(tmp_path, "{use: timing, warmup: 0, repeats: 1}", **WINDOW)
    plain = bare([sys.executable, target], tmp_path, environment(**env))
    result = profrun(plan, "--", sys.executable, target, cwd=tmp_path, env=environment(**env))
    outcome = Outcome(plain, result)
    assert outcome.passes[0].stdout == plain.stdout
    breaks = [line for line in plain.stderr.splitlines() if "Graph break in user code" in line or "Recompiling" in line]
    assert breaks
    injected = outcome.passes[0].stderr.splitlines()
    assert [line for line in injected if "Graph break in user code" in line or "Recompiling" in line] == breaks
    assert [line for line in injected if "Warning" in line] == [x for x in plain.stderr.splitlines() if "Warning" in x]
    assert numbers(outcome.steps()) == list(range(7))


TRACED = """
import torch, torch.fx
body, head = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
for step in range(5):
    head(body(torch.ones(2, 4))).sum().backward()
    optimizer.step()
    if step in (1, 4):
        print(torch.fx.symbolic_trace(torch.nn.Sequential(body, head)).graph)
"""


def test_who_watches_all_calls_of_modules_still_sees_them(tmp_path: Path) -> None:
    """torch.fx makes its graphs, for quantisation and the like, of what `Module.__call__` tells it."""
    target = program(tmp_path, TRACED)
    plain = bare([sys.executable, target], tmp_path)
    seen, left = inject([sys.executable, target], tmp_path, tmp_path / "profrun")
    assert "call_module[target=0.0]" in plain.stdout
    assert seen == plain
    (steps,) = left.steps()
    assert len(steps) == 5 and all(steps.phases["forward"])


FORKS = """
import os, sys, torch
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()
def fork(code, steps):
    if os.fork() == 0:
        train(steps)
        sys.exit(code)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
train(4)
fork(4, 0)
fork(5, 3)
train(3)
"""


def test_a_child_that_is_forked_off_amid_the_window_ends_as_ever(tmp_path: Path) -> None:
    """Once its profiler has run, torch makes such a child wait for ever in its exit."""
    outcome = run(tmp_path, sys.executable, program(tmp_path, LIGHT + FORKS))
    assert outcome.plain.stdout.split() == ["4", "5"]
    counts = [numbers([r for r in outcome.steps() if r["pid"] == pid]) for pid in {r["pid"] for r in outcome.steps()}]
    assert sorted(counts, key=len) == [list(range(3)), list(range(7))]  # it has trained, too
    assert list(outcome.traces().values()) == [INSIDE]


SIGNALS = """
import signal, torch
class Stop(Exception): pass
def handler(number, frame):
    raise Stop("now", number)
signal.signal(signal.SIGALRM, handler)
model, x, stopped = torch.nn.Identity(), torch.ones(1), 0
for round in range(200):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.002 + round * 0.000003)
        while True:
            model(x)
    except Stop as error:
        stopped += error.args == ("now", signal.SIGALRM)
print(stopped)
"""


def test_what_a_signal_s_handler_raises_reaches_the_program(tmp_path: Path) -> None:
    """Also where the signal comes in the middle of our part, as it mostly does in this program."""
    target = [sys.executable, program(tmp_path, SIGNALS)]
    seen, left = inject(target, tmp_path, tmp_path / "profrun")
    assert (seen.code, seen.stdout, seen.stderr) == (0, "200\n", "")
    assert left.events("trouble") == []


COST = """
import sys, time, torch
torch.set_num_threads(1)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader([torch.ones(1)] * 200, batch_size=None)
def steps():
    began = time.thread_time_ns()
    for x in loader:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    return (time.thread_time_ns() - began) / 200e3
print(min(steps() for _ in range(25)))
"""


def test_what_a_training_step_costs_us(tmp_path: Path) -> None:
    """Data, zero_grad, forward, backward and optimizer in sum. It is 10 us where the caches are ours, as in a loop of
    nothing else; between the program's own work, which empties them, some 35 us were seen."""
    target = [sys.executable, program(tmp_path, COST)]
    plain, (seen, left) = bare(target, tmp_path), inject(target, tmp_path, tmp_path / "profrun")
    assert len(left.steps()[0]) == 5000
    bare_us, seen_us = float(plain.stdout), float(seen.stdout)
    assert seen_us - bare_us < max(100.0, bare_us / 2)  # where all is slow, this may be too
