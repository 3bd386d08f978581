"""Faults of the target: how it starts, what it does to itself and around itself, and how it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator

from cli import Result, command, script
from matrix.running import NSYS, PY_SPY, STRACE, TIMING, fault, kept, planned, python, ran
from matrix.words import Fault, Place
from waiting import processes, unmistakable, until

ALL_WELL = "(?m)^profrun: ok$"
BOTH = {"timing": "ok", "strace": "ok"}
TRACED = (TIMING, STRACE)
WATCHED = (PY_SPY, STRACE)
SEEN = {"py-spy": "ok", "strace": "ok"}
BUSY = "import time; end = time.monotonic() + 0.2\nwhile time.monotonic() < end: sum(range(1000))\n"
"""Long enough for a sampling profiler to see something."""


def shell(text: str, *collectors: str, **more: str) -> Callable[[Place], Result]:
    """A target that is a line for sh, whose $0 is the pass."""
    return lambda place: ran(place, "sh", "-c", text, "{pass}", collectors=collectors, **more)


def program(code: str, *collectors: str, **more: str) -> Callable[[Place], Result]:
    """A target that is a Python program."""
    return lambda place: ran(place, *python(place, code), collectors=collectors, **more)


# ---------------------------------------------------------------- what it starts

BECOMES = """
import os, sys
if len(sys.argv) == 1:
    os.execvp("sh", ["sh", "-c", 'exec "$0" "$1" again', sys.executable, __file__])
""" + BUSY.replace("0.2", "0.8")

QUIET = "import os, signal\nsignal.signal(2, signal.SIG_DFL)\n"
"""A Python that dies of SIGINT without a word."""
BOMB = QUIET + "for _ in range(200): os.fork() or signal.pause()\nsignal.pause()\n"

ZOMBIES = "import os\nfor _ in range(20): os.fork() or os._exit(1)\nos.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)\n"

DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3): os.dup2(null, fd)
    open(f"daemon.{os.getpid()}", "w").close()
    os.execlp("sleep", "sleep", sys.argv[1])
os.wait()
while not any(name.startswith("daemon.") for name in os.listdir()): time.sleep(0.01)
"""


def daemonising(*collectors: str, **more: str) -> Callable[[Place], Result]:
    """The daemon would live for ever; it is the row that ends it in the end."""

    def inject(place: Place) -> Result:
        sleep = unmistakable(411)
        try:
            return ran(place, *python(place, DAEMON), sleep, collectors=collectors, **more)
        finally:
            for file in place.folder.glob("daemon.*"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(file.suffix[1:]), signal.SIGKILL)
            until(lambda: not processes(f"^sleep {sleep}"))

    return inject


def named(result: Result, kind: str) -> Iterator[str]:
    """The processes that a bare run has left running, or that were ended after it, are named in the report."""
    found = [one["argv"] for one in result.summary["passes"][0]["run"][kind]]
    if not any(argv[:1] == ["sleep"] for argv in found):
        yield f"{kind}: {found}"


STARTING = (
    fault(
        "300 short children",
        shell("for i in $(seq 300); do :; done; for i in $(seq 100); do (:) & done; wait", *TRACED),
        0,
        ALL_WELL,
        BOTH,
        ("strace",),
    ),
    fault(
        "a daemon is left, under strace and nsys",
        daemonising(TIMING, STRACE, NSYS),
        0,
        r"still running.*sleep",
        {**BOTH, "nsys": "ok"},
        ("strace", "nsys"),
        also=lambda place, result: named(result, "leftovers"),
    ),
    fault(
        "a daemon is left, the plan ends it",
        daemonising(*TRACED, leftovers="end"),
        0,
        ALL_WELL,
        BOTH,
        ("strace",),
        also=lambda place, result: named(result, "killed"),
    ),
    fault(
        "python becomes sh becomes python",
        program(BECOMES, PY_SPY),
        0,
        ALL_WELL,
        {"py-spy": ("ok", "degraded")},
        ("py-spy",),
    ),
    fault(
        "a bomb of forks, stopped at 200",
        program(BOMB, target="{timeout: 2s}"),
        124,
        "ended by its time-out",
        {"timing": "timed_out"},
    ),
    fault("20 zombies are left", program(ZOMBIES, *TRACED), 0, ALL_WELL, BOTH, ("strace",)),
    fault(
        "a session and a terminal of its own",
        program("import pty; pty.spawn(['sh', '-c', 'tty; setsid true'])", *TRACED),
        0,
        ALL_WELL,
        BOTH,
        ("strace",),
        also=lambda place, result: kept(result, "/dev/pts/"),
    ),
)


# ---------------------------------------------------------------- how it ends

DEADLY = "TERM KILL SEGV ABRT BUS FPE ILL PIPE HUP QUIT USR1 ALRM XCPU SYS TRAP"
THREAD = """
import threading
threading.excepthook = lambda about: print(about.exc_type.__name__)
threading.Thread(target=lambda: 1 / 0).start()
"""
CODES = (1, 2, 42, 125, 126, 127, 255)


def deaf(*numbers: int) -> str:
    ignores = (f"signal.signal({int(number)}, signal.SIG_IGN)" for number in numbers)
    return QUIET + "; ".join((*ignores, "signal.pause()"))


def in_turn(first: int, *ways: str) -> Fault:
    """Runs that each end in another way, by a line for sh."""
    cases = " ".join(f"p{n:02}) {way};;" for n, way in enumerate(ways, 1))

    def inject(place: Place) -> Result:
        plan = planned(place, f"{{use: timing, warmup: 0, repeats: {len(ways)}}}")
        return place.profrun(plan, "--keep-going", "--", "sh", "-c", f"case $0 in {cases} esac", "{pass}")

    return fault(
        f"{len(ways)} ends: {ways[0]} ... {ways[-1]}",
        inject,
        first,
        "the target failed",
        also=lambda _, r: as_told(r, ways),
    )


def as_told(result: Result, ways: Iterable[str]) -> Iterator[str]:
    """Each run's end is the one that the target chose."""
    for record, way in zip(result.summary["passes"], ways, strict=True):
        ended, word = record["run"]["exit"], way.split()[1].lstrip("-")
        wanted = (int(word), None) if word.isdigit() else (None, int(getattr(signal, f"SIG{word}")))
        if (ended["code"], ended["signal"]) != wanted:
            yield f"{way}: {ended}"


ENDING = (
    in_turn(143, *(f"kill -{name} $$" for name in DEADLY.split())),
    in_turn(1, *(f"exit {code}" for code in CODES)),
    fault(
        "killed by SIGKILL amid three collectors",
        shell("kill -KILL $$", TIMING, *WATCHED),
        137,
        "killed by SIGKILL",
        {"timing": "target_failed", "py-spy": "cancelled", "strace": "cancelled"},
    ),
    fault(
        "crashes in a thread",
        program("import ctypes, threading\nthreading.Thread(target=ctypes.string_at, args=(0,)).start()"),
        139,
        "killed by SIGSEGV",
        {"timing": "target_failed"},
    ),
    fault(
        "an exception in a thread",
        program(THREAD + BUSY, *WATCHED),
        0,
        ALL_WELL,
        SEEN,
        ("strace", "py-spy"),
        also=lambda place, result: kept(result, "ZeroDivisionError"),
    ),
    fault(
        "os._exit amid Python",
        program(BUSY + "import os; os._exit(3)", TIMING, *WATCHED),
        3,
        "the target failed: exit 3",
        {"timing": "target_failed", "py-spy": "cancelled"},
    ),
    fault(
        "ignores SIGTERM, and a time-out",
        program(deaf(signal.SIGTERM), target="{timeout: 2s}"),
        124,
        "ended by its time-out",
        {"timing": "timed_out"},
    ),
    fault(
        "ignores SIGINT and SIGTERM, and a time-out",
        program(deaf(signal.SIGINT, signal.SIGTERM), target="{timeout: 2s}"),
        124,
        "ended by its time-out",
        {"timing": "timed_out"},
    ),
    fault(
        "stops itself, and a time-out",
        shell("kill -STOP $$", target="{timeout: 1s}"),
        124,
        "ended by its time-out",
        {"timing": "timed_out"},
    ),
    fault(
        "stops itself, and is continued",
        shell("(sleep 0.3; kill -CONT $$) & kill -STOP $$; wait; echo on", *TRACED),
        0,
        ALL_WELL,
        BOTH,
        ("strace",),
        also=lambda place, result: kept(result, "on"),
    ),
    fault(
        "is over at once",
        shell(":", TIMING, PY_SPY, STRACE),
        0,
        "no Python process was found",
        {**BOTH, "py-spy": "empty"},
        ("strace", "py-spy"),
    ),
)


# ---------------------------------------------------------------- how it starts


def file(name: str, text: str | None, mode: int = 0o755) -> Callable[[Place], Result]:
    """A target that is a file with this text, or a folder."""

    def inject(place: Place) -> Result:
        path = place.folder / name
        if text is None:
            path.mkdir()
        else:
            script(path, text).chmod(mode)
        return ran(place, f"./{name}", collectors=TRACED)

    return inject


def huge(place: Place) -> Result:
    return ran(place, "sh", "-c", ":", target="{env: {BIG: '" + "x" * (200 << 10) + "'}}")


NOT_UTF8 = "\udcff\udcfe \udce4"

BEGINNING = (
    fault(
        "is not there",
        lambda place: ran(place, "./missing"),
        127,
        "missing: no such file\n.*next: check its spelling",
        report=False,
    ),
    fault(
        "may not be executed",
        file("plain", "#!/bin/sh\n", 0o644),
        126,
        "is not executable\n.*lacks the permission",
        report=False,
    ),
    fault("is a folder", file("folder", None), 126, "folder is a directory", report=False),
    fault("is a script without a first line", file("bare", "echo run by nobody\n"), 126, "Exec format error: .*bare"),
    fault(
        "is a script of an interpreter that is not there",
        file("script", "#!/no/such/interpreter\n"),
        127,
        "No such file or directory: '/no/such/interpreter', which is to run",
    ),
    fault("an environment that is too large", huge, 126, "Argument list too long: .*sh"),
    fault(
        "bytes that are no UTF-8",
        lambda place: ran(place, "sh", "-c", 'printf "%s\\n" "$0"; printf "\\200\\n" >&2', NOT_UTF8, collectors=TRACED),
        0,
        ALL_WELL,
        BOTH,
        ("strace",),
    ),
    fault(
        "reads from a pipe that was closed",
        lambda place: ran(place, "sh", "-c", "cat; echo read", collectors=TRACED),
        0,
        ALL_WELL,
        BOTH,
        ("strace",),
        also=lambda place, result: kept(result, "read", log="p02-target/stdout.log"),
    ),
)


# ---------------------------------------------------------------- what it does to itself

MANY_BYTES = 1 << 30
PRINTS = f"""
import os
block = b'x' * ((1 << 20) - 1) + b'\\n'
for _ in range({MANY_BYTES >> 20}):
    assert os.write(1, block) == len(block)
"""
MOST_RSS_BYTES = 512 << 20
MEASURED = """
import os, resource, subprocess, sys
code = subprocess.call(sys.argv[2:])
with open(sys.argv[1], "w") as file:
    file.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10))
sys.exit(code)
"""
"""Runs a command and notes its largest size: that of a child of the tests themselves begins with theirs."""


def printing(place: Place) -> Result:
    """1 GB on stdout, which is read but not kept here. Of profrun's memory is said when it was much."""
    words = command(planned(place), "--", *python(place, PRINTS))
    words = [sys.executable, "-c", MEASURED, str(place.folder / "rss"), *words]
    with (place.folder / "stderr").open("wb+") as err:
        running = subprocess.Popen(words, cwd=place.folder, env=place.env(), stdout=subprocess.PIPE, stderr=err)
        assert running.stdout is not None
        last, count = b"", 0
        while block := running.stdout.read(1 << 20):
            last, count = (last + block)[-4096:], count + len(block)
        running.wait()
        err.seek(0)
        said = err.read().decode()
    result = Result(running.returncode, last.rpartition(b"x\n")[2].decode(), said, place.folder)
    log = result.folder / "raw/p01-target/stdout.log"
    (place.folder / "sizes").write_text(f"{count} {log.stat().st_size} {(place.folder / 'rss').read_text()}")
    log.unlink()
    return result


def bounded(place: Place, _: Result) -> Iterator[str]:
    passed_on, in_file, rss = map(int, (place.folder / "sizes").read_text().split())
    if in_file != MANY_BYTES or passed_on < MANY_BYTES:
        yield f"{passed_on} bytes were passed on, {in_file} kept"
    if rss > MOST_RSS_BYTES:
        yield f"profrun took {rss >> 20} MiB"


def prctl(*words: str) -> str:
    return f"import ctypes; ctypes.CDLL(None).prctl({', '.join(words)})\n{BUSY}print('done')"


def done(place: Place, result: Result) -> list[str]:
    return kept(result, "done")


CLOSES = "import os\nprint('before', flush=True)\n{}\n"
ODD = prctl("15", "b') R 1 (\\n'")
LIMITS = "import resource as r\nr.setrlimit(r.RLIMIT_NOFILE, (16, 16)); r.setrlimit(r.RLIMIT_NPROC, (1, 1))\n"

BEHAVING = (
    fault("prints 1 GB", printing, 0, ALL_WELL, {"timing": "ok"}, also=bounded),
    fault(
        "closes its stdout and stderr",
        program(CLOSES.format("os.close(1); os.close(2); " + BUSY), *WATCHED),
        0,
        ALL_WELL,
        SEEN,
        ("strace", "py-spy"),
        also=lambda place, result: kept(result, "before"),
    ),
    fault(
        "closes all descriptors",
        program(CLOSES.format("os.closerange(0, 65536); os._exit(0)"), *TRACED),
        0,
        ALL_WELL,
        BOTH,
        ("strace",),
        also=lambda place, result: kept(result, "before"),
    ),
    fault(
        "changes directory",
        program("import os; os.chdir('/')\n" + BUSY + "print('done')", *WATCHED),
        0,
        ALL_WELL,
        SEEN,
        ("strace", "py-spy"),
        also=done,
    ),
    fault(
        "has an odd name",
        program(ODD, TIMING, PY_SPY, STRACE, "{use: monitor}"),
        0,
        ALL_WELL,
        SEEN,
        ("strace", "py-spy"),
        also=done,
    ),
    fault("may not be dumped", program(prctl("4", "0"), *WATCHED), 0, ALL_WELL, SEEN, ("strace", "py-spy"), also=done),
    fault(
        "takes limits and a mask of its own",
        program(LIMITS + "import os; os.umask(0o777)\n" + BUSY + "print('done')", *WATCHED),
        0,
        ALL_WELL,
        SEEN,
        ("strace", "py-spy"),
        also=done,
    ),
)

AS_ROOT = (
    fault(
        "becomes another user",
        program("import os; os.setuid(65534)\n" + BUSY + "print('done')", *WATCHED),
        0,
        ALL_WELL,
        SEEN,
        ("strace", "py-spy"),
        also=done,
    ),
    fault(
        "another user that hangs, and a time-out",
        program(
            QUIET + "os.setuid(65534); signal.pause()",
            target="{timeout: 2s}",
        ),
        124,
        "ended by its time-out",
        {"timing": "timed_out"},
    ),
)


# ---------------------------------------------------------------- what it does around itself


def in_own_folder(place: Place) -> Result:
    """A program in a folder of its own, both of which it deletes: the passes after that have nothing to start."""
    work = place.folder / "work"
    work.mkdir()
    (work / "train.py").write_text("import os, shutil\nshutil.rmtree(os.getcwd())\nprint('done')\n")
    plan = planned(place, TIMING, STRACE, target="{cwd: work}")
    return place.profrun(plan, "--", sys.executable, "train.py")


def rebuilt(place: Place, result: Result) -> list[str]:
    again = place.profrun("report", result.folder)
    return [] if again.code == 0 else [f"it can't be rebuilt: {again.stderr}"]


AROUND = (
    fault(
        "deletes its files and its directory",
        in_own_folder,
        4,
        "not there any more: .*work",
        {"timing": "ok", "strace": "target_failed"},
        ("strace",),
        also=done,
    ),
    fault(
        "deletes the report in the first pass",
        shell("[ $0 = p02 ] || rm -rf reports/*", *TRACED),
        0,
        "was deleted while the run went on",
        BOTH,
        ("strace",),
        also=lambda place, result: rebuilt(place, result),
    ),
    fault(
        "deletes the raw files of the pass before",
        shell("[ $0 != p03 ] || rm -rf reports/latest/raw/*strace", TIMING, STRACE, "{use: strace, mode: trace}"),
        4,
        "summary.txt was deleted since the pass",
        {"timing": "ok"},
        ("strace",),
    ),
)

FAULTS: tuple[Fault, ...] = (
    *STARTING,
    *ENDING,
    *BEGINNING,
    *BEHAVING,
    *AROUND,
    *(AS_ROOT if os.geteuid() == 0 else ()),
)
