"""Rules for the fields of a request's head and of its trailers (RFC 9113, 8.1 to 8.3).

A request that breaks them is malformed: its stream is reset, whatever the fields would mean to gRPC.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

Fields: TypeAlias = Sequence[tuple[bytes, bytes]]

#: Visible ASCII without capital letters and colons (8.2.1).
_NAME = re.compile(rb"[!-9;-@\[-~]+")
#: Fields of HTTP/1.1's connections (8.2.2).
_OF_CONNECTIONS = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_PSEUDO = frozenset({b":method", b":scheme", b":authority", b":path"})
#: Fields that mean nothing if they are there twice.
_SINGLE = _PSEUDO | {b"content-length", b"host", b"te"}
#: A valid length has no more digits than that; Python refuses to read 4,300.
_MAX_DIGITS = 18
_SLASH = ord("/")
#: Fields that are right whatever others there are, of any connection: most of a request were seen before.
_seen: set[tuple[bytes, bytes]] = set()
_MAX_SEEN, _MAX_SEEN_BYTES = 1024, 256


def request_fault(fields: Fields) -> str:
    """Why fields are not the head of a request; "" where they are.

    Args:
        fields: names and values, in their order.
    """
    names = tuple([field[0] for field in fields])
    fault, is_usual = _names_fault(names)
    fault = fault or _values_fault(fields)
    return fault if fault or is_usual else _unusual_fault(dict(fields))


def trailers_fault(fields: Fields) -> str:
    """Why fields are not the trailers of a request; "" where they are."""
    names = tuple([field[0] for field in fields])
    if not _PSEUDO.isdisjoint(names):
        return "pseudo-header fields in trailers (8.1)"
    return _names_fault(names)[0] or _values_fault(fields)


def content_length(head: Mapping[bytes, bytes]) -> int | None:
    """What a head without fault says of the length of the content."""
    value = head.get(b"content-length")
    return None if value is None else int(value)


@functools.lru_cache(maxsize=128)
def _names_fault(names: tuple[bytes, ...]) -> tuple[str, bool]:
    """What is wrong with names and their order, and whether values matter each for itself only.

    Clients send the same names again and again.
    """
    seen: set[bytes] = set()
    for number, name in enumerate(names):
        if name in _PSEUDO:
            if len(seen) < number or not seen <= _PSEUDO:
                return "a pseudo-header field behind others (8.3)", False
        elif not _NAME.fullmatch(name):
            return "a name with a capital letter, a colon, or what else is no name (8.2.1)", False
        if name in _SINGLE and name in seen:
            return "a field twice that may be there once (8.3)", False
        seen.add(name)
    if not _OF_CONNECTIONS.isdisjoint(seen):
        return "a field of HTTP/1.1's connections (8.2.2)", False
    is_usual = {b":method", b":scheme", b":path"} <= seen and b"host" not in seen
    return "", is_usual


def _values_fault(fields: Fields) -> str:
    for field in fields:
        if field not in _seen:
            name, value = field
            fault = _value_fault(name, value)
            if fault:
                return fault
            if value in (b"CONNECT", b"*") and name in _PSEUDO:
                return _unusual_fault(dict(fields))
            if len(name) + len(value) <= _MAX_SEEN_BYTES:
                if len(_seen) >= _MAX_SEEN:
                    _seen.clear()
                _seen.add((name, value))
    return ""


def _value_fault(name: bytes, value: bytes) -> str:
    """What is wrong with a value, whatever other fields there are."""
    if b"\0" in value or b"\r" in value or b"\n" in value:
        return "a value with NUL, CR or LF (8.2.1)"
    if value.strip(b" \t") != value:
        return "a value with white space around it (8.2.1)"
    if name not in _SINGLE:
        return ""
    if not value and name != b":authority":
        return "a field without value that has to have one (8.3.1)"
    if name == b":path" and value[0] != _SLASH and value != b"*":
        return ":path begins with no slash (8.3.1)"
    if name == b":authority" and b"@" in value:
        return ":authority with user information (8.3.1)"
    if name == b"te" and value.lower() != b"trailers":
        return "te is not trailers (8.2.2)"
    if name == b"content-length" and not (value.isdigit() and len(value) <= _MAX_DIGITS):
        return "content-length is not a number (8.1.1)"
    return ""


def _unusual_fault(head: Mapping[bytes, bytes]) -> str:
    """What is wrong with combinations of fields, where each name and value alone is right."""
    method, path, authority = head.get(b":method"), head.get(b":path"), head.get(b":authority")
    if method == b"CONNECT":  # 8.5
        is_right = authority and path is None and b":scheme" not in head
        return "" if is_right else "CONNECT with more than :authority (8.5)"
    if method is None or path is None or b":scheme" not in head:
        return ":method, :scheme or :path is absent (8.3.1)"
    if path == b"*" and method != b"OPTIONS":
        return ":path begins with no slash (8.3.1)"
    if authority is not None and head.get(b"host", authority) != authority:
        return "host is not :authority (8.3.1)"
    return ""
