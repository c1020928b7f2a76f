"""Rules of RFC 9110 and RFC 9112 for request heads, in addition to the grammar that the parser checks."""

from __future__ import annotations

import re

_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]+)[ \t]*(?:;[^\n]*)?\r?\n")


class OpenChunk:
    """See the module; of one message.

    The parser tells where a chunk begins and ends, and not how long it will be. So the line of its size is
    read here, behind the parser, which has found it in order.
    """

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


_VERSIONS = ("1.0", "1.1")
#: Host = uri-host [ ":" port ] (RFC 9110, 7.2); empty if the target has no authority.
_HOST = re.compile(rb"(?:[A-Za-z0-9._~%!$&'()*+,;=-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?")
_ABSOLUTE = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)
_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) [!-~]+ HTTP/1\.[01]\r\n")


def origin_form(target: bytes) -> bytes:
    """Return path and query of a target in absolute form, as sent by proxies; other targets unchanged."""
    authority = _ABSOLUTE.match(target)
    if authority is None:
        return target
    rest = target[authority.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest


def head_refusal(version: str, headers: dict[bytes, bytes]) -> tuple[int, str] | None:
    """Return status and reason if a parsed head must be refused; else None.

    Args:
        version: protocol version, for example "1.1".
        headers: lower-case name -> value; values of a repeated name are joined by ", ".
    """
    if version not in _VERSIONS:
        return 505, f"HTTP/{version} is not supported; send HTTP/1.1"
    host = headers.get(b"host")
    if host is None:
        if version == "1.1":
            return 400, "an HTTP/1.1 request needs the header Host (RFC 9112, 3.2)"
    elif not _HOST.fullmatch(host):
        return 400, f"header Host is {host.decode('latin-1')!r}; expected one host, with or without a port"
    coding = headers.get(b"transfer-encoding")
    if coding is not None:
        if version == "1.0":
            return 400, "HTTP/1.0 has no Transfer-Encoding; send Content-Length"
        others, _, last = coding.lower().rpartition(b",")
        shown = f"Transfer-Encoding {coding.decode('latin-1')!r}"
        if last.strip() != b"chunked":
            return 400, f"{shown} does not end in chunked, so the end of the body is unknown"
        if others:
            return 501, f"{shown} is not supported; send only chunked, and use Content-Encoding for gzip"
    expected = headers.get(b"expect")
    if expected is not None and version == "1.1" and expected.lower() != b"100-continue":
        return 417, f"Expect {expected.decode('latin-1')!r} is not supported; only 100-continue is"
    return None


def unknown_method(data: bytes) -> str:
    """Return the method of a request line that the parser refused; "" if the line is not a request line."""
    line = _REQUEST_LINE.match(data.lstrip(b"\r\n"))
    return "" if line is None else line[1].decode("latin-1")
