"""Protobuf's wire format, counted before anything is built of it.

A field of two bytes becomes an object of a hundred, and a large message has any number of them.
Compiled, and done as soon as a count is above what may be: a message of any size takes no longer than one
that is just allowed. The format: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopline.kernels.jit import njit
from hopline.transports.share import PIECE_BYTES, check_share, most_objects, sent_bytes

#: Of one piece of 64 KiB that was sent: messages inside the message, and values.
_MESSAGES, _VALUES = 2**13, 2**16
#: Field numbers that are told apart; ours are below it.
_MAX_FIELDS = 64
#: What a field holds: a value, packed numbers, or a message: its own number is added.
_VALUE, _VARINTS, _FIXED32, _FIXED64, _MESSAGE = range(5)
_MAX_DEPTH = 16
_PACKED = {1: _FIXED64, 2: _FIXED32, 6: _FIXED64, 7: _FIXED32, 15: _FIXED32, 16: _FIXED64}
_MESSAGE_TYPE, _STRING_TYPE, _BYTES_TYPE = 11, 9, 12


class Layout(NamedTuple):
    """What the fields of a message, and of the messages in it, hold.

    Attributes:
        kinds: int64 [messages, fields].
    """

    kinds: NDArray[np.int64]


def layout_of(descriptor: Any) -> Layout:
    """The layout of a message type."""
    numbers, rows, waiting = {descriptor.full_name: 0}, [], [descriptor]
    for each in waiting:  # grows meanwhile
        row = np.zeros(_MAX_FIELDS, np.int64)
        for field in each.fields:
            if field.type == _MESSAGE_TYPE:
                inner = field.message_type
                if inner.full_name not in numbers:
                    numbers[inner.full_name] = len(numbers)
                    waiting.append(inner)
                row[field.number] = _MESSAGE + numbers[inner.full_name]
            elif field.type not in (_STRING_TYPE, _BYTES_TYPE):
                row[field.number] = _PACKED.get(field.type, _VARINTS)
        rows.append(row)
    return Layout(np.stack(rows))


def check_message(layout: Layout, data: bytes) -> None:
    """Refuse a large or compressed message that holds more than its sender's share; size bounds others.

    Raises: RequestTooLarge.
    """
    sent, size = sent_bytes(data), len(data)
    if size <= min(sent, PIECE_BYTES):
        return
    most_messages, most_values = most_objects(_MESSAGES, sent, size), most_objects(_VALUES, sent, size)
    messages, values = _count(np.frombuffer(data, np.uint8), layout.kinds, most_messages, most_values)
    check_share("the message", messages, "messages in it, or more", most_messages, sent)
    check_share("the message", values, "values outside raw_input_contents, or more", most_values, sent)


def warm_up() -> None:
    """Have the kernel ready."""
    _count(np.frombuffer(b"\x0a\x00", np.uint8), np.zeros((1, _MAX_FIELDS), np.int64), 1, 1)


@njit(nogil=True, cache=True)
def _varint(data, at, end):  # type: ignore[no-untyped-def]
    """A varint, and where it ends; -1 where it does not."""
    value, shift = np.uint64(0), np.uint64(0)
    while at < end and shift < np.uint64(64):
        byte = np.uint64(data[at])
        value |= (byte & np.uint64(127)) << shift
        at += 1
        if byte < np.uint64(128):
            return value, at
        shift += np.uint64(7)
    return value, -1


@njit(nogil=True, cache=True)
def _count(data, kinds, most_messages, most_values):  # type: ignore[no-untyped-def]
    """Messages and values, until there are more than so many, or what follows is no message."""
    messages, values, depth, at = 0, 0, 0, 0
    ends, layouts = np.empty(_MAX_DEPTH, np.int64), np.empty(_MAX_DEPTH, np.int64)
    ends[0], layouts[0] = data.shape[0], 0
    while messages <= most_messages and values <= most_values:
        if at >= ends[depth]:
            if depth == 0:
                break
            depth -= 1
            continue
        end = ends[depth]
        tag, at = _varint(data, at, end)
        if at < 0:
            break
        number, wire = np.int64(tag >> np.uint64(3)), np.int64(tag & np.uint64(7))
        kind = kinds[layouts[depth], number] if number < kinds.shape[1] else _VALUE
        if wire == 0:
            _, at = _varint(data, at, end)
            values += 1
        elif wire == 1 or wire == 5:
            at += 8 if wire == 1 else 4
            values += 1
        elif wire == 2:
            length, at = _varint(data, at, end)
            if at < 0 or length > np.uint64(end - at):
                break
            size = np.int64(length)
            if kind >= _MESSAGE:
                messages += 1
                if depth + 1 == ends.shape[0]:
                    break
                depth += 1
                ends[depth], layouts[depth] = at + size, kind - _MESSAGE
                continue
            if kind == _VARINTS:
                for i in range(at, at + size):
                    values += data[i] < 128
            elif kind == _FIXED32:
                values += size // 4
            elif kind == _FIXED64:
                values += size // 8
            else:
                values += 1
            at += size
        elif wire in (3, 4):
            values += 1  # a group, which no message of ours has: its fields count as those around it
        else:
            break
        if at < 0:
            break
    return messages, values
