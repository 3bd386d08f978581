"""Stand-alone: waits for the end of a run beside it, in next to no memory. Where profrun has died without a word of
farewell, the rest of profrun is loaded, and does what its owner can't do any more (orchestrator/keeper.py).

    python -I -S keeper.py PACKAGE LIBRARIES

On its stdin, a pipe of the owner's, one line each: `run JSON`, `pass JSON` (one begins), `target JSON` (it has been
started), `idle` (it is over), `bye`. The end of the pipe without `bye` is the owner's death."""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda *_: None)  # a handler, as what we start would inherit that they are ignored
    os.write(1, b"ready\n")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    run, passing = watch()
    load(*sys.argv[1:3]).act(run, passing)


def watch() -> tuple[bytes, list[bytes]]:
    """Waits for the owner's death; gives back what it has said of the run, and of the pass that was under way."""
    run, passing, rest = b"", [], b""
    while True:
        block = os.read(0, 65536)
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            word, _, about = line.partition(b" ")
            if word == b"bye":
                os._exit(0)
            elif word == b"run":
                run = about
            elif word == b"target":
                passing.append(about)
            else:
                passing = [about] if word == b"pass" else []
        if not block:
            return run, passing


def load(package: str, libraries: str) -> ModuleType:
    """The module orchestrator.keeper of the package in that folder, whatever else is called so."""
    from importlib import import_module, util

    spec = util.spec_from_file_location("orchestrator", f"{package}/__init__.py", submodule_search_locations=[package])
    if spec is None or spec.loader is None:
        raise ImportError(package)
    module = util.module_from_spec(spec)
    sys.modules["orchestrator"] = module
    spec.loader.exec_module(module)
    sys.path.append(libraries)
    return import_module("orchestrator.keeper")


if __name__ == "__main__":
    main()
