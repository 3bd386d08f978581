"""Faults of the machine: disks, environments, clocks, limits, process numbers, streams, neighbours."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cli import Result
from matrix.running import (
    LATEST,
    PY_SPY,
    STRACE,
    TIMING,
    at_write,
    fault,
    patched,
    planned,
    python,
    ran,
    shelled,
    with_patch,
)
from matrix.words import Fault, Place
from waiting import LIMIT_S

ALL_WELL = "(?m)^profrun: ok$"
BOTH = {"timing": "ok", "strace": "ok"}
TRACED = (TIMING, STRACE)

# ---------------------------------------------------------------- disks


@contextlib.contextmanager
def disk(path: Path, size: str, *options: str) -> Iterator[Path]:
    """A file system of its own at that place."""
    path.mkdir(exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", ",".join((f"size={size}", *options)), "matrix", path]
    subprocess.run(words, check=True, capture_output=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True, capture_output=True)


def fills(path: str) -> str:
    """A line for a shell: takes all the room of that disk."""
    return f"{{ dd if=/dev/zero bs=64K; dd if=/dev/zero bs=512; }} >> {path}/fill 2> /dev/null; true"


def with_disk(
    where: str, size: str, inject: Callable[[Place], Result], then: Callable[[Place, Result], Result] | None = None
) -> Callable[[Place], Result]:
    """The fault with a small disk there; what is on it in the end is kept in the place's folder."""

    def whole(place: Place) -> Result:
        at = place.folder / where
        with disk(at, size):
            result = inject(place)
            (at / "fill").unlink(missing_ok=True)
            result = then(place, result) if then else result
            shutil.copytree(at, place.folder / "kept", symlinks=True)
        at.rmdir()
        (place.folder / "kept").rename(at)
        return result

    return whole


def in_turn(pass_id: str, line: str) -> tuple[str, ...]:
    """A target that does that in one pass only."""
    return "sh", "-c", f'echo printed; [ "$0" != {pass_id} ] || {{ {line}; }}', "{pass}"


def filled_in(pass_id: str, where: str) -> Callable[[Place], Result]:
    return lambda place: ran(
        place,
        *in_turn(pass_id, fills(str(place.folder / where))),
        collectors=(TIMING, STRACE, "{use: strace, mode: trace}"),
    )


def filled_at(name: str) -> Callable[[Place], Result]:
    """The report's disk is full when profrun is about to write that file of it."""

    def inject(place: Place) -> Result:
        line = fills("reports")
        report = f"{{formats: {['html'] if name == 'index.html' else []}}}"
        return patched(
            place, at_write(name, f"os.system({line!r})"), "echo", "printed", collectors=TRACED, report=report
        )

    return inject


def advised(place: Place, result: Result) -> Result:
    """Does what the user was told to do, once there is room again; what the run had said and ended in stays."""
    assert ", then: " in result.stderr, result.stderr
    *first, (_, *words) = map(shlex.split, result.stderr.split(", then: ")[1].splitlines()[0].split(" && "))
    for line in first:
        subprocess.run(line, cwd=place.folder, check=True)
    done = place.profrun(*words)
    assert done.code == 0, done.stderr
    for scratch in place.tmp.glob("profrun-*"):
        assert str(scratch) in result.stderr, f"nobody told of {scratch}: {result.stderr}"
        shutil.rmtree(scratch)
    return result


def refused(error: str) -> str:
    """A disk that refuses the report's summary with another word than that it is full."""
    return at_write(
        "summary.json", f"import errno; raise OSError(errno.{error}, os.strerror(errno.{error}), str(path))"
    )


def read_only(where: str, **more: str) -> Callable[[Place], Result]:
    def inject(place: Place) -> Result:
        with disk(place.folder / where, "100m", "ro"):
            return ran(place, "echo", "printed", collectors=TRACED, **more)

    return inject


def as_home(place: Place) -> Result:
    """HOME on a disk that can't be written."""
    with disk(place.folder / "home", "1m", "ro"):
        return place.profrun(planned(place, *TRACED), "--", "true", HOME=str(place.folder / "home"))


STEP = '[{use: shell, run: [sh, -c, "echo on >> log"], undo: [sh, -c, "echo off >> log"]}]'


def without_state(place: Place) -> Result:
    """No room for a journal: nothing may be changed that could not be put back."""
    with disk(place.folder / "small", "4k"):
        (place.folder / "small/fill").write_bytes(b"x" * 4096)
        plan = planned(place, environment=STEP)
        return place.profrun(plan, "--", "true", PROFRUN_STATE=str(place.folder / "small"))


def unchanged(place: Place, _: Result) -> list[str]:
    log = place.folder / "log"
    found = log.read_text().split() if log.exists() else []
    return [] if found in ([], ["on", "off"]) else [f"the steps did {found}"]


DISKS = (
    fault(
        "a quota",
        lambda place: advised(place, patched(place, refused("EDQUOT"), "true")),
        4,
        "can't be finished\n.*Disk quota exceeded",
        report=False,
    ),
    fault(
        "a disk with a fault",
        lambda place: advised(place, patched(place, refused("EIO"), "true")),
        4,
        "can't be finished\n.*Input/output error",
        report=False,
    ),
)

MOUNTED = (
    fault(
        "the report's disk is full",
        with_disk("reports", "1m", lambda place: ran(place, "touch", "started")),
        3,
        r"no room for a report in reports\n.*MiB are free.*\n.*-o DIR",
        report=False,
    ),
    fault(
        "TMPDIR's disk is full",
        with_disk("tmp", "1m", lambda place: ran(place, "true", collectors=TRACED)),
        0,
        ALL_WELL,
        BOTH,
        ("strace",),
    ),
    fault(
        "the report's disk fills up in the bare pass",
        with_disk("reports", "80m", filled_in("p01", "reports"), advised),
        4,
        "can't be finished\n.*No space left",
        report=False,
        needs=("strace",),
    ),
    fault(
        "the report's disk fills up in the strace pass",
        with_disk("reports", "80m", filled_in("p02", "reports"), advised),
        4,
        "can't be finished\n.*No space left",
        report=False,
        needs=("strace",),
    ),
    fault(
        "TMPDIR's disk fills up in the bare pass",
        with_disk("tmp", "80m", filled_in("p01", "tmp")),
        4,
        "the disk of .*tmp.* is (nearly )?full",
        {"timing": "ok"},
        ("strace",),
    ),
    fault(
        "TMPDIR's disk fills up in the strace pass",
        with_disk("tmp", "80m", filled_in("p03", "tmp")),
        0,
        "degraded +strace: the disk of .*tmp.* was full",
        {"timing": "ok", "strace": "degraded"},
        ("strace",),
    ),
    fault(
        "the report's disk is full for run.json",
        with_disk("reports", "80m", filled_at("run.json"), advised),
        4,
        "can't be finished\n.*No space left",
        needs=("strace",),
        report=False,
    ),
    fault(
        "the report's disk is full for the tables",
        with_disk("reports", "80m", filled_at("machine.json"), advised),
        4,
        "can't be finished\n.*No space left",
        needs=("strace",),
        report=False,
    ),
    fault(
        "the report's disk is full for the page",
        with_disk("reports", "80m", filled_at("index.html"), advised),
        4,
        "can't be finished\n.*No space left",
        needs=("strace",),
        report=False,
    ),
    fault(
        "the report's place is read-only",
        read_only("reports"),
        3,
        "can't be made in reports\n.*Read-only.*\n.*-o DIR",
        report=False,
    ),
    fault("HOME is read-only", as_home, 0, ALL_WELL, BOTH, ("strace",)),
    fault("no room for the journal", without_state, (0, 5), "no journal", {}, also=unchanged),
)


# ---------------------------------------------------------------- environments


def within(
    target: tuple[str, ...] = ("sh", "-c", "echo printed"), collectors: Iterable[str] = TRACED, **changes: str | None
) -> Callable[[Place], Result]:
    """A run with other variables."""

    def inject(place: Place) -> Result:
        spelled = {name: text.replace("FOLDER", str(place.folder)) if text else text for name, text in changes.items()}
        report = f"{{formats: {['html'] if 'LC_ALL' in changes else []}}}"
        return place.profrun(planned(place, *collectors, report=report), "--", *target, **spelled)

    return inject


def odd_tmp(place: Place) -> Result:
    odd = place.tmp / "a folder, 'quoted' \"twice\" $x \u00e4\u4e2d"
    odd.mkdir()
    result = place.profrun(planned(place, TIMING, STRACE, PY_SPY), "--", *python(place, BUSY), TMPDIR=str(odd))
    assert list(odd.iterdir()) == [], "left in TMPDIR"
    return result


BUSY = "import time; end = time.monotonic() + 0.3\nwhile time.monotonic() < end: sum(range(1000))\nprint('printed')\n"
WORDS = ("printf", "%s\\n", "\u00e4\u4e2d\U0001f600")

ENVIRONMENTS = (
    fault("no HOME", within(HOME=None), 0, ALL_WELL, BOTH, ("strace",)),
    fault("TMPDIR points to nothing", within(TMPDIR="FOLDER/nothing"), 0, ALL_WELL, BOTH, ("strace",)),
    fault("TMPDIR points to a file", within(TMPDIR="FOLDER/plan.yaml"), 0, ALL_WELL, BOTH, ("strace",)),
    fault(
        "TMPDIR with blanks, quotes and letters", odd_tmp, 0, ALL_WELL, {**BOTH, "py-spy": "ok"}, ("strace", "py-spy")
    ),
    fault("no LANG", within(WORDS, LANG=None, LC_ALL=None, LC_CTYPE=None), 0, ALL_WELL, BOTH, ("strace",)),
    fault(
        "LC_ALL=C, and no UTF-8",
        within(WORDS, LC_ALL="C", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0"),
        0,
        ALL_WELL,
        BOTH,
        ("strace",),
    ),
    fault("no PATH", within(("/bin/sh", "-c", ":"), PATH=None), 0, ALL_WELL, BOTH, ("strace",)),
    fault("an empty PATH", within(("/bin/sh", "-c", ":"), PATH=""), (0, 4), "strace|ok", {"timing": "ok"}),
    fault(
        "an empty PATH, a program by its name",
        within(("sh", "-c", ":"), PATH=""),
        127,
        "sh: command not found\n.*PATH",
        report=False,
    ),
    fault(
        "the directory was removed",
        lambda place: shelled(place, 'mkdir gone && cd gone && rmdir ../gone && exec "$@"', "true"),
        126,
        "directory . can't be found\n.*was removed\n.*cd to one",
        report=False,
    ),
)


# ---------------------------------------------------------------- /proc, clocks, numbers


def apart(line: str, *target: str | Path, collectors: Iterable[str] = TRACED) -> Callable[[Place], Result]:
    """In a mount namespace of its own, after that line."""
    return lambda place: shelled(
        place,
        f'exec unshare --mount sh -c \'{line} && exec "$@"\' sh "$@"',
        *(target or ("true",)),
        collectors=collectors,
    )


CLOCK = Path(__file__).with_name("clock.c")


def jumping(place: Place) -> Result:
    library = place.folder / "clock.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, CLOCK], check=True, capture_output=True)
    plan = planned(place, TIMING, PY_SPY, STRACE, "{use: monitor}")
    return place.profrun(plan, "--", *python(place, BUSY), LD_PRELOAD=str(library))


def steady(_: Place, result: Result) -> Iterator[str]:
    """Durations are those of a clock that does not jump, and none is negative."""
    for record in result.summary["passes"]:
        if not 0.3 <= record["wall_s"] < LIMIT_S:
            yield f"{record['id']} took {record['wall_s']} s"
    if not 0 < result.summary["run"]["duration_s"] < 10 * LIMIT_S:
        yield f"the run took {result.summary['run']['duration_s']} s"
    for capture in result.summary["captures"]:
        if capture["flush_s"] is not None and not 0 <= capture["flush_s"] < LIMIT_S:
            yield f"{capture['id']} flushed for {capture['flush_s']} s"


SEQUEL = """
import os, subprocess, sys, time
profrun = sys.argv[1:]
def begin(seconds, at=None):
    if at: open("/proc/sys/kernel/ns_last_pid", "w").write(str(at - 1))
    return subprocess.Popen(["sleep", seconds])
first = begin("600")
running = subprocess.Popen([*profrun, "--pid", str(first.pid), "--duration", "1s"])
while not os.path.exists("second"): time.sleep(0.01)
first.kill(); first.wait()
stranger = begin("601", first.pid)
open("again", "w").close()
code = running.wait()
print("stranger", stranger.pid == first.pid, stranger.poll() is None, file=sys.stderr)
stranger.kill(); stranger.wait()
sys.exit(code)
"""


WAITS = """
import os, time
from orchestrator import runner
keep = runner._keep_so_far
def patched(state):
    keep(state)
    runner._keep_so_far = keep
    open("second", "w").close()
    while not os.path.exists("again"): time.sleep(0.01)
runner._keep_so_far = patched
"""


def reused(place: Place) -> Result:
    """In a namespace of process numbers: between two passes the process ends, and another one gets its number."""
    module = with_patch(place, WAITS)
    (place.folder / "sequel.py").write_text(SEQUEL)
    plan = planned(place, STRACE, "{use: strace, mode: trace}")
    words = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "sequel.py"]
    done = subprocess.run(
        [*words, sys.executable, "-m", module, plan],
        cwd=place.folder,
        env=place.env(),
        text=True,
        capture_output=True,
        timeout=LIMIT_S,
    )
    assert "stranger True True" in done.stderr, done.stderr
    said = "\n".join(line for line in done.stderr.splitlines() if not line.startswith("stranger"))
    return Result(done.returncode, done.stdout, said, place.folder)


CLOCKS = (
    fault(
        "the wall clock jumps",
        jumping,
        0,
        ALL_WELL,
        {**BOTH, "py-spy": "ok", "monitor": ("ok", "empty")},
        ("strace", "py-spy", "cc"),
        also=steady,
    ),
)

PROC = (
    fault(
        "/proc hides others' processes", apart("mount -t proc -o hidepid=2 proc /proc"), 0, ALL_WELL, BOTH, ("strace",)
    ),
    fault(
        "no /proc", apart("mount -t tmpfs none /proc"), 3, "there is no /proc here\n.*\n.*mount -t proc", report=False
    ),
    fault(
        "the process's number is another's in the second pass",
        reused,
        0,
        "had ended before this pass",
        needs=("strace",),
    ),
)


# ---------------------------------------------------------------- limits, streams, others


def limited(limit: str, *target: str, collectors: Iterable[str] = TRACED) -> Callable[[Place], Result]:
    return lambda place: shelled(place, f'ulimit {limit} && exec "$@"', *(target or ("true",)), collectors=collectors)


def redirected(how: str) -> Callable[[Place], Result]:
    return lambda place: shelled(
        place, f'exec "$@" {how}', "sh", "-c", "cat; echo printed; echo err >&2", collectors=TRACED
    )


def ten_at_once(place: Place) -> Result:
    plan = planned(place)
    with ThreadPoolExecutor(10) as pool:
        runs = list(pool.map(lambda _: place.profrun(plan, "--", "sh", "-c", "echo printed"), range(10)))
    folders = {run.stdout.splitlines()[-1] for run in runs}
    assert [run.code for run in runs] == [0] * 10, runs
    reports = place.folder / "reports"
    there = {f"reports/{path.name}" for path in reports.iterdir()}
    assert len(folders) == 10 and there == {*folders, LATEST, "reports/history.sqlite"}, folders
    assert f"reports/{(reports / 'latest').readlink()}" in folders
    return runs[-1]


TERMINAL = """
import os, pty, select, sys
pid, fd = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
while not os.path.exists("up"):
    if select.select([fd], [], [], 0.05)[0]:
        os.read(fd, 4096)
os.close(fd)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
sys.exit(code if code >= 0 else 128 - code)
"""


def terminal_goes(place: Place) -> Result:
    """The window is closed in the bare pass: HUP, and nothing can be shown any more."""
    (place.folder / "terminal.py").write_text(TERMINAL)
    text = "touch up; exec sleep 600"
    result = shelled(place, f'exec {sys.executable} terminal.py "$@"', "sh", "-c", text, collectors=TRACED)
    log = (result.folder / "run.log").read_text()
    outcome = result.summary["outcome"]
    return Result(
        result.code, result.stdout, f"{log}profrun: exit {outcome['exit_code']}: {outcome['reason']}\n", place.folder
    )


OTHERS = (
    fault("16 files at most", limited("-n 16"), (0, 3, 4), "profrun: ", report=False),
    fault("files of 1 KiB at most", limited("-f 1"), (3, 4), "File too large", report=False),
    fault(
        "files of 64 KiB at most, and a target that writes more",
        limited("-f 64", "sh", "-c", "yes | head -c 200000"),
        153,
        "File size limit exceeded",
        {"timing": "target_failed"},
    ),
    fault("an address space of 400 MB", limited("-v 400000"), (3, 4), "memory", report=False),
    fault("ten runs at once", ten_at_once, 0, ALL_WELL, {"timing": "ok"}),
    fault("stdout is closed", redirected(">&-"), 0, ALL_WELL, BOTH, ("strace",)),
    fault("stderr is closed", redirected("2>&-"), 0, "", BOTH, ("strace",)),
    fault("stdout is full", redirected("> /dev/full"), 3, "stdout can't be written: No space left", report=False),
    fault(
        "the terminal goes", terminal_goes, 129, "interrupted by SIGHUP", {"timing": "cancelled", "strace": "cancelled"}
    ),
)


def may_mount() -> bool:
    """Whether disks and other things can be put into place here: root can, outside of most containers."""
    words = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return os.geteuid() == 0 and subprocess.run(words, capture_output=True).returncode == 0


FAULTS: tuple[Fault, ...] = (*DISKS, *ENVIRONMENTS, *CLOCKS, *OTHERS, *((*MOUNTED, *PROC) if may_mount() else ()))
