"""The file of the samples: its columns, and how a line is written."""

from __future__ import annotations

import json
import os
import time
from typing import Any

FORMAT = "profrun-monitor/1"

Number = int | float | None

COLUMNS = {
    "host": (
        "user_ticks", "system_ticks", "iowait_ticks", "steal_ticks", "busy_ticks", "all_ticks",
        "context_switches", "forks", "runnable", "blocked",
        "load_1m", "memory_available_bytes", "swap_free_bytes", "page_faults", "major_faults",
        "disk_read_bytes", "disk_write_bytes", "net_receive_bytes", "net_send_bytes",
        "cpu_some_us", "io_some_us", "io_full_us", "memory_some_us", "memory_full_us", "throttled_us",
    ),
    "core": ("busy_ticks", "all_ticks", "clock_mhz"),
    "process": (
        "cpu_ns", "waited_ns", "rss_bytes", "threads", "children", "read_bytes", "write_bytes", "disk_read_bytes",
        "disk_write_bytes", "voluntary_switches", "involuntary_switches", "minor_faults", "major_faults", "system_ns",
        "queue_ns", "main_queue_ns",
    ),
    "memory": ("rss_bytes", "pss_bytes", "anonymous_bytes", "shared_bytes", "swap_bytes"),
    "gpu": (
        "gpu_util_pct", "memory_util_pct", "memory_used_bytes", "sm_clock_mhz", "memory_clock_mhz", "power_w",
        "temperature_c", "throttle_mask", "pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s",
    ),
    "gpu_process": ("memory_used_bytes",),
    "monitor": ("cpu_ns", "reading_ns"),
}  # fmt: skip
"""What stands in a reading, by source."""


_EPOCH_NS = time.time_ns() - time.monotonic_ns()


def now() -> tuple[int, int]:
    """ns since the Unix epoch, and of the monotonic clock. The wall clock is read once: it may be set meanwhile."""
    at = time.monotonic_ns()
    return _EPOCH_NS + at, at


class Log:
    """The file, open for appending."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, what: dict[str, Any], at: tuple[int, int] | None = None) -> None:
        """One line by one write(2): threads need no lock, and what was read is in the file whatever happens next."""
        t, m = at or now()
        os.write(self._fd, json.dumps({"t": t, "m": m, **what}, separators=(",", ":")).encode() + b"\n")
