"""A second thread that helps with passes: asleep, awake because one comes soon, or at work.

It runs compiled code without the interpreter lock. Each kind of pass has its own `serve` that it lives in
(`passes.serve`, `tagae.sweep_kernels.serve`); what all of them agree on is here.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopline.kernels.jit import njit
from hopline_mesh.model.threads import (
    ASLEEP,
    BUSY,
    DONE,
    EPOCH,
    HAS_FUTEX,
    OPEN,
    PHASE_WORDS,
    PHASES,
    SOON,
    STOP,
    fetch_add,
    give_way,
    read,
    sleep_while,
    wake,
    write,
)

Control = NDArray[np.int64]

#: Looks at the epoch for which a roused thread stays awake: some ten milliseconds.
PATIENCE = 4_000_000


def processors() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def has_second(threads: int | None) -> bool:
    """Whether so many threads (None = as many as there are processors) are two, and can be."""
    return (processors() if threads is None else threads) > 1 and HAS_FUTEX


class SecondThread:
    """The second thread: started when it is first needed, stopped with its owner.

    Args:
        serve: compiled; takes `arguments` and, last, the block by which threads agree.
        num_phases: of its passes, at most.
    """

    def __init__(self, serve: Callable[..., None], arguments: tuple[Any, ...], num_phases: int) -> None:
        self._serve = serve
        self._arguments = arguments
        self.control: Control = np.zeros(PHASES + PHASE_WORDS * num_phases, np.int64)
        self._thread: threading.Thread | None = None

    def idle(self) -> None:
        """Wait until it reads no plan; it begins to only in the next pass."""
        if self._thread is not None:
            wait_idle(self.control)

    def rouse(self) -> None:
        """A pass comes within the next milliseconds: waking takes some 50 µs, which other work can hide."""
        if self._thread is not None:
            rouse(self.control)

    def start(self) -> None:
        """Have it live, if it does not yet."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._serve, args=(*self._arguments, self.control), name="mesh-second", daemon=True
            )
            self._thread.start()
            weakref.finalize(self, stop, self.control)


@njit(nogil=True, cache=True)
def advance(control: Control) -> None:
    """A new epoch. Who is not asleep yet when it begins does not fall asleep in it, and needs no waking."""
    fetch_add(control, EPOCH, 1)
    if read(control, ASLEEP):
        wake(control, 1)


@njit(nogil=True, cache=True)
def wait_idle(control: Control) -> None:
    """Until the second thread reads no plan; none begins to before `open_pass`."""
    write(control, OPEN, 0)
    turns = 0
    while read(control, BUSY):
        turns += 1
        if turns & 1023 == 0:
            give_way()


@njit(nogil=True, cache=True)
def rouse(control: Control) -> None:
    """Wake the second thread, once it reads no plan: a pass comes soon."""
    wait_idle(control)
    write(control, SOON, 1)
    advance(control)


@njit(nogil=True, cache=True)
def open_pass(control: Control, num_phases: int, more: bool) -> None:
    """Open a pass of so many phases; `more`: another one comes soon after, do not go to sleep."""
    for phase in range(num_phases):
        write(control, PHASES + PHASE_WORDS * phase, 0)
        write(control, PHASES + PHASE_WORDS * phase + DONE, 0)
    write(control, OPEN, 1)
    write(control, SOON, 1 if more else 0)
    advance(control)


@njit(nogil=True, cache=True)
def take_piece(control: Control, place: int, pieces: int, thread: int, taken: int) -> int:
    """The next piece of the phase at `place` for a thread that has taken so many of it; -1 = none is left.

    One thread begins at the front, the other at the back: in each phase they come to what lies in their own
    cache from the phase before.
    """
    if fetch_add(control, place, 1) >= pieces:
        return -1
    return pieces - 1 - taken if thread else taken


@njit(nogil=True, cache=True)
def await_pieces(control: Control, place: int, pieces: int) -> None:
    """Until all pieces of the phase at `place` are done, the other thread's too."""
    turns = 0
    while read(control, place + DONE) < pieces:
        turns += 1
        if turns & 1023 == 0:
            give_way()


@njit(nogil=True, cache=True)
def close_pass(control: Control) -> None:
    """Close a pass: who has not joined it does not any more."""
    write(control, OPEN, 0)


@njit(nogil=True, cache=True)
def await_work(control: Control, seen: int) -> int:
    """Sleep, or wait awake, until a pass is open. Returns its epoch, to be given next time; -1 = stop."""
    turns = 0
    while True:
        if read(control, STOP):
            return -1
        now = read(control, EPOCH)
        if now != seen:
            seen, turns = now, 0
            if read(control, OPEN):
                return int(now)
        elif read(control, SOON) and turns < PATIENCE:
            turns += 1
        else:
            write(control, ASLEEP, 1)
            sleep_while(control, now)
            write(control, ASLEEP, 0)


@njit(nogil=True, cache=True)
def join(control: Control) -> bool:
    """Join the pass; False if it is over already. Always call `leave` afterwards."""
    write(control, BUSY, 1)
    return bool(read(control, OPEN) != 0)


@njit(nogil=True, cache=True)
def leave(control: Control) -> None:
    """Plans are not read any more."""
    write(control, BUSY, 0)


@njit(nogil=True, cache=True)
def stop(control: Control) -> None:
    """Send the stop signal to the second thread."""
    write(control, STOP, 1)
    advance(control)
