"""Threads for what is long: large bodies are decompressed and counted, large answers encoded there."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
from asyncio import Future
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from hopline.errors import Overloaded
from hopline.transports import json_scan, proto_scan
from hopline.transports.score_json import SLICE_VALUES, num_values
from hopline.transports.shares import MEMORY_FULL
from hopline.types import ScoreResult
from turnserve.budget import Budget

Answer = TypeVar("Answer")
#: Few, since they take CPU time from the event loop.
THREADS = ThreadPoolExecutor(2, "bodies")
#: Bytes of a value of an answer in JSON: ten digits, a sign or a point, a comma.
_VALUE_BYTES: Final = 12
#: Values of an answer that is encoded on the loop, whatever else is: they take less than a request does.
_FEW_VALUES: Final = SLICE_VALUES // 16


class LoopShare:
    """A limit on what the event loop encodes in one turn: a batch may end many answers together."""

    __slots__ = ("_used",)

    def __init__(self) -> None:
        self._used = 0

    def fits(self, result: ScoreResult) -> bool:
        """Return True if the loop may encode an answer now; if so, it counts."""
        wanted = num_values(result)
        if wanted <= _FEW_VALUES:
            return True
        if self._used + wanted > SLICE_VALUES:
            return False
        if not self._used:
            asyncio.get_running_loop().call_soon(self._renew)
        self._used += wanted
        return True

    def _renew(self) -> None:
        self._used = 0


def encode_large(budget: Budget, result: ScoreResult, encode: Callable[[], Answer]) -> Future[Answer]:
    """Encode a large answer on a thread.

    Until it is encoded, the answer reserves what its JSON will need. An answer alone is always encoded:
    its estimate is at most the whole budget.

    Returns: done when it is encoded, in this loop; with Overloaded if the budget has no room.
    """
    loop = asyncio.get_running_loop()
    num_bytes = min(_VALUE_BYTES * num_values(result), budget.limit)
    if not budget.take(num_bytes):
        refused: Future[Answer] = loop.create_future()
        refused.set_exception(Overloaded(MEMORY_FULL))
        return refused
    encoding = loop.run_in_executor(THREADS, encode)
    encoding.add_done_callback(lambda _: budget.give_back(num_bytes))
    return encoding


@functools.cache
def load_kernels() -> concurrent.futures.Future[None]:
    """Load the counting kernels once, before the first body that needs them; compile them if not cached."""
    return THREADS.submit(_load)


def _load() -> None:
    json_scan.warm_up()
    proto_scan.warm_up()
