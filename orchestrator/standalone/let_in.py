"""Stand-alone (`PYTHON -I -S let_in.py PID FOLDER`): has a running Python load our part inside, which then waits to be
woken (inject/armed.py). PYTHON must be of the process's own version, 3.14 or later: `sys.remote_exec` wants that.

Makes FOLDER, for the user of the process alone, with a script in it that the process runs between two instructions of
its main thread. On stderr: why it could not be handed over.
"""

import contextlib
import json
import marshal
import os
import sys
import time
from pathlib import Path

_TAKEN_S = 15.0
_HOME = str(Path(__file__).resolve().parents[1] / "inject")
_SCRIPT = """\
def _let_in(home, settings):
    import sys
    if "_profrun" in sys.modules:
        return
    from importlib import util
    spec = util.spec_from_file_location("_profrun", home + "/__init__.py", submodule_search_locations=[home])
    sys.modules["_profrun"] = package = util.module_from_spec(spec)
    spec.loader.exec_module(package)
    from _profrun import boot
    boot.start(settings)
try:
    _let_in({home!r}, {settings!r})
except Exception:  # the program goes on whatever is wrong with us; nobody opens a socket then, and profrun says so
    pass
finally:
    del _let_in
"""


def main() -> int:
    pid, folder = int(sys.argv[1]), sys.argv[2]
    remote_exec = getattr(sys, "remote_exec", None)
    try:
        if remote_exec is None:
            raise OSError(0, "this Python can't run anything in another one")
        script = prepare(pid, folder)
        remote_exec(pid, script)
    except (OSError, RuntimeError) as error:
        print(f"let in: process {pid} does not let profrun's part in:", error, file=sys.stderr)
        return 1
    until = time.monotonic() + _TAKEN_S
    while not Path(folder, f"{pid}.sock").exists() and time.monotonic() < until:
        time.sleep(0.02)
    with contextlib.suppress(OSError):
        Path(script).unlink()
    return 0


def prepare(pid: int, folder: str) -> str:
    """Makes the folder with what it needs; gives the script's path. Raises OSError where the folder is another's."""
    owner = Path(f"/proc/{pid}").stat()
    with contextlib.suppress(FileExistsError):
        Path(folder).mkdir(0o700)
        if owner.st_uid != os.geteuid():
            os.chown(folder, owner.st_uid, owner.st_gid)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        about = os.fstat(fd)
        if about.st_uid != owner.st_uid or about.st_mode & 0o077:
            raise PermissionError(1, f"{folder} is not that user's alone")
        text = _SCRIPT.format(home=_HOME, settings=f"{folder}/settings")
        _write(fd, "settings", marshal.dumps({"armed": True}, 2), owner)
        _write(fd, "about.json", json.dumps({"pid": pid, "born": _born(pid)}).encode(), owner)
        _write(fd, "let_in.py", text.encode(), owner)
    finally:
        os.close(fd)
    return f"{folder}/let_in.py"


def _write(folder: int, name: str, data: bytes, owner: os.stat_result) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    try:
        os.write(fd, data)
        if owner.st_uid != os.geteuid():
            os.fchown(fd, owner.st_uid, owner.st_gid)
    finally:
        os.close(fd)


def _born(pid: int) -> int:
    """As orchestrator/process.py has it: clock ticks since boot."""
    return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])


if __name__ == "__main__":
    sys.exit(main())
