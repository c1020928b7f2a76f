"""Rows of a mapped file that can be read without waiting for a disk.

Reading a row that is not in memory causes a page fault, and the reader waits (0.1 ms, sometimes 5 ms). On
an event loop all other requests wait too. So the kernel is queried first, for many pages in one call
because the call itself is what costs (mincore, 5 µs). The result is trusted for a short time: recently read
pages are the last that the kernel evicts.

mincore reports only on files that the process may write or owns. For other files Linux reports every page
as resident (since 5.2, against spying on other users), and a cold row then costs its fault.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopline.engine.precomputed_file.header import Strip
from hopline.types import IdArray

#: Seconds for which a page is assumed to be resident after a query.
BELIEVED_S = 1.0
#: Pages of one query.
_AT_ONCE = 128
#: Pages of one request that are queried; a request with more unknown pages is read on a thread anyway.
_MAX_ASKED = 256
_PAGE = mmap.PAGESIZE
#: Linux 5.14; Python 3.11 has no name for it.
_MADV_POPULATE_READ = 22

_libc: Any = ctypes.CDLL(None, use_errno=True)


class Residency:
    """Tracks which pages of a map are in memory.

    Args:
        pages: the whole map, uint8.
    """

    def __init__(self, pages: NDArray[np.uint8]) -> None:
        self._pages = pages
        self._address = pages.ctypes.data
        self._num_pages = -(-pages.shape[0] // _PAGE)
        self._known = bytearray(self._num_pages)
        self._known_view = np.frombuffer(self._known, np.bool_)
        self._until = 0.0
        self._answer = np.zeros(_AT_ONCE, np.uint8)
        self._mincore = _libc.mincore
        self._mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
        self._answer_at = self._answer.ctypes.data
        #: Locked: every row is in memory while the process lives.
        self.is_locked = False

    def lock(self) -> bool:
        """Read and lock the whole map in memory; returns whether the kernel allows it (RLIMIT_MEMLOCK)."""
        self.is_locked = (
            _libc.mlock(ctypes.c_void_p(self._address), ctypes.c_size_t(self._pages.shape[0])) == 0
        )
        if not self.is_locked:
            self.populate()
        return self.is_locked

    def populate(self) -> None:
        """Read the whole map into memory as far as it fits; the kernel may evict it again."""
        _libc.madvise(
            ctypes.c_void_p(self._address),
            ctypes.c_size_t(self._pages.shape[0]),
            ctypes.c_int(_MADV_POPULATE_READ),
        )

    def near_row(self, strips: Sequence[Strip], row: int, now: float) -> bool:
        """True if a row of all these strips can be read without waiting.

        Args:
            now: seconds, monotonic.
        """
        if self.is_locked:
            return True
        if now >= self._until:
            self._forget(now)
        known = self._known
        for offset, width in strips:
            first = offset + row * width
            page, last = first // _PAGE, (first + width - 1) // _PAGE
            if not known[page] and not self._is_there(page):
                return False
            while page < last:
                page += 1
                if not known[page] and not self._is_there(page):
                    return False
        return True

    def near_rows(self, strips: Sequence[Strip], rows: IdArray, now: float) -> bool:
        """As `near_row`, for many rows."""
        if self.is_locked:
            return True
        if now >= self._until:
            self._forget(now)
        for strip in strips:
            unknown = self._pages_of(strip, rows)
            unknown = unknown[~self._known_view[unknown]]
            if unknown.shape[0] > 1:
                unknown = np.unique(unknown)
            if unknown.shape[0] > _MAX_ASKED:
                return False
            for page in unknown.tolist():
                if not self._known[page] and not self._is_there(page):
                    return False
        return True

    def read_ahead(self, strips: Sequence[Strip], rows: IdArray) -> None:
        """Read rows from the disk into memory; call it on a thread. Releases the GIL."""
        for strip in strips:
            pages = np.unique(self._pages_of(strip, rows))
            # All reads are started before the first one is waited for.
            for advice in (mmap.MADV_WILLNEED, _MADV_POPULATE_READ):
                for page in pages.tolist():
                    _libc.madvise(
                        ctypes.c_void_p(self._address + page * _PAGE),
                        ctypes.c_size_t(_PAGE),
                        ctypes.c_int(advice),
                    )

    def _pages_of(self, strip: Strip, rows: IdArray) -> IdArray:
        """The pages that rows lie on, with repetitions."""
        offset, width = strip
        first = offset + rows * width
        begin, end = first // _PAGE, (first + width - 1) // _PAGE
        most = int((end - begin).max()) if rows.shape[0] else 0
        columns = [np.minimum(begin + step, end) for step in range(most + 1)]
        found: IdArray = np.concatenate(columns) if columns else begin
        return found

    def _is_there(self, page: int) -> bool:
        begin = page - page % _AT_ONCE
        count = min(_AT_ONCE, self._num_pages - begin)
        if self._mincore(self._address + begin * _PAGE, count * _PAGE, self._answer_at):
            return True  # unknown
        np.bitwise_and(
            self._answer[:count], 1, out=self._known_view[begin : begin + count], casting="unsafe"
        )
        return bool(self._known[page])

    def _forget(self, now: float) -> None:
        self._until = now + BELIEVED_S
        self._known_view.fill(False)
