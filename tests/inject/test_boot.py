"""Our part in real interpreters: a program that has it behaves to the byte as one that has not."""

from __future__ import annotations

import ast
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from injecting import Left, Seen, bare, inject
from interpreters import interpreter

INJECT = Path(__file__).resolve().parents[2] / "orchestrator" / "inject"


@pytest.fixture(params=["3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14"])
def python(request: pytest.FixtureRequest) -> str:
    return interpreter(request.param)


def both(folder: Path, *argv: str | Path, env: dict[str, str] | None = None, **settings: Any) -> tuple[Seen, Left]:
    """Runs a program bare and with our part, and holds that nobody can tell one from the other."""
    plain = bare(argv, folder, env)
    seen, left = inject(argv, folder, folder / "profrun", env, **settings)
    assert seen == plain
    assert left.events("trouble") == []
    return seen, left


def program(folder: Path, text: str, name: str = "program.py") -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", sorted(INJECT.rglob("*.py")), ids=lambda path: path.name)
def test_python_3_8_can_read_every_file(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(), feature_version=(3, 8)))


LOOKS = """
import atexit, os, signal, sys, traceback
print(sys.argv, sys.path, __name__, __file__, sys.flags, sorted(vars(sys.modules["__main__"])))
print("sitecustomize" in sys.modules, sys.getrecursionlimit(), signal.getsignal(signal.SIGTERM))
print(sorted(os.listdir("/proc/self/fd")), threads := len(os.listdir("/proc/self/task")))
atexit.register(print, "first registered, last run")
atexit.register(print, "last registered, first run")
def outer():
    raise KeyError("as it was")
try:
    outer()
except KeyError:
    traceback.print_exc()
sys.exit(7)
"""


def test_the_program_sees_nothing_of_us(tmp_path: Path, python: str) -> None:
    seen, left = both(tmp_path, python, program(tmp_path, LOOKS), "word", "-x")
    assert seen.code == 7
    (process,) = left.content.processes
    assert process.start["program"][1:] == [str(tmp_path / "program.py")]  # arguments may be secrets
    assert process.start["python"].startswith(Path(python).parents[1].name[:3] if "versions" in python else "3")
    assert process.first("end") is not None


def test_next_to_nothing_is_loaded(tmp_path: Path, python: str) -> None:
    """What costs time at every start of a Python; the two are parts of the interpreter."""
    target = program(tmp_path, "import sys; print(*[name for name in sys.modules if '_profrun' not in name])")
    plain, (seen, _) = bare([python, target], tmp_path), inject([python, target], tmp_path, tmp_path / "profrun")
    assert set(seen.stdout.split()) - set(plain.stdout.split()) <= {"__future__", "_functools", "atexit"}


def test_as_a_module_and_with_the_program_s_own_path(tmp_path: Path, python: str) -> None:
    program(tmp_path, "", "pkg/__init__.py")
    program(tmp_path, LOOKS, "pkg/__main__.py")
    program(tmp_path, "print('own')", "lib/own.py")
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "lib")}
    seen, _ = both(tmp_path, python, "-m", "pkg", env=env)
    assert str(tmp_path / "lib") in seen.stdout


def test_from_a_zip_file_and_from_a_command(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.writestr("__main__.py", "import sys; print(sys.argv, sys.path[0]); 1 / 0")
    seen, left = both(tmp_path, sys.executable, "app.zip", "x")
    assert "ZeroDivisionError" in seen.stderr
    assert len(left.content.processes) == 1
    seen, left = inject([sys.executable, "-c", "raise SystemExit('no')"], tmp_path, tmp_path / "again")
    assert (seen.code, seen.stderr) == (1, "no\n")


OUR_NAMES = ("bell", "boot", "steps", "diary", "imports", "around", "window", "ranges", "seeds", "mapped", "profiler")


def test_modules_of_the_program_that_are_called_as_ours_are_its_own(tmp_path: Path) -> None:
    for name in OUR_NAMES:
        program(tmp_path, f"print('{name} of the program')", name + ".py")
    lines = [f"import {name}" for name in OUR_NAMES]
    seen, _ = both(tmp_path, sys.executable, program(tmp_path, "\n".join(lines)))
    assert seen.stdout.count("of the program") == len(OUR_NAMES)


@pytest.mark.parametrize("flag", ["-I", "-E", "-S", "-Es"])
def test_a_python_that_keeps_us_out_runs_as_ever(tmp_path: Path, flag: str) -> None:
    _, left = both(tmp_path, sys.executable, flag, program(tmp_path, "print('runs')"))
    assert left.content.processes == ()


@pytest.mark.parametrize("flag", ["-P", "-s", "-Wall", "-OO", "-Xdev", "-B"])
def test_other_options_change_nothing(tmp_path: Path, flag: str) -> None:
    _, left = both(tmp_path, sys.executable, flag, program(tmp_path, LOOKS))
    assert len(left.content.processes) == 1


# ---------------------------------------------------------------- a sitecustomize of the program's own


@pytest.mark.parametrize(
    "text",
    ["import sys; sys.own = 'seen'; print('customised')", "1 / 0", "import no_such_module", "raise ImportError('x')"],
)
def test_a_sitecustomize_of_the_program_s_own(tmp_path: Path, python: str, text: str) -> None:
    program(tmp_path, text, "site/sitecustomize.py")
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    target = program(tmp_path, "import sys; print(getattr(sys, 'own', None), sys.modules.get('sitecustomize'))")
    _, left = both(tmp_path, python, target, env=env)
    assert len(left.content.processes) == 1


# ---------------------------------------------------------------- forks, other programs, descriptors

CHILDREN = """
import multiprocessing, os, subprocess, sys

def child(n):
    print("child", n, flush=True)

if __name__ == "__main__":
    for method in ("fork", "spawn"):
        process = multiprocessing.get_context(method).Process(target=child, args=(method,))
        process.start()
        process.join()
        print(process.exitcode, flush=True)
    print(subprocess.run([sys.executable, "-c", "import sys; print('sub', flush=True); sys.exit(5)"]).returncode)
    sys.stdout.flush()
    if os.fork() == 0:
        sys.exit(3)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
    os.execv(sys.executable, [sys.executable, "-c", "raise SystemExit(6)"])
"""


def test_children_of_all_kinds(tmp_path: Path) -> None:
    seen, left = both(tmp_path, sys.executable, program(tmp_path, CHILDREN))
    assert (seen.code, seen.stdout.split()) == (6, ["child", "fork", "0", "child", "spawn", "0", "sub", "5", "3"])
    programs = [process.start["program"] for process in left.content.processes]
    assert all(program[-1] == "-c" or program[-1].endswith("program.py") for program in programs)
    (main,) = [process.pid for process in left.content.processes if process.start["program"][-1] != "-c"]
    assert [process.start["program"][-1] for process in left.content.processes if process.pid == main][1:] == ["-c"]
    assert len({process.pid for process in left.content.processes}) == 4  # with the spawned one and its tracker


def test_closed_descriptors(tmp_path: Path) -> None:
    text = "import os; os.closerange(0, 100); f = open('out', 'w'); f.write(str(f.fileno())); f.close()"
    _, left = both(tmp_path, sys.executable, program(tmp_path, text))
    assert left.events("end")
    assert (tmp_path / "out").read_text() == "0"


def test_a_pass_that_is_over_is_no_concern(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(INJECT / "site"), "PROFRUN_INJECT": str(tmp_path / "gone" / "settings")}
    assert bare([sys.executable, "-c", "print('runs')"], tmp_path, env) == Seen(0, "runs\n", "")


def test_it_stops_in_its_start_until_it_is_answered(tmp_path: Path) -> None:
    text = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass'])"
    _, left = both(tmp_path, sys.executable, program(tmp_path, text), hold=True)
    assert left.rung == ("python",)  # what it starts is followed through it


# ---------------------------------------------------------------- ranges

RANGED = """
import pkg.parts

def forward(x):
    if x < 0:
        raise ValueError("below")
    return x + 1

def stream():
    yield 1

class Block:
    def forward(self, x): return x
    @staticmethod
    def fixed(x): return x
    @classmethod
    def made(cls): return cls.__name__

def wait_for(place, *names):
    ours = {"Around", "_Watched"}
    while "_profrun" in sys.modules and not {type(vars(place)[name]).__name__ for name in names} <= ours:
        time.sleep(0.001)

import sys, time
wait_for(Block, "forward", "fixed", "made")
def last(): pass  # comes when all above are there: who finds this one has looked for them
wait_for(sys.modules["__main__"], "forward", "last")
block, kept = Block(), Block().forward
print([forward(1), kept(2), block.forward(3), Block.forward(block, 4), Block.fixed(5), block.fixed(6), Block.made()])
print(list(stream()), pkg.parts.work(), pkg.parts.Part().run(k=3), forward.__name__, Block.made.__self__)
forward(-1)
"""
WANTED = [
    "program.py:forward", "program.py:Block.forward", "program.py:Block.fixed", "program.py:Block.made",
    "program.py:stream", "pkg.parts.work", "pkg/parts.py:Part.run", "other.py:forward", "no.such.name",
    "program.py:last",
]  # fmt: skip


def test_named_functions_are_timed_and_stay_what_they_are(tmp_path: Path, python: str) -> None:
    from orchestrator.formats import injected

    program(tmp_path, "", "pkg/__init__.py")
    program(tmp_path, "def work(): return 'w'\nclass Part:\n def run(self, k): return k\n", "pkg/parts.py")
    seen, left = both(tmp_path, python, program(tmp_path, RANGED), ranges=WANTED)
    assert seen.stderr.count('  File "') == 2
    (process,) = left.content.processes
    calls = [call.name for call in injected.read_ranges(process)]
    assert {name: calls.count(name) for name in calls} == {
        "program.py:forward": 2, "program.py:Block.forward": 2, "program.py:Block.fixed": 2, "program.py:Block.made": 1,
        "pkg.parts.work": 1, "pkg/parts.py:Part.run": 1,
    }  # fmt: skip
    assert all(call.duration_ns > 0 for call in injected.read_ranges(process))
    assert [note["text"] for note in left.events("note")] == [
        "program.py:stream is a generator or a coroutine: its calls have no end to be timed"
    ]


LOCKED = """
import os, sys, threading
def work(): return 1
for _ in range(1000):
    if type(work).__name__ != "function": break
    threading.Event().wait(0.01)
work()
recorder = sys.modules["_profrun.ranges"]._recorder
with recorder._lock:  # as another thread of the program may have it, right when this one forks
    child = os.fork()
    if child == 0:
        work()
        os._exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_does_not_wait_for_a_thread_that_only_its_parent_has(tmp_path: Path) -> None:
    target = program(tmp_path, LOCKED)
    seen, _ = inject([sys.executable, target], tmp_path, tmp_path / "profrun", ranges=["program.py:work"])
    assert (seen.code, seen.stdout) == (0, "3\n"), seen.stderr
