"""What only root may do, done for an ordinary user by the root helper through `sudo -n`: is it there, how is it asked,
how is it installed.

profrun itself never becomes root. The helper (standalone/roothelper.py, copied to HELPER, owned by root) answers a
fixed grammar and nothing else; see there."""

from __future__ import annotations

import functools
import os
import pwd
import re
import shlex
import stat
from dataclasses import replace
from pathlib import Path

from orchestrator import process
from orchestrator.machine import Permission
from orchestrator.model import Change, Hold, Reply, Run, Write
from orchestrator.standalone import roothelper

HELPER = "/usr/local/libexec/profrun-root"
SUDOERS = "/etc/sudoers.d/profrun"
HELD = "held"
"""What the command of `held` prints once the change is in force."""

_SUDO = ("sudo", "-n", HELPER)
_SUDO_LIMIT_S = 10.0
_MARGIN_S = 5.0


# ---------------------------------------------------------------- is it there


@functools.cache
def available() -> Permission:
    """Whether the helper can be used, proven by asking it for its version. Takes 10 s at most, asks for no password.

    sudo is left alone (it writes a log and may send mail) unless the helper lies there as it should."""
    if os.geteuid() == 0:
        return Permission(False, "profrun runs as root already")
    flaw = _flaw(Path(HELPER))
    if flaw:
        return Permission(False, flaw, fix())
    answer = process.ask([*_SUDO, "version"], timeout_s=_SUDO_LIMIT_S)
    if not answer.ok:
        said = _gist(answer)
        line = sudoers_line() if "tty" not in said else f"Defaults!{HELPER} !requiretty"
        return Permission(False, f"sudo does not let {_user()} call it: {said}", _add(line))
    if answer.stdout.strip() != roothelper.VERSION:
        return Permission(False, f"{HELPER} is of another version of profrun", fix())
    return Permission(True, f"the root helper {HELPER} answers")


def _flaw(helper: Path) -> str | None:
    """Why that file can't be trusted with root; None when nobody but root can change it."""
    try:
        about = helper.lstat()
        if not stat.S_ISREG(about.st_mode):
            return f"{helper} is no file"
        if about.st_uid != 0 or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"{helper} can be changed by others than root"
        loose = (folder for folder in helper.parents if _is_loose(folder))
        return next((f"{folder}, where {helper.name} lies, can be changed by anybody" for folder in loose), None)
    except FileNotFoundError:
        return f"the root helper {helper} is not installed"
    except OSError as error:
        return f"{helper} can't be looked at: {error.strerror}"


def _is_loose(folder: Path) -> bool:
    """Group `staff` may write to /usr/local on some Debians: that is for its administrator to decide."""
    about = folder.stat()
    return about.st_uid != 0 or bool(about.st_mode & stat.S_IWOTH)


def _gist(answer: process.Answer) -> str:
    lines = [line for line in (answer.stderr or answer.stdout).splitlines() if line.strip()]
    return answer.error or (lines[-1].removeprefix("sudo: ") if lines else "it said nothing")


# ---------------------------------------------------------------- how it is asked


def instead(change: Change) -> Run | None:
    """The same change through the helper; None when that is not for it.

    A `Write` becomes a command, so whoever runs it still has to read the setting back."""
    if isinstance(change, Write) and roothelper.may_write(change.path, change.text.strip()):
        return Run(
            (*_SUDO, "write", change.path, change.text.strip()), roothelper.LIMIT_S + _MARGIN_S, change.part, _REPLIES
        )
    if isinstance(change, Run) and _is_smi(change.argv[0]) and roothelper.may_ask_smi(change.argv[1:]):
        limit_s = max(change.timeout_s, roothelper.SMI_LIMIT_S + _MARGIN_S)
        argv = (*_SUDO, "smi", *change.argv[1:])
        return replace(change, argv=argv, timeout_s=limit_s, replies=(*_REPLIES, *change.replies))
    return None


def held(change: Hold) -> tuple[str, ...] | None:
    """The command that holds a change: it prints HELD and keeps it until its stdin, a pipe, is closed, on purpose or
    with the death of whoever has the other end. None when that is not for the helper.

    The kernel reads text as hexadecimal, and four bytes as a number (drivers/cpuidle: cpu_latency_qos_write)."""
    if change.path != roothelper.LATENCY or not re.fullmatch(r"(0x)?[0-9a-fA-F]{1,8}", change.text.strip()):
        return None
    microseconds = str(int(change.text, 16))
    return (*_SUDO, "hold-latency", microseconds) if re.fullmatch(roothelper.MICROSECONDS, microseconds) else None


def is_for_helper(path: str) -> bool:
    """Whether the setting is one that the helper writes."""
    return path == roothelper.LATENCY or any(re.fullmatch(known, path) for known, _ in roothelper.SETTINGS)


def _is_smi(program: str) -> bool:
    return os.path.basename(program) == "nvidia-smi"  # noqa: PTH119


_REPLIES = (
    Reply(r"profrun-root: ENOENT: (.*)", "not_available", "{0}", "ENOENT"),
    Reply(r"profrun-root: (E[A-Z0-9]+): (.*)", "refused", "{1}", "{0}"),
    Reply(r"profrun-root: refused: (.*)", "refused", "the root helper does not do that: {0}", "root helper"),
)


def place() -> None:
    """Makes the folder where all users of this machine see journals and locks; in vain where the helper is missing.
    Root makes it by itself."""
    if os.geteuid() != 0 and not os.path.lexists(roothelper.PLACE) and available().allowed:
        process.ask([*_SUDO, "place"], timeout_s=_SUDO_LIMIT_S)


# ---------------------------------------------------------------- how it is installed


def sudoers_line() -> str:
    """The line of /etc/sudoers that lets this user call the helper, and nothing else."""
    return f"{_user()} ALL=(root) NOPASSWD: {HELPER}"


def fix() -> str:
    """The one command that installs it, where the script for it is at hand; else both."""
    script = Path(__file__).parents[1] / "scripts" / "install-root-helper"
    return f"sudo {shlex.quote(str(script))}" if script.exists() else " && ".join(_commands())


def why_not() -> str | None:
    """Why the helper can't be used, and what an administrator runs once to change that; None when there is no need."""
    found = available()
    if found.allowed or found.fix is None:
        return None
    lines = _commands() if found.fix == fix() else (found.fix,)
    return "\n".join((f"{found.why}; an administrator can change that once and for all:", *(f"  {x}" for x in lines)))


def _commands() -> tuple[str, str]:
    source = Path(roothelper.__file__)
    return f"sudo install -D -o root -g root -m 0755 {shlex.quote(str(source))} {HELPER}", _add(sudoers_line())


def _add(line: str) -> str:
    return f"echo '{line}' | sudo tee -a {SUDOERS}"


def _user() -> str:
    """This user as sudoers knows them: by name where that needs no quoting, else by number."""
    number = os.getuid()
    try:
        name = pwd.getpwuid(number).pw_name
    except KeyError:
        name = ""
    return name if re.fullmatch(r"[a-z_][a-z0-9_-]*", name) else f"#{number}"
