"""Stand-alone (`python -I -S start_ranks.py COUNT COMMAND...`): starts the command COUNT times, each with the variables
by which torch.distributed finds its place (RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT).

When one fails the others are asked to end, and killed after GRACE_S. Exit status: that of the first that failed (128 +
signal), else 0; 126 and 127 when the command can't be started. Signals that ask to end are for the ranks, which are in
the same group: this process waits for what comes of them.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

GRACE_S = 5.0
SEEN_S = 0.2
"""Until this process has asked for a rank's status, who looks on can read it in /proc; before Linux 6.15 nobody can
later."""
_FOR_RANKS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def free_port() -> int:
    """One that nobody listens at right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(rank: int, count: int, port: int) -> dict[str, str]:
    """What the command is told; an address that was chosen before counts."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        **os.environ,
        **{name: str(number) for name, number in place.items()},
    }


def run(count: int, argv: list[str]) -> int:
    port, ranks = free_port(), list[subprocess.Popen[bytes]]()
    for number in _FOR_RANKS:
        signal.signal(number, lambda *_: None)  # unlike SIG_IGN, no inheritance
    try:
        for rank in range(count):
            ranks.append(subprocess.Popen(argv, env=environment(rank, count, port)))
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
        _end(ranks)
        return 127 if isinstance(error, FileNotFoundError) else 126
    return _wait({one.pid: one for one in ranks})


def _wait(living: dict[int, subprocess.Popen[bytes]]) -> int:
    while living:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        if ended and ended.si_status:
            time.sleep(SEEN_S)
        pid, status = os.wait()
        if pid not in living:
            continue
        code = living[pid].returncode = os.waitstatus_to_exitcode(status)
        del living[pid]
        if code:
            _end(list(living.values()))
            return 128 - code if code < 0 else code
    return 0


def _end(ranks: list[subprocess.Popen[bytes]]) -> None:
    for one in ranks:
        one.terminate()
    deadline = time.monotonic() + GRACE_S
    for one in ranks:
        try:
            one.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            one.kill()
            one.wait()


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), sys.argv[2:]))
