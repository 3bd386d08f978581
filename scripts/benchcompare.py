"""scripts/bench compare: pairs of real runs, of the same program and of one whose step is planted to be slower: how
often `profrun compare` sees a change where there is none, and how often the one that is there."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

from orchestrator.compare import compare  # noqa: E402 - the checkout need not be installed
from orchestrator.comparing.words import Change  # noqa: E402
from orchestrator.report import load_report  # noqa: E402

HEADINGS = ("pair", "planted", "judged by", "step", "95 %", "verdict", "", "usual step")
ALARMS, CAUGHT = 0.05, 0.8
"""At most so many of the equal pairs may differ, and at least so many of the others must be told slower."""
PLAN = """
version: 1
name: compare
collectors:
  - {use: timing, repeats: 12, warmup: 0}
"""
"""So many repeats that on a shared machine some of each side are left alone."""
PROGRAM = """
import sys, types
# PyTorch without its compiler, which takes as long to load as all the rest of it
compiler = types.SimpleNamespace(disable=lambda function, *_, **__: function, graph_break=lambda: None)
sys.modules["torch._dynamo"] = compiler
import torch
torch.set_num_threads(1)
factor = float(sys.argv[1])
matrix, model = torch.randn(96, 96), torch.nn.Linear(96, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

def augment(times):
    out = matrix
    for _ in range(times):
        out = torch.mm(matrix, matrix)
    return out

def train_step():
    optimizer.zero_grad()
    loss = model(augment(30)).mean()
    for _ in range(70):
        torch.mm(matrix, matrix)
    loss.backward()
    optimizer.step()

plain = augment
augment = lambda times: plain(round(times * factor))
for _ in range(600):
    train_step()
"""
"""A step of which `augment` is 30 %: made slower by a fifth, the step is by 6 %."""
PART = 0.3


@dataclass(frozen=True)
class Pair:
    """One pair: by how much B's step is planted to be slower, and what was made of it."""

    number: int
    planted_pct: float
    step: Change | None
    usual: Change | None = None

    @classmethod
    def of(cls, number: int, planted_pct: float, a: str, b: str) -> Pair:
        found = compare(load_report(a), load_report(b))
        usual = next((one for one in found.changes if one.name == "step_s"), None)
        return cls(number, planted_pct, found.step, usual)

    @property
    def verdict(self) -> str:
        return self.step.verdict if self.step else "nothing timed"

    @property
    def is_right(self) -> bool:
        return self.verdict == "slower" if self.planted_pct else self.verdict not in ("slower", "faster")

    def row(self) -> tuple[str, ...]:
        step = self.step
        if step is None or step.ratio is None:
            return str(self.number), f"{self.planted_pct:+g} %", "", "", "", self.verdict, "WRONG", ""
        within = "" if step.low is None or step.high is None else f"{_pct(step.low)} to {_pct(step.high)}"
        usual = _pct(self.usual.ratio) if self.usual and self.usual.ratio else ""
        right = "" if self.is_right else "MISSED" if self.planted_pct else "ALARM"
        first = str(self.number), f"{self.planted_pct:+g} %", step.name
        return *first, _pct(step.ratio), within, self.verdict, right, usual


def _pct(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def pairs(count: int, slower_pct: float) -> Iterator[Pair]:
    """Of each three reports, equal, equal and slower, two pairs."""
    factors = {"a": 1.0, "b": 1.0, "c": 1 + slower_pct / 100 / PART}
    with tempfile.TemporaryDirectory(prefix="profrun-bench-") as scratch:
        program, plan = Path(scratch, "program.py"), Path(scratch, "plan.yaml")
        program.write_text(PROGRAM)
        plan.write_text(PLAN)
        for number in range(1, count + 1):
            made = {
                name: _profrun(plan, "-o", scratch, "--name", name, "--", sys.executable, program, f"{factor:g}")
                for name, factor in factors.items()
            }
            yield Pair.of(number, 0.0, made["a"], made["b"])
            yield Pair.of(number, slower_pct, made["b"], made["c"])


def _profrun(*arguments: str | Path) -> str:
    """Where its report is."""
    argv = [str(REPO / "scripts" / "profrun"), "-q", *map(str, arguments)]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"profrun ended with {done.returncode}:\n{done.stderr}")
    return str(Path(done.stdout.strip().splitlines()[-1]).absolute())


def run(count: int, slower_pct: float) -> tuple[list[tuple[str, ...]], bool]:
    """The table, each pair told on stderr as it is done, and whether both goals are met."""
    done = []
    for pair in pairs(count, slower_pct):
        done.append(pair)
        print("  ".join(pair.row()), file=sys.stderr, flush=True)
    equal, planted = ([one for one in done if bool(one.planted_pct) is slow] for slow in (False, True))
    alarms, caught = sum(not one.is_right for one in equal), sum(one.is_right for one in planted)
    good = alarms <= max(1, ALARMS * count) and caught >= CAUGHT * count
    totals = [
        (f"alarms: {alarms} of {count}", f"at most {max(1, int(ALARMS * count))}", *[""] * 6),
        (f"caught: {caught} of {count}", f"at least {-(-int(CAUGHT * 100 * count) // 100)}", *[""] * 6),
    ]
    return [HEADINGS, *(one.row() for one in done), *totals], good
