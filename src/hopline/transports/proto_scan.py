"""Counting of Protobuf messages before objects are built from them.

A field of two bytes becomes an object of a hundred bytes, and a large message may have any number of
fields. Compiled, and stops when a count exceeds its limit: a message of any size needs no longer than the
largest allowed one. The format: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopline.kernels.jit import njit
from hopline.transports.shares import check_share, most_objects
from turnserve.compression import PIECE_BYTES, sent_bytes

#: Limits per 64 KiB sent: messages inside the message, and values.
_MESSAGES, _VALUES = 2**13, 2**16
#: Limit of known field numbers; those of our messages are below.
_MAX_FIELDS = 64
#: Kinds of fields: a value, packed numbers, or a message, whose number is added.
_VALUE, _VARINTS, _FIXED32, _FIXED64, _MESSAGE = range(5)
_MAX_DEPTH = 16
_PACKED = {1: _FIXED64, 2: _FIXED32, 6: _FIXED64, 7: _FIXED32, 15: _FIXED32, 16: _FIXED64}
_MESSAGE_TYPE, _STRING_TYPE, _BYTES_TYPE = 11, 9, 12


class Layout(NamedTuple):
    """The kinds of fields of a message and of the messages in it.

    Attributes:
        kinds: int64 [messages, fields].
    """

    kinds: NDArray[np.int64]


def layout_of(descriptor: Any) -> Layout:
    """Return the layout of a message type."""
    numbers, rows, waiting = {descriptor.full_name: 0}, [], [descriptor]
    for each in waiting:  # the list grows in the loop
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
    """Refuse a large or compressed message above its sender's share; others are limited by their size.

    Raises: RequestTooLarge.
    """
    sent, size = sent_bytes(data), len(data)
    if size <= min(sent, PIECE_BYTES):
        return
    most_messages, most_values = most_objects(_MESSAGES, sent, size), most_objects(_VALUES, sent, size)
    messages, values = _count(np.frombuffer(data, np.uint8), layout.kinds, most_messages, most_values)
    check_share("the message", messages, "or more nested messages", most_messages, sent)
    check_share("the message", values, "or more values outside raw_input_contents", most_values, sent)


def warm_up() -> None:
    """Load the compiled kernel."""
    _count(np.frombuffer(b"\x0a\x00", np.uint8), np.zeros((1, _MAX_FIELDS), np.int64), 1, 1)


@njit(nogil=True, cache=True)
def _varint(data, at, end):  # type: ignore[no-untyped-def]
    """Return a varint and its end; -1 as the end if it is incomplete."""
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
    """Count messages and values, until a limit is exceeded or the input is invalid."""
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
            values += 1  # a group, unused in our messages: its fields count as fields of the message
        else:
            break
        if at < 0:
            break
    return messages, values
