"""RESP 2, the protocol of Redis and Valkey: commands for many keys together, and their replies.

Compiled, since here is the cost of a fetch: redis-py needs 1.2 ms for an MGET of 421 rows of 512 bytes, of
which 0.3 are for building the command and 0.1 for a bytes object per row (log/). The protocol:
https://redis.io/docs/latest/develop/reference/protocol-spec/
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopline.kernels.jit import njit
from hopline.types import AnyArray, ExternalIds, IdArray
from hopline_stores.redis.memcpy import copy_bytes

Bytes = NDArray[np.uint8]

#: Values of `lengths` for replies without a value.
NIL, ERROR, DONE_LINE = -1, -2, -3
#: Why `read_replies` stopped.
MORE, COMPLETE, ERROR_LINE, GARBAGE = 0, 1, 2, 3

NO_BYTES: Bytes = np.empty(0, np.uint8)
_CR, _LF = 13, 10
_DOLLAR, _STAR, _MINUS, _PLUS, _COLON = 36, 42, 45, 43, 58
_DIGITS = 20  # of -2^63 and of any length
#: Replaces the id "schema", whose key has the group's schema. No UTF-8 ends in that byte.
_ID_SCHEMA = b"schema\xff"


class Keys(NamedTuple):
    """Keys that share a prefix.

    Attributes:
        prefix: uint8 [p].
        blob: the concatenated remaining parts of the keys.
        begins, ends: int64 [n]: range in `blob` for each key.
    """

    prefix: Bytes
    blob: Bytes
    begins: IdArray
    ends: IdArray

    @property
    def num(self) -> int:
        """Number of keys."""
        return len(self.begins)

    def pick(self, rows: Any) -> Keys:
        """Return some of the keys: a slice, or positions int64 [m]."""
        return Keys(self.prefix, self.blob, self.begins[rows], self.ends[rows])


def keys_of(prefix: Bytes, ids: ExternalIds) -> Keys:
    """Build the keys of rows: the prefix and the id, integers in decimal, strings in UTF-8."""
    if not isinstance(ids, np.ndarray) and len(ids) and isinstance(ids[0], str):
        return _string_keys(prefix, ids)
    try:
        numbers = np.ascontiguousarray(ids, np.int64)
    except OverflowError:
        return _string_keys(prefix, [str(id) for id in ids])
    blob = np.empty(_DIGITS * len(numbers), np.uint8)
    offsets = np.empty(len(numbers) + 1, np.int64)
    _decimal(numbers, blob, offsets)
    return Keys(prefix, blob, offsets[:-1], offsets[1:])


def _string_keys(prefix: Bytes, ids: Any) -> Keys:
    joined = "".join(ids)
    if joined.isascii() and "schema" not in ids:
        return _keys(prefix, joined.encode(), list(map(len, ids)))
    return keys_from(
        [_ID_SCHEMA if id == "schema" else id.encode("utf-8", "surrogatepass") for id in ids], prefix
    )


def keys_from(pieces: Sequence[bytes], prefix: Bytes | None = None) -> Keys:
    """Keys of the prefix, none by default, and a piece each."""
    return _keys(NO_BYTES if prefix is None else prefix, b"".join(pieces), list(map(len, pieces)))


def _keys(prefix: Bytes, blob: bytes, lengths: list[int]) -> Keys:
    ends = np.cumsum(lengths, dtype=np.int64)
    return Keys(prefix, to_bytes(blob), ends - lengths, ends)


def to_bytes(data: bytes) -> Bytes:
    """Copy bytes to a writable array: the functions below are compiled for writable arrays."""
    return np.frombuffer(bytearray(data), np.uint8)


def command(*words: bytes | str | int) -> bytes:
    """Encode one command."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode("utf-8", "surrogatepass")
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def mget(keys: Keys, part: int) -> memoryview:
    """Encode MGET of the keys, `part` keys each, to send together."""
    pieces = []
    for first in range(0, keys.num, part):
        some = keys.pick(slice(first, first + part))
        pieces.append(_commands(b"", some, head=b"*%d\r\n$4\r\nMGET\r\n" % (some.num + 1)))
    return (pieces[0] if len(pieces) == 1 else np.concatenate(pieces)).data


def get_each(keys: Keys, *, asking: bool = False) -> memoryview:
    """Encode a GET for each key, to send together; `asking` adds ASKING before each."""
    return _commands(b"*2\r\n$3\r\nGET\r\n", keys, asking=asking).data


def get_ranges(keys: Keys, firsts: IdArray, lasts: IdArray, *, asking: bool = False) -> memoryview:
    """Encode a GETRANGE for each key, to send together.

    Args:
        firsts, lasts: int64 [n], the first and the last byte of each value to read; `asking` as above.
    """
    ranges = np.column_stack((firsts, lasts))
    return _commands(b"*4\r\n$8\r\nGETRANGE\r\n", keys, ranges=ranges, asking=asking).data


def set_each(keys: Keys, rows: AnyArray, ttl_ms: int | None, *, asking: bool = False) -> memoryview:
    """Encode a SET for each key, to send together.

    Args:
        rows: [n, d] C-contiguous; the value of a key is the bytes of its row.
        ttl_ms: when the rows expire, None for never; `asking` as above.
    """
    raw = rows.view(np.uint8)
    head = b"$%d\r\n" % raw.shape[1]
    expiry = b"" if ttl_ms is None else command("PX", ttl_ms).partition(b"\r\n")[2]
    tails = np.empty((len(raw), len(head) + raw.shape[1] + 2 + len(expiry)), np.uint8)
    tails[:, : len(head)] = to_bytes(head)
    tails[:, len(head) : len(head) + raw.shape[1]] = raw
    tails[:, len(head) + raw.shape[1] :] = to_bytes(b"\r\n" + expiry)
    before = b"*%d\r\n$3\r\nSET\r\n" % (3 if ttl_ms is None else 5)
    return _commands(before, keys, tails=tails, asking=asking).data


def hmget_each(keys: Keys, fields: Sequence[str], *, asking: bool = False) -> memoryview:
    """Encode HMGET of the same fields for each key, to send together; `asking` as above."""
    tail = command(*fields).partition(b"\r\n")[2]
    tails = np.tile(to_bytes(tail), (keys.num, 1))
    return _commands(b"*%d\r\n$5\r\nHMGET\r\n" % (len(fields) + 2), keys, tails=tails, asking=asking).data


#: Replaces a hash: fields and values in turns, after the milliseconds until it expires or "".
_REPLACE = """
redis.call('DEL', KEYS[1])
for at = 2, #ARGV, 2000 do redis.call('HSET', KEYS[1], unpack(ARGV, at, math.min(at + 1999, #ARGV))) end
if ARGV[1] ~= '' then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return 1
"""


def replace_each(
    keys: Keys, rows: Sequence[Sequence[bytes]], ttl_ms: int | None, *, asking: bool = False
) -> memoryview:
    """Encode a script for each key that replaces its hash, to send together.

    Args:
        rows: fields and values in turns; at least one field for each key.
        ttl_ms, asking: as above.
    """
    prefix, blob, ends = keys.prefix.tobytes(), keys.blob.tobytes(), keys.ends.tolist()
    before = command("ASKING") if asking else b""
    expiry = "" if ttl_ms is None else ttl_ms
    return memoryview(
        b"".join(
            before + command("EVAL", _REPLACE, 1, prefix + blob[begin:end], expiry, *row)
            for begin, end, row in zip(keys.begins.tolist(), ends, rows, strict=True)
        )
    )


def unlink_each(keys: Keys, *, asking: bool = False) -> memoryview:
    """Encode an UNLINK for each key, to send together; `asking` as above."""
    return _commands(b"*2\r\n$6\r\nUNLINK\r\n", keys, asking=asking).data


def _commands(
    before: bytes,
    keys: Keys,
    *,
    head: bytes = b"",
    tails: Bytes | None = None,
    ranges: IdArray | None = None,
    asking: bool = False,
) -> Bytes:
    """Encode a command for each key: `before`, the key, the numbers of its range, its tail."""
    tails = np.empty((keys.num, 0), np.uint8) if tails is None else tails
    ranges = np.empty((keys.num, 0), np.int64) if ranges is None else ranges
    before = command("ASKING") + before if asking else before
    number = 4 + _DIGITS + 4  # "$len\r\nnumber\r\n"
    each = len(before) + number + len(keys.prefix) + 2 + number * ranges.shape[1] + tails.shape[1]
    out = np.empty(len(head) + keys.num * each + int((keys.ends - keys.begins).sum()), np.uint8)
    return out[: _write_commands(out, to_bytes(head), to_bytes(before), *keys, ranges, tails)]


@njit(cache=True, nogil=True)
def _put(out: Bytes, at: int, data: Bytes) -> int:
    copy_bytes(out, at, data, 0, len(data))
    return at + len(data)


@njit(cache=True, nogil=True)
def _put_number(out: Bytes, at: int, number: int) -> int:
    """Write the number in decimal."""
    if number < 0:
        out[at] = _MINUS
        at += 1
    # -2^63 has no positive int64.
    rest: Any = np.uint64(-(number + 1)) + np.uint64(1) if number < 0 else np.uint64(number)
    ten = np.uint64(10)
    digits, power = 1, ten
    while digits < _DIGITS - 1 and rest >= power:
        digits += 1
        power *= ten
    for place in range(at + digits - 1, at - 1, -1):
        out[place] = np.uint8(48) + np.uint8(rest % ten)
        rest = rest // ten
    end: int = at + digits
    return end


@njit(cache=True, nogil=True)
def _decimal(numbers: IdArray, blob: Bytes, offsets: IdArray) -> None:
    offsets[0] = 0
    for i in range(len(numbers)):
        offsets[i + 1] = _put_number(blob, offsets[i], numbers[i])


@njit(cache=True, nogil=True)
def _put_line(out: Bytes, at: int) -> int:
    out[at] = _CR
    out[at + 1] = _LF
    return at + 2


@njit(cache=True, nogil=True)
def _put_word(out: Bytes, at: int, number: int) -> int:
    """Write a number below 10^9, >= 0, as a word of a command."""
    length, power = 1, 10
    while number >= power:
        length += 1
        power *= 10
    out[at] = _DOLLAR
    out[at + 1] = np.uint8(48 + length)
    at = _put_line(out, at + 2)
    return _put_line(out, _put_number(out, at, number))  # type: ignore[no-any-return]


@njit(cache=True, nogil=True)
def _write_commands(
    out: Bytes,
    head: Bytes,
    before: Bytes,
    prefix: Bytes,
    blob: Bytes,
    begins: IdArray,
    ends: IdArray,
    ranges: IdArray,
    tails: Bytes,
) -> int:
    at: int = _put(out, 0, head)
    for i in range(len(begins)):
        at = _put(out, at, before)
        out[at] = _DOLLAR
        at = _put_line(out, _put_number(out, at + 1, len(prefix) + ends[i] - begins[i]))
        at = _put(out, at, prefix)
        copy_bytes(out, at, blob, begins[i], ends[i] - begins[i])
        at = _put_line(out, at + int(ends[i] - begins[i]))
        for j in range(ranges.shape[1]):
            at = _put_word(out, at, ranges[i, j])
        at = _put(out, at, tails[i])
    return at


def slots(keys: Keys) -> IdArray:
    """Return the hash slot of each key in a cluster, int64 [n].

    That is CRC-16/XMODEM, modulo 16,384, of the key, or of the part in its first {} if not empty.
    """
    prefix, blob = keys.prefix.tobytes(), keys.blob.tobytes()
    pieces = [blob[begin:end] for begin, end in zip(keys.begins.tolist(), keys.ends.tolist(), strict=True)]
    if b"{" in prefix or b"{" in blob:
        pieces, prefix = [_hashed(prefix + piece) for piece in pieces], b""
    found = map(crc_hqx, pieces, repeat(crc_hqx(prefix, 0)))
    return np.fromiter(found, np.int64, keys.num) % 16384


def _hashed(key: bytes) -> bytes:
    begin = key.find(b"{")
    end = key.find(b"}", begin + 1)
    return key[begin + 1 : end] if 0 <= begin < end - 1 else key


@njit(cache=True, nogil=True)
def read_replies(
    buffer: Bytes, begin: int, end: int, state: IdArray, part: int, lengths: IdArray, rows: Bytes
) -> int:
    """Read more replies to a command for many keys.

    Args:
        buffer: received bytes; those in [begin, end) are new.
        state: int64 [4]: the next row; why it stopped; bytes of a value still to be skipped; whether the
            next line is the head of an array.
        part: keys per MGET, 0 if each key has its own command.
        lengths: int64 [n]: the value's length, or NIL or DONE_LINE.
        rows: uint8 [n, row_bytes]; values of at most this length are stored here, from the left.
    Returns: where it stopped; for an error, the begin of its line.
    """
    n, row_bytes = rows.shape
    row = state[0]
    while True:
        if state[2] > 0:
            step = min(state[2], end - begin)
            state[2] -= step
            begin += step
        if row == n and state[2] == 0:
            state[1] = COMPLETE
            break
        line_end = begin + 1
        while line_end < end and buffer[line_end] != _LF:
            line_end += 1
        if line_end >= end:
            state[1] = MORE
            break
        kind = buffer[begin]
        if kind == _MINUS:
            state[1] = ERROR_LINE
            break
        if kind in (_PLUS, _COLON):
            number = 0
        else:
            number = _number(buffer, begin + 1, line_end - 1)
        if state[3]:
            if kind != _STAR or number != min(part, n - row):
                state[1] = GARBAGE
                break
            state[3] = 0
            begin = line_end + 1
            continue
        if kind in (_PLUS, _COLON):
            lengths[row] = DONE_LINE
            begin = line_end + 1
        elif kind != _DOLLAR or number < -1:
            state[1] = GARBAGE
            break
        elif number == -1:
            lengths[row] = NIL
            begin = line_end + 1
        elif number <= row_bytes:
            value = line_end + 1
            if value + number + 2 > end:
                state[1] = MORE
                break
            copy_bytes(rows, row * row_bytes, buffer, value, number)
            lengths[row] = number
            begin = value + number + 2
        else:  # an unexpected length, maybe larger than the buffer
            lengths[row] = number
            state[2] = number + 2
            begin = line_end + 1
        row += 1
        if part and row % part == 0:
            state[3] = 1
    state[0] = row
    return begin


@njit(cache=True, nogil=True)
def _number(buffer: Bytes, begin: int, end: int) -> int:
    """Return the number in [begin, end), -2 if it is invalid (or not a length)."""
    if end == begin + 2 and buffer[begin] == _MINUS and buffer[begin + 1] == 49:
        return -1
    if end <= begin or end - begin > 12:
        return -2
    number: Any = 0
    for i in range(begin, end):
        if buffer[i] < 48 or buffer[i] > 57:
            return -2
        number = number * 10 + np.int64(buffer[i]) - 48
    return number  # type: ignore[no-any-return]


class ServerError(str):
    """The text of an error reply, "CODE words"."""

    __slots__ = ()


def parse(data: bytes, at: int = 0) -> tuple[Any, int] | None:
    """Parse one reply of any kind: str, ServerError, int, bytes, None or a list of those.

    Returns: the reply and where it ends; None if it is incomplete.
    Raises: ValueError: it is not RESP.
    """
    line_end = data.find(b"\r\n", at)
    if line_end < 0:
        if len(data) > at and data[at] not in b"+-:$*":
            raise ValueError("not RESP")
        return None
    kind, line, at = data[at], data[at + 1 : line_end], line_end + 2
    if kind == _PLUS:
        return line.decode("utf-8", "replace"), at
    if kind == _MINUS:
        return ServerError(line.decode("utf-8", "replace")), at
    if kind not in b":$*":
        raise ValueError("not RESP")
    number = int(line)
    if kind == _COLON:
        return number, at
    if number == -1:
        return None, at
    if kind == _DOLLAR:
        end = at + number
        return (data[at:end], end + 2) if len(data) >= end + 2 else None
    items = []
    for _ in range(number):
        item = parse(data, at)
        if item is None:
            return None
        items.append(item[0])
        at = item[1]
    return items, at
