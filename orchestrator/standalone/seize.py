"""Stand-alone (`python -I -S seize.py PID`): whether a process may be traced, tried as strace and py-spy do it."""

import ctypes
import sys

_PTRACE_SEIZE = 0x4206


def seize(pid: int) -> int:
    """Seizes a process without stopping it; gives 0, or the errno of the refusal. The trace ends with the caller."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    return ctypes.get_errno() if libc.ptrace(_PTRACE_SEIZE, pid, None, None) == -1 else 0


if __name__ == "__main__":
    sys.exit(seize(int(sys.argv[1])))
