"""The parent, as its child sees it: orders, the stop pipe, and the pipe that says ready and alive.

See `child.py` for the other side.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
from collections.abc import Callable

#: Of the line that says ready: a pipe transfers that many bytes atomically.
MAX_SAID_BYTES = 4096
#: One heartbeat, in the pipe behind that line.
BEAT = b"."
_PR_SET_PDEATHSIG = 1


def read_orders() -> bytes:
    """The first line of stdin: JSON. What follows is the stop pipe, which only ever ends."""
    with open(0, "rb", buffering=0, closefd=False) as stdin:  # unbuffered, since the rest is watched
        return stdin.readline()


def on_parent_end(call: Callable[[], object]) -> None:
    """Call once when stdin ends, that is when the parent is gone. Within the running loop."""
    loop = asyncio.get_running_loop()

    def on_stdin() -> None:
        if not os.read(0, 64):
            loop.remove_reader(0)
            call()

    loop.add_reader(0, on_stdin)


def say_ready(descriptor: int, text: str = "ready", *, beat_s: float = 0.0) -> None:
    """Tell the parent that this process is ready, and from then on that its event loop turns.

    Args:
        descriptor: the `ready` of its orders.
        text: one line; it is cut off after `MAX_SAID_BYTES`.
        beat_s: seconds between two heartbeats of the running loop; 0 for none.
    """
    os.write(descriptor, text.encode()[: MAX_SAID_BYTES - 1].replace(b"\n", b" ") + b"\n")
    if beat_s:
        os.set_blocking(descriptor, False)
        _beat(descriptor, beat_s)
    else:
        os.close(descriptor)


def _beat(descriptor: int, beat_s: float) -> None:
    try:
        os.write(descriptor, BEAT)
    except BlockingIOError:  # the parent has not read for long
        pass
    except BrokenPipeError:
        return
    asyncio.get_running_loop().call_later(beat_s, _beat, descriptor, beat_s)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, even while it hangs. Linux only."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
