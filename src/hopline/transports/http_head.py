"""Rules of RFC 9110 and RFC 9112 for request heads, in addition to the grammar that the parser checks."""

from __future__ import annotations

import re

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
