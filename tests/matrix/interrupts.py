"""Faults of profrun itself: INT, TERM, HUP and KILL, once and twice, in each of its stages."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable

from cli import Result
from matrix.running import (
    NSYS,
    PY_SPY,
    STRACE,
    TIMING,
    at_write,
    fault,
    nsys,
    patched,
    python,
    ran,
    signals,
)
from matrix.words import Fault, Place, alive
from waiting import unmistakable, until

INT, TERM, HUP, KILL = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL
HANGS = f"exec sleep {unmistakable(421)}"
OURS = "$(cat profrun.pid)"
"""profrun's pid, as the target has noted it."""
NOTES = "echo $PPID > profrun.pid"
STEPS = (
    "[{use: shell, run: [sh, -c, 'echo on1 >> log'], undo: [sh, -c, 'echo off1 >> log']},"
    " {use: shell, run: [sh, -c, 'echo on2 >> log; RUN'], undo: [sh, -c, 'UNDO; echo off2 >> log']}]"
)
BUSY = "import time\nend = time.monotonic() + 0.3\nwhile time.monotonic() < end: sum(range(1000))\n"


def steps(run: str = "true", undo: str = "true") -> str:
    """Two environment steps that note what they do, and what the second does as well."""
    return STEPS.replace("RUN", run).replace("UNDO", undo)


def put_back(place: Place, _: Result) -> list[str]:
    log = (place.folder / "log").read_text().split()
    return [] if log == ["on1", "on2", "off2", "off1"] else [f"the steps did {log}"]


def not_started(place: Place, _: Result) -> list[str]:
    return ["the target was started"] if (place.folder / "started").exists() else []


# ---------------------------------------------------------------- before and around the passes


def while_probing(*numbers: int) -> Callable[[Place], Result]:
    """A tool that is asked for its version signals who asks."""

    def inject(place: Place) -> Result:
        nsys(place, signals(*numbers), "")
        return ran(place, "touch", "started", collectors=(TIMING, "{use: nsys}"))

    return inject


def in_step(*numbers: int) -> Callable[[Place], Result]:
    """The second step's command signals who has started it."""
    return lambda place: ran(place, "touch", "started", environment=steps(run=signals(*numbers)))


def in_undo(*numbers: int) -> Callable[[Place], Result]:
    """The same where the machine is put back; not again when somebody else does that."""
    return lambda place: ran(
        place, "true", environment=steps(undo=f"[ -e once ] || {{ touch once; {signals(*numbers)}; }}")
    )


def both(*checks: Callable[[Place, Result], list[str]]) -> Callable[[Place, Result], list[str]]:
    return lambda place, result: [wrong for check in checks for wrong in check(place, result)]


AROUND = (
    fault(
        "INT while tools are asked for their versions",
        while_probing(INT),
        130,
        "interrupted",
        report=False,
        also=not_started,
    ),
    fault(
        "TERM twice while tools are asked for their versions",
        while_probing(TERM, TERM),
        143,
        "interrupted",
        report=False,
        also=not_started,
    ),
    fault(
        "HUP while the environment is applied",
        in_step(HUP),
        129,
        "interrupted by SIGHUP",
        {"timing": "cancelled"},
        also=both(put_back, not_started),
    ),
    fault(
        "INT twice while the environment is applied",
        in_step(INT, INT),
        130,
        "interrupted by SIGINT",
        {"timing": "cancelled"},
        also=both(put_back, not_started),
    ),
    fault(
        "TERM twice while the machine is put back",
        in_undo(TERM, TERM),
        143,
        "interrupted by SIGTERM",
        {"timing": "ok"},
        also=put_back,
    ),
)


# ---------------------------------------------------------------- in a pass


def in_pass(pass_id: str, *numbers: int, then: str = HANGS, **more: str) -> Callable[..., Result]:
    """The target signals profrun from that pass, and hangs."""
    text = f'[ "$0" != p01 ] || {NOTES}; [ "$0" != {pass_id} ] || {{ {signals(*numbers, to=OURS)}; {then}; }}'

    def inject(place: Place, *collectors: str) -> Result:
        return ran(place, "sh", "-c", text, "{pass}", collectors=collectors, environment=steps(), **more)

    return inject


def in_python(number: int) -> Callable[[Place], Result]:
    """The same of a Python program that has been looked at for a while."""
    code = (
        "import os, sys, signal\nsignal.signal(2, signal.SIG_DFL)\n"
        "if sys.argv[1] == 'p01': open('profrun.pid', 'w').write(str(os.getppid()))\n"
        f"{BUSY}if sys.argv[1] == 'p02': os.kill(int(open('profrun.pid').read()), {int(number)}); signal.pause()\n"
    )
    return lambda place: ran(
        place, *python(place, code), "{pass}", collectors=(TIMING, PY_SPY, STRACE), environment=steps()
    )


def in_flush(*numbers: int) -> Callable[[Place], Result]:
    """A tool that signals profrun when its target has ended, and takes its time to write."""
    writes = f'"$@"; trap "" INT TERM; {signals(*numbers, to=OURS)}; sleep 0.5; echo data > "$out.nsys-rep"'

    def inject(place: Place) -> Result:
        nsys(place, ":", writes)
        return ran(
            place,
            "sh",
            "-c",
            f'[ "$0" != p01 ] || {NOTES}',
            "{pass}",
            collectors=(TIMING, STRACE, "{use: nsys, flush: 1m}"),
            environment=steps(),
        )

    return inject


DEAF = f"trap '' INT TERM; {signals(INT, INT, to=OURS)}; while :; do sleep 0.1; done"
LATER = {"strace": "cancelled"}

PASSES = (
    fault(
        "INT in the bare pass",
        lambda place: in_pass("p01", INT)(place, TIMING, STRACE),
        130,
        "interrupted by SIGINT",
        {"timing": "cancelled", **LATER},
        also=put_back,
    ),
    fault(
        "HUP in the bare pass",
        lambda place: in_pass("p01", HUP)(place, TIMING, STRACE),
        129,
        "interrupted by SIGHUP",
        {"timing": "cancelled", **LATER},
        also=put_back,
    ),
    fault(
        "INT twice in the bare pass of a deaf target",
        lambda place: ran(place, "sh", "-c", f"{NOTES}; {DEAF}", collectors=(TIMING, STRACE), environment=steps()),
        130,
        "interrupted by SIGINT",
        {"timing": "cancelled", **LATER},
        also=put_back,
    ),
    fault(
        "INT in the py-spy pass",
        in_python(INT),
        130,
        "interrupted by SIGINT",
        {"timing": "ok", "py-spy": "degraded", **LATER},
        ("py-spy",),
        also=put_back,
    ),
    fault(
        "TERM in the strace pass",
        lambda place: in_pass("p02", TERM)(place, TIMING, STRACE, NSYS),
        143,
        "interrupted by SIGTERM",
        {"timing": "ok", "strace": "degraded", "nsys": "cancelled"},
        ("strace",),
        also=put_back,
    ),
    fault(
        "HUP in the nsys pass",
        lambda place: in_pass("p02", HUP)(place, TIMING, NSYS, STRACE),
        129,
        "interrupted by SIGHUP",
        {"timing": "ok", "nsys": ("degraded", "empty"), **LATER},
        ("nsys",),
        also=put_back,
    ),
    fault(
        "INT while nsys writes",
        in_flush(INT),
        130,
        "interrupted by SIGINT",
        {"timing": "ok", "strace": "ok", "nsys": "unreadable"},
        ("strace",),
        also=put_back,
    ),
    fault(
        "INT twice while nsys writes",
        in_flush(INT, INT),
        130,
        "interrupted by SIGINT",
        {"timing": "ok", "strace": "ok", "nsys": ("cancelled", "unreadable")},
        ("strace",),
        also=put_back,
    ),
)


# ---------------------------------------------------------------- after the passes


def at_file(name: str, *numbers: int) -> Callable[[Place], Result]:
    """profrun gets the signals when it is about to write that file of its report."""
    sends = "; ".join(f"os.kill(os.getpid(), {int(number)}); time.sleep(0.3)" for number in numbers)

    def inject(place: Place) -> Result:
        return patched(
            place,
            at_write(name, sends),
            "echo",
            "printed",
            collectors=(TIMING, STRACE),
            environment=steps(),
            report=PAGE,
        )

    return inject


def can_be_rebuilt(place: Place, _: Result) -> list[str]:
    """What the user is told to do then."""
    done = place.profrun("report", "reports/latest")
    return [] if done.code == 0 and done.statuses() == GOOD else [f"rebuilding: {done.stderr}"]


PAGE = "{formats: [html]}"
GOOD = {"timing": "ok", "strace": "ok"}

AFTER = (
    fault(
        "INT when the report is begun",
        at_file("plan.yaml", INT),
        130,
        "interrupted by SIGINT",
        {"timing": "cancelled", **LATER},
        ("strace",),
    ),
    fault(
        "INT while tables are written",
        at_file("machine.json", INT),
        0,
        "being finished",
        GOOD,
        ("strace",),
        also=put_back,
    ),
    fault(
        "TERM twice while tables are written",
        at_file("machine.json", TERM, TERM),
        143,
        "not finished: profrun report .*\n.*interrupted by",
        needs=("strace",),
        report=False,
        also=both(put_back, can_be_rebuilt),
    ),
    fault(
        "HUP twice while the page is made",
        at_file("index.html", HUP, HUP),
        129,
        "not finished: profrun report .*\n.*interrupted by",
        needs=("strace",),
        report=False,
        also=both(put_back, can_be_rebuilt),
    ),
)


# ---------------------------------------------------------------- killed


def killed(inject: Callable[..., Result], *collectors: str, cleans: bool = True) -> Callable[[Place], Result]:
    """The keeper tidies up after a profrun that was killed; a report is made of what there is."""

    def whole(place: Place) -> Result:
        result = inject(place, *collectors)
        until(lambda: not alive(place))
        (report,) = (place.folder / "reports").glob("test-*")
        log = (report / "run.log").read_text() if (report / "run.log").exists() else ""
        if cleans:
            assert "its keeper" in log, f"run.log: {log}"
        for scratch in place.tmp.glob("profrun-*"):  # what the user was told of
            assert str(scratch) in log, f"nobody tells of {scratch}: {log}"
            shutil.rmtree(scratch)
        return result

    return whole


def rebuilt(inject: Callable[[Place], Result]) -> Callable[[Place], Result]:
    def whole(place: Place) -> Result:
        result = inject(place)
        done = place.profrun("report", "reports/latest")
        assert done.code == 0, done.stderr
        return Result(result.code, done.stdout, result.stderr + done.stderr, place.folder)

    return whole


def restored_once(place: Place, result: Result) -> list[str]:
    left = place.profrun("env", "restore")
    return put_back(place, result) + ([f"env restore: {left.stdout}{left.stderr}"] if left.code else [])


DEAD = (
    fault("KILL while the environment is applied", killed(in_step(KILL)), -9, "", report=False, also=put_back),
    fault(
        "KILL in the bare pass", killed(in_pass("p01", KILL), TIMING, STRACE), -9, "", report=False, also=restored_once
    ),
    fault(
        "KILL in the py-spy pass",
        rebuilt(killed(in_python(KILL))),
        -9,
        "rebuilt; the run had ended in exit 137",
        {"timing": "ok"},
        ("py-spy",),
        also=put_back,
    ),
    fault(
        "KILL in the strace pass",
        rebuilt(killed(in_pass("p02", KILL), TIMING, STRACE)),
        -9,
        "rebuilt; the run had ended in exit 137",
        {"timing": "ok"},
        ("strace",),
        also=put_back,
    ),
    fault(
        "KILL in the nsys pass",
        rebuilt(killed(in_pass("p03", KILL), TIMING, STRACE, NSYS)),
        -9,
        "rebuilt; the run had ended in exit 137",
        {"timing": "ok", "strace": "ok"},
        ("strace", "nsys"),
        also=put_back,
    ),
    fault(
        "KILL while nsys writes",
        rebuilt(killed(in_flush(KILL))),
        -9,
        "rebuilt; the run had ended in exit 137",
        {"timing": "ok", "strace": "ok"},
        ("strace",),
        also=put_back,
    ),
    fault(
        "KILL while the machine is put back",
        rebuilt(killed(in_undo(KILL))),
        -9,
        "rebuilt; the run had ended in exit 137",
        {"timing": "ok"},
        also=lambda place, result: [] if (place.folder / "log").read_text().split()[-1] == "off1" else ["not put back"],
    ),
    fault(
        "KILL while tables are written",
        rebuilt(killed(at_file("machine.json", KILL), cleans=False)),
        -9,
        "rebuilt",
        GOOD,
        ("strace",),
        also=put_back,
    ),
)

FAULTS: tuple[Fault, ...] = (*AROUND, *PASSES, *AFTER, *DEAD)
