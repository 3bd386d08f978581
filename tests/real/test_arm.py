"""Armed programs, woken while they run, by real torch and real nsys: never restarted, their ends their own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from cli import Result, command, environment, profrun
from interpreters import interpreter
from waiting import LIMIT_S, until

from orchestrator import attached

SERVER = """
import os, signal, sys, threading, time
import torch
asked, model = [], torch.nn.Linear(16, 16)
signal.signal(signal.SIGTERM, lambda *_: asked.append("TERM"))
def serve():
    while not asked:
        with torch.no_grad():
            model(torch.ones(4, 16))
        time.sleep(0.005)
worker = threading.Thread(target=serve)
worker.start()
print("serving", os.getpid(), flush=True)
while not asked:
    time.sleep(0.02)
worker.join()
print("ended by", asked, flush=True)
sys.exit(7)
"""
TRAINING = """
import os, signal, sys, time
import torch
asked, net = [], torch.nn.Linear(16, 16)
signal.signal(signal.SIGTERM, lambda *_: asked.append("TERM"))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
print("serving", os.getpid(), flush=True)
while not asked:
    optimizer.zero_grad()
    net(torch.ones(4, 16)).sum().backward()
    optimizer.step()
    time.sleep(0.005)
print("ended by", asked, flush=True)
sys.exit(7)
"""
FAST = ("--set", "report.formats=[]")


class Armed:
    """A program that `profrun arm` has started."""

    def __init__(self, folder: Path, text: str, *options: str, python: str = sys.executable) -> None:
        (folder / "server.py").write_text(text)
        self.folder, self.env = folder, environment(PROFRUN_STATE=str(folder / "state"))
        words = command("arm", *options, "--", python, folder / "server.py")
        self.out, self.err = folder / "out", folder / "err"
        with self.out.open("w") as out, self.err.open("w") as err:
            self.started = subprocess.Popen(words, cwd=folder, env=self.env, stdout=out, stderr=err)
        self.pid = int(until(lambda: re.search(r"^serving (\d+)$", self.out.read_text(), re.M) or self.fell())[1])

    def fell(self) -> None:
        assert self.started.poll() is None, self.err.read_text()

    def wake(self, *words: str) -> Result:
        found = re.search(r"profrun wake --pid (\d+)", self.err.read_text())
        assert found is not None
        return profrun("wake", "--pid", found[1], *FAST, *words, cwd=self.folder, env=self.env)

    def close(self) -> None:
        for pid in (self.pid, self.started.pid):
            if self.started.poll() is None:
                os.kill(pid, signal.SIGKILL)
        self.started.wait(LIMIT_S)


@pytest.fixture
def arm(tmp_path: Path) -> Iterator[object]:
    started: list[Armed] = []

    def start(text: str, *options: str, python: str = sys.executable) -> Armed:
        started.append(Armed(tmp_path, text, *options, python=python))
        return started[-1]

    yield start
    for one in started:
        one.close()


def ops(result: Result) -> dict[str, int]:
    table = pd.read_parquet(result.folder / "tables" / "torch_ops.parquet")
    return {str(name): int(count) for name, count in table.groupby("name")["count"].sum().items()}


@pytest.mark.tool("nsys")
def test_a_server_is_woken_twice_and_never_restarted(arm: type[Armed]) -> None:
    server = arm(SERVER, "--nsys", "--name", "a server")
    assert "signal the program itself" in server.err.read_text()
    results = [server.wake("--duration", "1s") for _ in range(2)]
    for result in results:
        assert result.code == 0, result.stderr
        assert result.statuses() == {"torch": "ok", "nsys": "ok"}
        assert ops(result)["aten::linear"] > 5
        assert len(pd.read_parquet(result.folder / "tables" / "os_calls_summary.parquet")) > 0
    assert results[0].folder != results[1].folder
    assert Path(f"/proc/{server.pid}").exists()
    os.kill(server.pid, signal.SIGTERM)
    assert server.started.wait(LIMIT_S) == 7
    assert server.out.read_text().splitlines() == [f"serving {server.pid}", "ended by ['TERM']"]


def test_a_training_is_looked_at_for_its_own_steps(arm: type[Armed]) -> None:
    job = arm(TRAINING, "--no-nsys")
    assert job.pid == job.started.pid  # the program has become what profrun was
    for _ in range(2):
        result = job.wake("--only", "torch", "--set", "window={skip: 1, steps: 4}")
        assert result.code == 0, result.stderr
        ranges = pd.read_parquet(result.folder / "tables" / "ranges.parquet")
        assert len({name for name in ranges.name if name.startswith("ProfilerStep")}) == 4
        assert ops(result)["Optimizer.step#SGD.step"] == 4
    refused = job.wake("--only", "nsys", "--duration", "1s")
    assert refused.code == 3 and "armed without nsys" in refused.stderr
    os.kill(job.pid, signal.SIGTERM)
    assert job.started.wait(LIMIT_S) == 7
    assert "ended by ['TERM']" in job.out.read_text()


def test_a_program_that_does_not_load_our_part_is_told_so(arm: type[Armed], tmp_path: Path) -> None:
    text = "import os, time\nprint('serving', os.getpid(), flush=True)\ntime.sleep(1000)\n"
    result = arm(text, "--no-nsys").wake("--only", "torch", "--duration", "1s")
    assert result.code == 4
    assert "has not imported torch yet" in result.captures()["torch"]["reason"]


def test_python_3_14_lets_our_part_in_while_it_runs(tmp_path: Path) -> None:
    python = interpreter("3.14")
    if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode:
        pytest.skip("the Python 3.14 of this machine has no torch")
    (tmp_path / "server.py").write_text(SERVER)
    with subprocess.Popen([python, tmp_path / "server.py"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and server.stdout.readline().startswith("serving")
        for _ in range(2):
            result = profrun("wake", "--only", "torch", "--pid", str(server.pid), "--duration", "1s", cwd=tmp_path)
            assert result.code == 0, result.stderr
            assert ops(result)["aten::linear"] > 5
        server.terminate()
        assert server.wait(LIMIT_S) == 7
    assert attached.look([server.pid]) == ()
