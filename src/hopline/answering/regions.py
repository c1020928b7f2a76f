"""Places of each unit's state caches in the memory that all workers of a host map.

One memfd, handed to every worker; a directory at its beginning says which bytes are whose. Units come and
go while workers die and restart: so a region is found by its key, never by the order in which
things were loaded. Regions are not moved or used again: the file is sparse, and unused memory
is returned to the system.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from hopline.engine.model import StateCachePlan
from hopline.features.l1 import CachePlan
from hopline.memory.arena import Arena

Planned = TypeVar("Planned", StateCachePlan, CachePlan)
_FALLOC_FL_KEEP_SIZE, _FALLOC_FL_PUNCH_HOLE = 1, 2
_ALIGN = 4096
_DIRECTORY_BYTES = 1 << 18
#: Of the directory: a lock of the file keeps out other processes, not other threads of this one.
_THREADS = threading.Lock()


class _Region(msgspec.Struct):
    """The memory of one unit's state caches in the shared file.

    Attributes:
        share: bytes that its state caches were planned for. users: indices of workers that map it.
    """

    offset: int
    num_bytes: int
    share: int
    users: list[int]


class Regions:
    """The regions of a shared memory file, one for each unit.

    Args:
        fd: of the memfd; -1 gives each unit private memory.
        worker: index of this one.
    """

    def __init__(self, fd: int, worker: int) -> None:
        self._fd = fd
        self._worker = worker
        #: key -> loads of this worker that hold it: one that is unloaded may still finish its requests
        #: while the same unit is loaded again.
        self._holders: Counter[str] = Counter()
        if fd >= 0:
            with self._directory() as regions:  # what a worker of this number had, which died
                for key in list(regions):
                    self._leave(regions, key)

    def take(self, key: str, share: int, plan: Callable[[int], Planned]) -> tuple[Planned, Arena]:
        """The plan and memory of one unit's state caches; to be returned once, by `give_back`.

        Args:
            key: the same in every worker for the same unit, and for nothing else.
            share: bytes for its state caches, if it has no region yet.
            plan: how so many bytes are divided.
        """
        if self._fd < 0:
            planned = plan(share)
            return planned, Arena(planned.num_bytes)  # released with the last reference
        self._holders[key] += 1
        try:
            with self._directory() as regions:
                region = regions.get(key)
                if region is None:
                    planned = plan(share)
                    num_bytes = -(-max(planned.num_bytes, _ALIGN) // _ALIGN) * _ALIGN
                    offset = max(_DIRECTORY_BYTES, os.fstat(self._fd).st_size)
                    region = regions[key] = _Region(offset, num_bytes, share, [])
                    os.ftruncate(self._fd, offset + num_bytes)
                else:
                    planned = plan(region.share)
                if self._worker not in region.users:
                    region.users.append(self._worker)
        except BaseException:
            self.give_back(key)
            raise
        return planned, Arena(planned.num_bytes, self._fd, region.offset)

    def give_back(self, key: str) -> None:
        """One that took it maps it no more; for each `take` once."""
        if self._fd >= 0:
            with self._directory() as regions:
                self._holders[key] -= 1
                if not self._holders[key]:
                    del self._holders[key]
                    self._leave(regions, key)

    def _leave(self, regions: dict[str, _Region], key: str) -> None:
        region = regions.get(key)
        if region is None or self._worker not in region.users:
            return
        region.users.remove(self._worker)
        if not region.users:
            _punch(self._fd, region.offset, region.num_bytes)
            del regions[key]

    @contextlib.contextmanager
    def _directory(self) -> Iterator[dict[str, _Region]]:
        with _THREADS:
            # A lock of the process, not of the descriptor, which workers have from one parent.
            fcntl.lockf(self._fd, fcntl.LOCK_EX, _DIRECTORY_BYTES)
            try:
                yield from self._opened()
            finally:
                fcntl.lockf(self._fd, fcntl.LOCK_UN, _DIRECTORY_BYTES)

    def _opened(self) -> Iterator[dict[str, _Region]]:
        head = os.pread(self._fd, 8, 0)
        length = int.from_bytes(head, "little")
        regions = {}
        if length:
            regions = msgspec.json.decode(os.pread(self._fd, length, 8), type=dict[str, _Region])
        yield regions
        body = msgspec.json.encode(regions)
        if len(body) > _DIRECTORY_BYTES - 8:
            raise MemoryError(f"{len(regions)} units are more than the shared memory's directory holds")
        os.pwrite(self._fd, body, 8)
        os.pwrite(self._fd, len(body).to_bytes(8, "little"), 0)


def _punch(fd: int, offset: int, num_bytes: int) -> None:
    """Give pages back; they read as zeros afterwards, which is an empty state cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    libc.fallocate(fd, _FALLOC_FL_KEEP_SIZE | _FALLOC_FL_PUNCH_HOLE, offset, num_bytes)
