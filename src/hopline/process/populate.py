"""Populates the memory of caches ahead of its first use, in the background.

The kernel clears a page on its first touch, and a hypervisor may have to back the page. A huge page takes
up to 4 ms, while a caller waits. Here a thread touches the pages first, one huge page at a time. It goes
from the first byte of a region to the last, which is the order in which a cache fills. The thread has the
lowest priority and rests after each step. It runs without the interpreter's lock, which a thread of low
priority must never hold.

A second thread, of normal priority, reads the available memory 20 times a second. It allows further steps
while a reserve of the memory that the control group allows stays free.
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
from collections import deque
from collections.abc import Callable

import numpy as np
from numba import types

from hopline.kernels.jit import njit
from hopline.process.cgroup import available_bytes, memory_bytes
from hopline.types import IdArray

log = logging.getLogger(__name__)

#: Linux 5.14; Python 3.11 has no name for it.
_MADV_POPULATE_WRITE = 23
_CLOCK_THREAD_CPUTIME_ID = 3
#: A huge page of x86-64 and of most arm64 kernels, which is cleared as a whole in any case.
STEP_BYTES = 2 << 20
#: Bytes that one look at the available memory allows, and seconds between two looks.
LOOK_BYTES, _LOOK_S = 32 * STEP_BYTES, 0.05
#: The thread rests this many times the processor time of a step: it takes a quarter of one CPU at most.
_REST = 3
#: Pause of the thread while no step is allowed.
_PAUSE_US = 5_000
#: Share of the memory that stays free, for requests and for other programs.
_RESERVE_SHARE = 1 / 8
_NICE = 19
#: Places in the array that both threads read and write: bytes done, bytes allowed, not 0 to stop.
_DONE, _ALLOWED, _STOP = 0, 1, 2

_madvise = types.ExternalFunction("madvise", types.int32(types.uintp, types.uintp, types.int32))
_usleep = types.ExternalFunction("usleep", types.int32(types.uint32))
_clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.uintp))


@njit(nogil=True, cache=True)
def _cpu_us(spec):  # type: ignore[no-untyped-def]
    """Processor time of this thread; spec: int64 [2], room for a `struct timespec`."""
    _clock_gettime(_CLOCK_THREAD_CPUTIME_ID, spec.ctypes.data)
    return spec[0] * 1_000_000 + spec[1] // 1000


@njit(nogil=True, cache=True)
def _populate(address, num_bytes, shared):  # type: ignore[no-untyped-def]
    """Populate a writable mapping step by step; the content does not change.

    Args:
        address: a multiple of the page size.
        shared: int64 [3], see `_DONE`.

    Returns: True if the kernel could do it; one before Linux 5.14 cannot.
    """
    spec = np.zeros(2, np.int64)
    while shared[_DONE] < num_bytes and shared[_STOP] == 0:
        done = shared[_DONE]
        length = min(STEP_BYTES - (address + done) % STEP_BYTES, num_bytes - done)
        if done + length > shared[_ALLOWED]:
            _usleep(_PAUSE_US)
            continue
        began = _cpu_us(spec)
        if _madvise(address + done, length, _MADV_POPULATE_WRITE) != 0:
            return False
        shared[_DONE] = done + length
        _usleep(min(_REST * (_cpu_us(spec) - began), 999_999))
    return True


def room_left() -> int:
    """Bytes that may be populated now: the available memory without the reserve."""
    return available_bytes() - int(memory_bytes() * _RESERVE_SHARE)


class Populator:
    """Populates one region after the other; its threads exist only while there is one.

    Args:
        room: bytes that may be populated now.
    """

    def __init__(self, room: Callable[[], int] = room_left) -> None:
        self._room = room
        self._lock = threading.Lock()
        self._regions: deque[_Region] = deque()
        self._thread: threading.Thread | None = None

    def add(self, mapping: mmap.mmap) -> None:
        """Populate a region soon. It stays mapped until it is populated or removed."""
        with self._lock:
            self._regions.append(_Region(mapping))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="hopline-populate", daemon=True)
                self._thread.start()

    def remove(self, mapping: mmap.mmap) -> None:
        """Stop populating a region; nothing is done to it after the return, which may take some ms."""
        with self._lock:
            removed = [region for region in self._regions if region.mapping is mapping]
        for region in removed:
            region.stop()

    def join(self) -> None:
        """Wait until all regions are populated or removed."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def close(self) -> None:
        """Stop populating."""
        with self._lock:
            regions = list(self._regions)
        for region in regions:
            region.stop()
        self.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._regions:
                    self._thread = None
                    return
                region = self._regions[0]
            region.populate(self._room)
            with self._lock:
                self._regions.popleft()


class _Region:
    """A region that is populated, or waits for it."""

    def __init__(self, mapping: mmap.mmap) -> None:
        self.mapping = mapping
        self._shared: IdArray = np.zeros(3, np.int64)
        self._worker = threading.Thread(target=self._work, name="hopline-populate-step", daemon=True)
        #: Held by `populate` before the worker runs, and by `stop`: a stopped region is not started.
        self._starting = threading.Lock()

    def populate(self, room: Callable[[], int]) -> None:
        """Do it, as far as there is room."""
        with self._starting:
            if self._shared[_STOP]:
                return
            self._worker.start()
        while self._worker.is_alive():
            done = int(self._shared[_DONE])
            allowed = min(LOOK_BYTES, room())
            if allowed < min(STEP_BYTES, len(self.mapping) - done):
                self._shared[_STOP] = 1
                log.info(
                    "%d of %d MiB of a cache are populated: there is no more memory to spare",
                    done >> 20,
                    len(self.mapping) >> 20,
                )
            self._shared[_ALLOWED] = done + allowed
            self._worker.join(_LOOK_S)

    def stop(self) -> None:
        """Stop it, and wait for the end of a step that is under way."""
        with self._starting:
            self._shared[_STOP] = 1
        if self._worker.ident is not None:
            self._worker.join()

    def _work(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        address = np.frombuffer(self.mapping, np.uint8).ctypes.data
        _populate(address, len(self.mapping), self._shared)
