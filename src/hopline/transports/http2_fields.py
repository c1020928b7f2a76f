"""Rules for the fields of a request's head and of its trailers (RFC 9113, 8.1 to 8.3).

A request that breaks them is malformed: its stream is reset, whatever the fields would mean to gRPC.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

#: Visible ASCII without capital letters and colons (8.2.1).
_NAME = re.compile(rb"[!-9;-@\[-~]+")
#: Fields of HTTP/1.1's connections (8.2.2).
_OF_CONNECTIONS = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_PSEUDO = frozenset({b":method", b":scheme", b":authority", b":path"})
#: Fields that mean nothing if they are there twice.
_SINGLE = _PSEUDO | {b"content-length", b"host", b"te"}
#: More digits than that stand for no length that there is; Python refuses to read 4,300.
_MAX_DIGITS = 18
_SLASH = ord("/")


def request_fault(names: tuple[bytes, ...], values: tuple[bytes, ...], head: Mapping[bytes, bytes]) -> str:
    """Why fields are not the head of a request; "" where they are.

    Args:
        names, values: of the fields, in their order.
        head: the values by name.
    """
    fault = _names_fault(names) or _values_fault(values)
    if fault:
        return fault
    method, path, authority = head.get(b":method"), head.get(b":path"), head.get(b":authority")
    if method == b"CONNECT":  # 8.5
        is_right = authority and path is None and b":scheme" not in head
        return "" if is_right else "CONNECT with more than :authority (8.5)"
    if not (method and path and head.get(b":scheme")):
        return ":method, :scheme or :path is absent or empty (8.3.1)"
    if path[0] != _SLASH and (path != b"*" or method != b"OPTIONS"):
        return ":path begins with no slash (8.3.1)"
    if authority and b"@" in authority:
        return ":authority with user information (8.3.1)"
    if b"host" in head and authority is not None and head[b"host"] != authority:
        return "host is not :authority (8.3.1)"
    if b"te" in head and head[b"te"].lower() != b"trailers":
        return "te is not trailers (8.2.2)"
    if b"content-length" in head:
        length = head[b"content-length"]
        if not length.isdigit() or len(length) > _MAX_DIGITS:
            return "content-length is not a number (8.1.1)"
    return ""


def trailers_fault(names: tuple[bytes, ...], values: tuple[bytes, ...]) -> str:
    """Why fields are not the trailers of a request; "" where they are."""
    if any(name in _PSEUDO for name in names):
        return "pseudo-header fields in trailers (8.1)"
    return _names_fault(names) or _values_fault(values)


def content_length(head: Mapping[bytes, bytes]) -> int | None:
    """What a head without fault says of the length of the content."""
    value = head.get(b"content-length")
    return None if value is None else int(value)


@functools.lru_cache(maxsize=128)
def _names_fault(names: tuple[bytes, ...]) -> str:
    """What is wrong with names and their order. Clients send the same ones again and again."""
    seen: set[bytes] = set()
    for number, name in enumerate(names):
        if name in _PSEUDO:
            if len(seen) < number or not seen <= _PSEUDO:
                return "a pseudo-header field behind others (8.3)"
        elif not _NAME.fullmatch(name):
            return "a name with a capital letter, a colon, or what else is no name (8.2.1)"
        if name in _SINGLE and name in seen:
            return "a field twice that may be there once (8.3)"
        seen.add(name)
    return "" if _OF_CONNECTIONS.isdisjoint(seen) else "a field of HTTP/1.1's connections (8.2.2)"


def _values_fault(values: tuple[bytes, ...]) -> str:
    lines = b"\n%b\n" % b"\n".join(values)
    if b"\0" in lines or b"\r" in lines or lines.count(b"\n") > len(values) + 1:
        return "a value with NUL, CR or LF (8.2.1)"
    if b"\n " in lines or b" \n" in lines or b"\n\t" in lines or b"\t\n" in lines:
        return "a value with white space around it (8.2.1)"
    return ""
