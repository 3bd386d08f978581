#!/usr/bin/python3 -IS
"""Stand-alone, installed as /usr/local/libexec/profrun-root: the few things that profrun needs root for, and no others.

    profrun-root write PATH TEXT               a setting of SETTINGS, on the kernel's own file systems only
    profrun-root hold-latency MICROSECONDS     says "held" and keeps the latency until its stdin ends or speaks
    profrun-root smi -i UUID OPTION [VALUE]    the system's own nvidia-smi with one option of SMI_OPTIONS
    profrun-root place                         makes /run/profrun, where all users keep journals and locks
    profrun-root version

A sudoers line lets ordinary users run it, so whoever calls is taken for an attacker: every word has to fit a pattern as
a whole, no file of the caller's is read, no shell is started, nothing of the environment is used. Its time is limited,
since its caller can't kill it.

Exit status: 0 · 64 not one of the above · 69 no nvidia-smi · 71 the kernel said no (its errno on stderr: `EBUSY: ...`)
· 77 not root; that of nvidia-smi under `smi`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import stat
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

VERSION = "profrun-root 1"

_CPU = "/sys/devices/system/cpu/"
_POLICY = _CPU + "cpufreq/policy[0-9]{1,5}/"
_WORD, _SWITCH, _PERCENT, _KHZ = "[a-z][a-z_]{0,31}", "[01]", "[0-9]{1,3}", "[0-9]{1,9}"

SETTINGS = (
    (_POLICY + "scaling_governor", _WORD),
    (_POLICY + "scaling_(min|max)_freq", _KHZ),
    (_POLICY + "energy_performance_preference", _WORD + "|" + _PERCENT),
    (_POLICY + "boost", _SWITCH),
    (_CPU + "cpufreq/boost", _SWITCH),
    (_CPU + "intel_pstate/no_turbo", _SWITCH),
    (_CPU + "intel_pstate/(min|max)_perf_pct", _PERCENT),
    (_CPU + "cpu[0-9]{1,5}/cpuidle/state[0-9]{1,2}/disable", _SWITCH),
    (_CPU + "smt/control", "on|off"),
    ("/proc/sys/vm/drop_caches", "[123]"),
)
"""Pattern of a path, pattern of what may be written there."""

_UUID = "GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_TWO_MHZ = "[0-9]{1,5},[0-9]{1,5}"
SMI_OPTIONS = {
    "-pm": _SWITCH,
    "-lgc": _TWO_MHZ,
    "-rgc": None,
    "-lmc": _TWO_MHZ,
    "-rmc": None,
    "-ac": _TWO_MHZ,
    "-rac": None,
}
"""Each option with the pattern of its value; None: it takes none."""

MICROSECONDS = "[0-9]{1,9}"
LATENCY = "/dev/cpu_dma_latency"
LIMIT_S, SMI_LIMIT_S = 60, 20
"""How long a call may take: a command of the caller's must wait longer, lest something is changed behind its back."""

_SMI = ("/usr/bin/nvidia-smi", "/usr/lib/wsl/lib/nvidia-smi")
PLACE = "/run/profrun"
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_MISC_MAJOR = 10
_USAGE, _UNAVAILABLE, _OS_ERROR, _NO_PERMISSION = 64, 69, 71, 77


class Refused(Exception):
    """The call is not one that this program answers."""


def _fits(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text) is not None


def may_write(path: str, text: str) -> bool:
    """Whether this text may be written to this path."""
    return any(_fits(known, path) and _fits(value, text) for known, value in SETTINGS)


def may_ask_smi(words: Sequence[str]) -> bool:
    """Whether these are the words `-i UUID OPTION [VALUE]`."""
    if len(words) < 3 or words[0] != "-i" or not _fits(_UUID, words[1]) or words[2] not in SMI_OPTIONS:
        return False
    value = SMI_OPTIONS[words[2]]
    return len(words) == 3 if value is None else len(words) == 4 and _fits(value, words[3])


# ---------------------------------------------------------------- what it does


def write(path: str, text: str) -> None:
    if not may_write(path, text):
        raise Refused("this text to this path")
    if os.path.realpath(path) != path:
        raise Refused("a path through a link")
    setting = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if file_system(setting) not in ("sysfs", "proc"):
        raise Refused("a file that is no setting of the kernel's")
    data = text.encode("ascii")
    if os.write(setting, data) != len(data):
        raise OSError(errno.EIO, "only a part was taken")


def file_system(descriptor: int) -> str | None:
    """The type of the file system that an open file lies on; None when that can't be told.

    From /proc/self/mountinfo (proc(5)): `ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [FIELD]... - TYPE SOURCE ...`."""
    device = os.fstat(descriptor).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            if line.split()[2] == number:
                return line.rpartition(" - ")[2].split()[0]
    return None


def hold_latency(microseconds: str) -> None:
    """The kernel's QoS request lives as long as the file is open (Documentation/power/pm_qos_interface.rst)."""
    if not _fits(MICROSECONDS, microseconds):
        raise Refused("this latency")
    request = os.open(LATENCY, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    about = os.fstat(request)
    if not stat.S_ISCHR(about.st_mode) or os.major(about.st_rdev) != _MISC_MAJOR:
        raise Refused("a file that is no device of the kernel's")
    os.write(request, struct.pack("=i", int(microseconds)))
    print("held", flush=True)
    signal.alarm(0)
    os.read(0, 1)


def smi(*words: str) -> None:
    if not may_ask_smi(words):
        raise Refused("this of nvidia-smi")
    program = next((path for path in _SMI if os.path.exists(path)), None)
    if program is None:
        sys.stderr.write("profrun-root: ENOENT: no nvidia-smi at " + " or ".join(_SMI) + "\n")
        sys.exit(_UNAVAILABLE)
    about = os.stat(program)
    if about.st_uid != 0 or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Refused("an nvidia-smi that others than root can change")
    signal.alarm(SMI_LIMIT_S)
    os.execve(program, [program, *words], _ENVIRONMENT)


def place() -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(PLACE, 0o700)
    folder = os.open(PLACE, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if os.fstat(folder).st_uid != 0:
        raise Refused("a folder that is not root's")
    os.fchmod(folder, 0o1777)


def version() -> None:
    print(VERSION)


VERBS: dict[str, tuple[Callable[..., None], int, int]] = {
    "write": (write, 2, 2),
    "hold-latency": (hold_latency, 1, 1),
    "smi": (smi, 3, 4),
    "place": (place, 0, 0),
    "version": (version, 0, 0),
}
"""Each verb with the least and the most words that follow it."""


# ---------------------------------------------------------------- the call


def main(words: Sequence[str]) -> int:
    """Answers one call; gives its exit status."""
    try:
        if not words or words[0] not in VERBS:
            raise Refused("this verb")
        verb, least, most = VERBS[words[0]]
        if not least <= len(words) - 1 <= most:
            raise Refused("this number of words")
        verb(*words[1:])
    except Refused as refusal:
        sys.stderr.write(f"profrun-root: refused: {refusal}\n")
        return _USAGE
    except OSError as error:
        number = error.errno or errno.EIO
        sys.stderr.write(f"profrun-root: {errno.errorcode.get(number, number)}: {os.strerror(number)}\n")
        return _OS_ERROR
    return 0


def settle() -> None:
    """Makes the process what it should be, whatever its caller has left it: the alarm outlives an exec."""
    os.umask(0o022)
    os.chdir("/")
    os.environ.clear()
    os.environ.update(_ENVIRONMENT)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (signal.SIGALRM, signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.alarm(LIMIT_S)


if __name__ == "__main__":
    if os.geteuid() != 0:
        sys.stderr.write("profrun-root: EPERM: it is called as sudo -n /usr/local/libexec/profrun-root\n")
        sys.exit(_NO_PERMISSION)
    settle()
    sys.exit(main(sys.argv[1:]))
