"""Counting of JSON before objects are built from it: size, lengths of lists, repeated names.

Compiled, and without the interpreter lock, so that it runs in parallel to the event loop: a few nanoseconds
per byte. Invalid JSON is counted at least as far as a reader gets.
"""

from __future__ import annotations

import secrets
from typing import Any, NamedTuple

import msgspec
import numpy as np

from hopline.errors import BadRequest, quoted
from hopline.kernels.jit import njit

#: Lists of the outermost object that are counted; more than any valid body has.
_MAX_LISTS = 64
_NAMES, _WEIGHT, _LONGEST = 0, 1, 2
#: Depth up to which the names of objects are counted.
_MAX_DEPTH = 8
_QUOTE, _BACKSLASH, _COLON, _COMMA = 34, 92, 58, 44
_OPEN_LIST, _CLOSE_LIST, _OPEN_OBJECT, _CLOSE_OBJECT = 91, 93, 123, 125
#: Bytes that end a number.
_ENDS = (_COMMA, _CLOSE_LIST, _CLOSE_OBJECT, _QUOTE, _COLON, _OPEN_LIST, _OPEN_OBJECT)
#: Cost of building an object, a string, a list, in units of a small integer.
_OBJECT_WEIGHT, _STRING_WEIGHT, _LIST_WEIGHT = 32, 2, 20
#: Characters of a number, of a string, or between values, that cost as much as one more value. Blanks are
#: read several times: `data` of a tensor is read once for its place and once for its values.
_NUMBER_CHARS, _STRING_CHARS, _BLANKS = 8, 16, 8
#: Up to this many names of an object are compared pairwise.
_FEW = 12
#: Random parameters of the hash of names: clients cannot choose names that collide.
_KEY, _START = (np.uint64(secrets.randbits(64) | 1) for _ in range(2))


class Counts(NamedTuple):
    """The counts of a JSON text.

    Attributes:
        weight: cost of building it, in units of a small integer.
        num_names: number of names of all objects.
        lists: name in the outermost object -> number of items, if the value is a list; if it is an object,
            the number of items of the longest list in it.
        longest_object: largest number of names of one object.
    """

    weight: int
    num_names: int
    lists: dict[bytes, int]
    longest_object: int


def count(text: bytes) -> Counts:
    """Count the values, names and lists of a JSON text."""
    counts, lists = np.zeros(3, np.int64), np.zeros((_MAX_LISTS, 3), np.int64)
    num_lists = _count(np.frombuffer(text, np.uint8), counts, lists)
    found: dict[bytes, int] = {}
    for begin, end, items in lists[:num_lists].tolist():
        name = text[begin:end]
        found[name] = max(items, found.get(name, 0))
    return Counts(int(counts[_WEIGHT]), int(counts[_NAMES]), found, int(counts[_LONGEST]))


def refuse_repeated(text: bytes, num_names: int) -> None:
    """Refuse a text with an object that repeats a name.

    Args:
        num_names: the counted number.

    Raises: BadRequest: with the name.
    """
    if num_names < 2:
        return
    data = np.frombuffer(text, np.uint8)
    begin = _repeated(data, np.empty((2, num_names), np.int64), _KEY, _START)
    if begin >= 0:
        end, _ = _string_end(data, begin)
        name = text[begin : end + 1]
        try:
            shown = msgspec.json.decode(name, type=str)
        except (msgspec.DecodeError, UnicodeDecodeError):
            shown = name[1:-1].decode(errors="replace")
        raise BadRequest(f"field {quoted(shown)} is repeated in one object; send it once")


def warm_up() -> None:
    """Load the compiled kernels."""
    text = b'{"a":[1],"b":2}'
    refuse_repeated(text, count(text).num_names)


@njit(nogil=True, cache=True)
def _string_end(data, at):  # type: ignore[no-untyped-def]
    """Return the end of the string whose quote is at `at`, and its number of escapes."""
    n, escapes = data.shape[0], 0
    at += 1
    while at < n and data[at] != _QUOTE:
        if data[at] == _BACKSLASH:
            escapes += 1
            at += 1
        at += 1
    return min(at, n), escapes


@njit(nogil=True, cache=True)
def _count(data, counts, lists):  # type: ignore[no-untyped-def]
    """Fill counts and lists (begin and end of the name, items); return the number of lists."""
    n, at, depth, num_lists, current = data.shape[0], 0, 0, 0, -1
    name_begin, name_end, blanks = 0, 0, 0
    outer, inner = -1, -1  # the entry of an object in the outermost one; items of a list in it
    names = np.zeros(_MAX_DEPTH, np.int64)
    while at < n:
        byte = data[at]
        if byte <= 32 or byte == _COMMA:
            blanks += byte != _COMMA
            at += 1
            continue
        if byte == _COLON:
            counts[_NAMES] += 1
            if depth < _MAX_DEPTH:
                names[depth] += 1
                counts[_LONGEST] = max(counts[_LONGEST], names[depth])
            at += 1
            continue
        if byte in (_CLOSE_LIST, _CLOSE_OBJECT):
            if depth == 0:
                break  # no reader gets beyond
            depth -= 1
            if depth < 3 and inner >= 0:
                lists[outer, 2] = max(lists[outer, 2], inner)
                inner = -1
            if depth < 2:
                current = outer = -1
            at += 1
            continue
        if depth == 2 and current >= 0:
            lists[current, 2] += 1
        elif depth == 3 and inner >= 0:
            inner += 1
        if byte == _QUOTE:
            end, escapes = _string_end(data, at)
            if depth == 1:
                name_begin, name_end = at + 1, end
            counts[_WEIGHT] += _STRING_WEIGHT + escapes + (end - at) // _STRING_CHARS
            at = end + 1
            continue
        if byte in (_OPEN_LIST, _OPEN_OBJECT):
            depth += 1
            if byte == _OPEN_LIST:
                counts[_WEIGHT] += _LIST_WEIGHT
                if depth == 3 and outer >= 0:
                    inner = 0
            else:
                counts[_WEIGHT] += _OBJECT_WEIGHT
                if depth < _MAX_DEPTH:
                    names[depth] = 0
            if depth == 2 and name_end > 0 and num_lists < lists.shape[0]:
                if byte == _OPEN_LIST:
                    current = num_lists
                else:
                    outer = num_lists
                lists[num_lists, 0], lists[num_lists, 1] = name_begin, name_end
                num_lists += 1
            at += 1
            continue
        begin = at
        while at < n and data[at] > 32 and data[at] not in _ENDS:
            at += 1
        counts[_WEIGHT] += 1 + (at - begin) // _NUMBER_CHARS
    counts[_WEIGHT] += blanks // _BLANKS
    return num_lists


@njit(nogil=True, cache=True)
def _hex(data, at):  # type: ignore[no-untyped-def]
    """Return the value of four hexadecimal digits; arbitrary for other characters."""
    value = 0
    for i in range(at, min(at + 4, data.shape[0])):
        digit = data[i]
        value = value * 16 + (digit - 48 if digit < 58 else (digit | 32) - 87)
    return value


@njit(nogil=True, cache=True)
def _hash(data, begin, end, key, start):  # type: ignore[no-untyped-def]
    """Hash a name; the result is the same with and without escapes."""
    value, at = start, begin
    while at < end:
        code: Any = np.int64(data[at])
        at += 1
        if code == _BACKSLASH and at < end:
            code = np.int64(data[at])
            at += 1
            if code == 117:  # u
                code = np.int64(_hex(data, at))
                at += 4
                if 0xD800 <= code < 0xDC00 and at + 6 <= end and data[at] == _BACKSLASH:
                    code = 0x10000 + ((code - 0xD800) << 10) + (np.int64(_hex(data, at + 2)) - 0xDC00)
                    at += 6
            elif code == 110:  # n
                code = 10
            elif code == 116:  # t
                code = 9
            elif code == 114:  # r
                code = 13
            elif code == 98:  # b
                code = 8
            elif code == 102:  # f
                code = 12
        elif code >= 0xC0:  # UTF-8: decode to the same code point as an escape
            more = 1 if code < 0xE0 else 2 if code < 0xF0 else 3
            code &= 0x3F >> more
            for _ in range(more):
                if at < end:
                    code = code << 6 | np.int64(data[at]) & 0x3F
                    at += 1
        value = (value ^ np.uint64(code)) * key
        value ^= value >> np.uint64(29)
    return np.int64(value)


@njit(nogil=True, cache=True)
def _repeated(data, names, key, start):  # type: ignore[no-untyped-def]
    """Return the begin of a name that its object repeats; -1 if there is none.

    names: int64 [2, n]: hash and position of the names of all open objects, innermost last.
    """
    n, at, top = data.shape[0], 0, 0
    bases, num_open, last = np.empty(16, np.int64), 0, -1
    while at < n:
        byte = data[at]
        if byte == _QUOTE:
            last = at
            at, _ = _string_end(data, at)
        elif byte == _COLON and last >= 0 and top < names.shape[1]:
            end, _ = _string_end(data, last)
            names[0, top] = _hash(data, last + 1, end, key, start)
            names[1, top] = last
            top += 1
        elif byte == _OPEN_OBJECT:
            if num_open == bases.shape[0]:
                more = np.empty(2 * num_open, np.int64)
                more[:num_open] = bases
                bases = more
            bases[num_open] = top
            num_open += 1
        elif byte == _CLOSE_OBJECT and num_open > 0:
            num_open -= 1
            base = bases[num_open]
            if top - base <= _FEW:
                for j in range(base + 1, top):
                    for i in range(base, j):
                        if names[0, i] == names[0, j]:
                            return names[1, j]
            else:
                hashes = np.sort(names[0, base:top])
                for i in range(1, hashes.shape[0]):
                    if hashes[i] == hashes[i - 1]:
                        seen = False
                        for j in range(base, top):
                            if names[0, j] == hashes[i]:
                                if seen:
                                    return names[1, j]
                                seen = True
            top = base
        at += 1
    return -1
