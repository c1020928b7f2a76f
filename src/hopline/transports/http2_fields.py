"""Rules for the fields of request heads and trailers (RFC 9113, 8.1 to 8.3).

A request that breaks a rule is malformed: its stream is reset, even if gRPC ignores the field.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

Fields: TypeAlias = Sequence[tuple[bytes, bytes]]

#: Visible ASCII without capital letters and colons (8.2.1).
_NAME = re.compile(rb"[!-9;-@\[-~]+")
#: Connection-specific fields of HTTP/1.1 (8.2.2).
_OF_CONNECTIONS = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_PSEUDO = frozenset({b":method", b":scheme", b":authority", b":path"})
#: Fields that must not be repeated.
_SINGLE = _PSEUDO | {b"content-length", b"host", b"te"}
#: Digits of a possible length; Python refuses to read 4,300.
_MAX_DIGITS = 18
_SLASH = ord("/")
#: Cache of fields that are valid independent of other fields, for all connections.
_seen: set[tuple[bytes, bytes]] = set()
_MAX_SEEN, _MAX_SEEN_BYTES = 1024, 256


def request_fault(fields: Fields) -> str:
    """Return why fields are not a valid request head; "" if they are valid.

    Args:
        fields: names and values, in order.
    """
    names = tuple([field[0] for field in fields])
    fault, is_usual = _names_fault(names)
    fault = fault or _values_fault(fields)
    return fault if fault or is_usual else _unusual_fault(dict(fields))


def trailers_fault(fields: Fields) -> str:
    """Return why fields are not valid trailers; "" if they are valid."""
    names = tuple([field[0] for field in fields])
    if not _PSEUDO.isdisjoint(names):
        return "pseudo-header fields in trailers (8.1)"
    return _names_fault(names)[0] or _values_fault(fields)


def content_length(head: Mapping[bytes, bytes]) -> int | None:
    """Return the content length of a valid head, if it has one."""
    value = head.get(b"content-length")
    return None if value is None else int(value)


@functools.lru_cache(maxsize=128)
def _names_fault(names: tuple[bytes, ...]) -> tuple[str, bool]:
    """Return a fault of names and their order, and whether each value can be checked alone.

    Cached, since clients repeat the same names.
    """
    seen: set[bytes] = set()
    for number, name in enumerate(names):
        if name in _PSEUDO:
            if len(seen) < number or not seen <= _PSEUDO:
                return "a pseudo-header field after other fields (8.3)", False
        elif not _NAME.fullmatch(name):
            return "a name with a capital letter, a colon or another invalid character (8.2.1)", False
        if name in _SINGLE and name in seen:
            return "a repeated field that must not be repeated (8.3)", False
        seen.add(name)
    if not _OF_CONNECTIONS.isdisjoint(seen):
        return "a connection-specific field of HTTP/1.1 (8.2.2)", False
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
    """Return a fault of a value that does not depend on other fields."""
    if b"\0" in value or b"\r" in value or b"\n" in value:
        return "a value with NUL, CR or LF (8.2.1)"
    if value.strip(b" \t") != value:
        return "a value with white space around it (8.2.1)"
    if name not in _SINGLE:
        return ""
    if not value and name != b":authority":
        return "an empty field that must have a value (8.3.1)"
    if name == b":path" and value[0] != _SLASH and value != b"*":
        return ":path does not begin with a slash (8.3.1)"
    if name == b":authority" and b"@" in value:
        return ":authority with user information (8.3.1)"
    if name == b"te" and value.lower() != b"trailers":
        return "te has a value other than trailers (8.2.2)"
    if name == b"content-length" and not (value.isdigit() and len(value) <= _MAX_DIGITS):
        return "content-length is not a number (8.1.1)"
    return ""


def _unusual_fault(head: Mapping[bytes, bytes]) -> str:
    """Return a fault of the combination of fields, if each is valid alone."""
    method, path, authority = head.get(b":method"), head.get(b":path"), head.get(b":authority")
    if method == b"CONNECT":  # 8.5
        is_right = authority and path is None and b":scheme" not in head
        return "" if is_right else "CONNECT with more than :authority (8.5)"
    if method is None or path is None or b":scheme" not in head:
        return ":method, :scheme or :path is missing (8.3.1)"
    if path == b"*" and method != b"OPTIONS":
        return ":path does not begin with a slash (8.3.1)"
    if authority is not None and head.get(b"host", authority) != authority:
        return "host differs from :authority (8.3.1)"
    return ""
