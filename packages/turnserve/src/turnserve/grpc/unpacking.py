"""Decompression of gRPC messages: small ones immediately, others in a thread, one at a time.

Sixty-four KiB may become sixty-four MiB, which needs a tenth of a second. zlib lets other threads run
meanwhile. One at a time is enough for compressed requests, and limits memory and CPU time. Connections take
turns.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from turnserve.budget import Budget
from turnserve.compression import CompressionError, DecompressedTooLarge, decompress
from turnserve.grpc.status import full

#: A message up to this size, with content up to `_SMALL_CONTENT_BYTES`, is decompressed immediately, in
#: some tenths of a millisecond.
_SMALL_BYTES = 4 * 1024
_SMALL_CONTENT_BYTES = 64 * 1024
#: Deflate expands two bits to at most 258 bytes.
_MAX_RATIO = 1032

Done: TypeAlias = Callable[[bytes | Exception], None]


class Unpacking:
    """One message that waits or is being decompressed."""

    __slots__ = ("_done", "encoding", "max_bytes", "message")

    def __init__(self, encoding: str, message: bytes, max_bytes: int, done: Done) -> None:
        self.encoding = encoding
        self.message = message
        self.max_bytes = max_bytes
        self._done: Done | None = done

    @property
    def is_cancelled(self) -> bool:
        """True if its content is no longer needed."""
        return self._done is None

    def cancel(self) -> None:
        """Cancel: its content is no longer needed."""
        self.message = b""
        self._done = None

    def finish(self, content: bytes | Exception) -> None:
        """Pass the content or the error to the callback."""
        done = self._done
        self.cancel()
        if done is not None:
            done(content)


class Unpacker:
    """Decompresses the messages of one listener; see the module docstring.

    Args:
        budget: memory for the content of a message is reserved from it meanwhile.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        #: By owner; the one that waits longest is first.
        self._waiting: dict[object, deque[Unpacking]] = {}
        self._is_working = False

    def unpack(
        self, owner: object, encoding: str, message: bytes, max_bytes: int, done: Done
    ) -> Unpacking | None:
        """Decompress a message.

        Args:
            owner: messages of one owner are decompressed in order.
            encoding: gzip or deflate.
            message: compressed.
            max_bytes: limit of its content.
            done: called with the content or with an error.

        Returns: an object to cancel the work; None if `done` was called.
        """
        if len(message) <= _SMALL_BYTES:
            content = _attempt(encoding, message, min(max_bytes, _SMALL_CONTENT_BYTES))
            if max_bytes <= _SMALL_CONTENT_BYTES or not isinstance(content, DecompressedTooLarge):
                done(content)
                return None
        unpacking = Unpacking(encoding, message, max_bytes, done)
        self._waiting.setdefault(owner, deque()).append(unpacking)
        self._work()
        return unpacking

    def _work(self) -> None:
        while self._waiting and not self._is_working:
            owner, queue = next(iter(self._waiting.items()))
            del self._waiting[owner]
            unpacking = queue.popleft()
            if queue:
                self._waiting[owner] = queue
            if not unpacking.is_cancelled:
                self._begin(unpacking)

    def _begin(self, unpacking: Unpacking) -> None:
        num_bytes = min(unpacking.max_bytes, _MAX_RATIO * len(unpacking.message))
        if not self._budget.take(num_bytes):
            unpacking.finish(full(Budget.FULL))
            return
        self._is_working = True

        def done(work: asyncio.Future[bytes]) -> None:
            self._is_working = False
            self._budget.give_back(num_bytes)
            error = asyncio.CancelledError() if work.cancelled() else work.exception()
            if isinstance(error, Exception):
                unpacking.finish(error)
            elif error is None:
                unpacking.finish(work.result())
            self._work()

        work = asyncio.get_running_loop().run_in_executor(
            None, decompress, unpacking.encoding, unpacking.message, unpacking.max_bytes
        )
        work.add_done_callback(done)


def _attempt(encoding: str, message: bytes, max_bytes: int) -> bytes | CompressionError:
    try:
        return decompress(encoding, message, max_bytes)
    except CompressionError as error:
        # Its frames refer to what stores it: only the garbage collector could free such a cycle.
        error.__traceback__ = error.__context__ = None
        return error
