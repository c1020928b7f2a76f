"""Asks Linux to let a thread run soon rather than long.

A thread that answers requests works for a tenth of a millisecond and then waits. Next to a busy
process it would first wait for the end of that one's time slice, some 3 ms; a thread that says it wants
short slices may interrupt it (Linux 6.12 and later). Its share of the processor stays the same, and no
privilege is needed.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys

#: The shortest that Linux takes.
SHORT_S = 1e-4
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}


class _Attributes(ctypes.Structure):
    """`struct sched_attr` of the kernel, its first version."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def want_slices(seconds: float) -> bool:
    """Ask for slices of this length for the calling thread, and all that it starts from now on.

    Args:
        seconds: 0 means the system's usual ones.

    Returns: True if the system takes such a wish; an older one ignores it.
    """
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None or sys.platform != "linux" or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    wanted = _Attributes(
        size=ctypes.sizeof(_Attributes),
        nice=os.getpriority(os.PRIO_PROCESS, 0),
        runtime=round(seconds * 1e9),
    )
    return bool(ctypes.CDLL(None).syscall(number, 0, ctypes.byref(wanted), 0) == 0)


def lower_priority(nice: int) -> None:
    """Run behind the server that started this process, which its threads may then interrupt.

    Short slices are inherited: a process that computes for long must give them back, or it interrupts
    others as often as they interrupt it. Call before the first thread is started.

    Args:
        nice: is added to the niceness of this process.
    """
    os.nice(nice)
    want_slices(0.0)
