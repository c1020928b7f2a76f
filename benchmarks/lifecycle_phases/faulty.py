"""Models that crash and leak in separate processes: real artifacts, spoilt by the code that opens them.

`crashing` ends its process by a segmentation fault at every fiftieth request; `leaking` keeps a mebibyte of
each. Every other model is as usual.
"""

from __future__ import annotations

import ctypes
from typing import Any

from hopline.answering.served import Served
from hopline.isolated.main import Orders
from hopline.models.isolated_unit import open_unit
from hopline.scheduling.work import Work

_CRASH_EVERY = 50
_LEAK_BYTES = 2**20


async def open_faulty(orders: Orders) -> Served:
    """The factory."""
    served = await open_unit(orders)
    if orders.name == "crashing":
        return Crashing(served)
    return Leaking(served) if orders.name == "leaking" else served


class _Passing:
    def __init__(self, inner: Served) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Crashing(_Passing):
    """Reads address 0 now and then."""

    _seen = 0

    def accept(self, work: Work) -> None:
        """As the inner one, unless it is time."""
        self._seen += 1
        if self._seen % _CRASH_EVERY == 0:
            ctypes.string_at(0)
        self._inner.accept(work)


class Leaking(_Passing):
    """Forgets to forget."""

    def __init__(self, inner: Served) -> None:
        super().__init__(inner)
        self._kept: list[bytes] = []

    def accept(self, work: Work) -> None:
        """As the inner one, and keeps something."""
        self._kept.append(b"x" * _LEAK_BYTES)
        self._inner.accept(work)
