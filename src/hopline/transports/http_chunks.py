"""The chunk of a body that is arriving, and the size that it announced (RFC 9112, 7.1).

The parser tells where a chunk begins and ends, and not how long it will be. So the line of its size is read
here, behind the parser, which has found it in order.
"""

from __future__ import annotations

import re

_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]+)[ \t]*(?:;[^\n]*)?\r?\n")


class OpenChunk:
    """See the module; of one message."""

    __slots__ = ("_begins", "_is_open", "_line", "_num_bytes")

    def __init__(self) -> None:
        self._is_open = self._begins = False
        #: Bytes of it that came.
        self._num_bytes = 0
        #: The part that came of a line of a size.
        self._line = b""

    def begin(self) -> None:
        """Its size was read."""
        self._is_open = self._begins = True
        self._num_bytes = 0

    def came(self, num_bytes: int) -> None:
        """Count its bytes."""
        self._num_bytes += num_bytes

    def end(self) -> None:
        """It is whole."""
        self._is_open = False

    def missing(self, data: bytes) -> int:
        """Bytes that were announced and have not come, where a chunk began in what the parser just read.

        Args:
            data: that the parser just read, to its end.
        """
        text, self._line = self._line + data, b""
        if not self._is_open:
            self._line = text[text.rfind(b"\n") + 1 :]
            return 0
        begins, self._begins = self._begins, False
        if not begins:
            return 0
        end = len(text) - self._num_bytes
        # Behind the last chunk, of size 0, there may be trailers, whose lines are none of sizes.
        found = _SIZE_LINE.fullmatch(text, text.rfind(b"\n", 0, end - 1) + 1, end)
        return 0 if found is None else max(0, int(found[1], 16) - self._num_bytes)
