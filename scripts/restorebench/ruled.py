"""profrun on a played machine that does with what is written to it as a kernel does: `ruled.py ARGUMENTS OF PROFRUN`.

Processors clamp, refuse, and move what hangs together; /dev/cpu_dma_latency holds what was written last until it is
closed."""

from __future__ import annotations

import sys
from pathlib import Path

from orchestrator import changes, cli, machine
from tests.fakes import sysfs

PLACE = Path("/sys/devices/system/cpu")
LATENCY = Path("/dev/cpu_dma_latency")
KERNEL = sysfs.Kernel(PLACE)
write, hold, release = machine.write_host, machine.hold_host, changes.Held.release
before: list[bytes] = []


def written(path: str, text: str) -> None:
    """`machine.write_host`"""
    if Path(path).is_relative_to(PLACE):
        KERNEL.write(path, text)
    else:
        write(path, text)


def held(path: str, text: str) -> int:
    """`machine.hold_host`: the device is read as a number of four bytes."""
    found = LATENCY.read_bytes() if path == str(LATENCY) else None
    fd = hold(path, text)
    if found is not None:
        before.append(found)
        LATENCY.write_bytes(int(text, 16).to_bytes(4, sys.byteorder))
    return fd


def let_go(own: changes.Held) -> None:
    """`changes.Held.release`"""
    release(own)
    if before:
        LATENCY.write_bytes(before.pop())


machine.write_host, machine.hold_host, changes.Held.release = written, held, let_go  # type: ignore[method-assign]
sys.exit(cli.main(sys.argv[1:]))
