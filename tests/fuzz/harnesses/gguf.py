"""GGUF files: whatever someone calls a model. The oracle is a parser of slices of the whole file."""

from __future__ import annotations

import math
import struct
import tempfile
from pathlib import Path
from typing import Any

from hopline.errors import ArtifactError
from hopline_generate.gguf import quantisation, read_gguf
from tests.fuzz.fed import check_text

_folder = tempfile.TemporaryDirectory(prefix="hopline-fuzz-")
_path = Path(_folder.name) / "model.gguf"
_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
#: Types of whole weights, of which the oracle computes sizes.
_WEIGHT_BYTES = {0: 4, 1: 2, 24: 1, 25: 2, 26: 4, 27: 8, 28: 8, 30: 2}


def check(data: bytes) -> None:
    """Args: data: where the file is cut off; whether it has a good beginning; and its bytes."""
    if len(data) < 2:
        return
    cut, kind, body = data[0], data[1] % 4, data[2:]
    if kind:  # a beginning that says how many entries and tensors follow
        body = b"GGUF" + struct.pack("<IQQ", 2 + kind % 2, len(body) % 3, kind) + body
    found = _read(body)
    if found is None:
        return
    metadata, num_parameters = found
    quantisation(metadata)
    reader = _Slices(body)
    entries, shapes = reader.file()
    assert repr(metadata) == repr(entries)  # NaN is not equal to itself
    assert num_parameters == sum(math.prod(shape) for shape, _, _ in shapes)
    alignment = entries.get("general.alignment", 32)
    begin = -(-reader.at // alignment) * alignment
    for shape, weights, offset in shapes:
        if weights in _WEIGHT_BYTES:
            assert begin + offset + math.prod(shape) * _WEIGHT_BYTES[weights] <= len(body)
    assert repr(_read(body + b"\0")) == repr(found), "bytes behind the last tensor change what is read"
    if cut < reader.at:
        assert _read(body[:cut]) is None, "a file without its end is read"


def _read(content: bytes) -> tuple[dict[str, Any], int] | None:
    _path.write_bytes(content)
    try:
        return read_gguf(_path)
    except ArtifactError as error:
        check_text(str(error))
        return None


class _Slices:
    """Reads values one after another."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.at = 0

    def file(self) -> tuple[dict[str, Any], list[tuple[tuple[int, ...], int, int]]]:
        """Entries without lists; shape, type and offset of each tensor."""
        assert self.take(4) == b"GGUF"
        _, num_tensors, num_entries = self.number("I"), self.number("Q"), self.number("Q")
        entries = {}
        for _ in range(num_entries):
            key, kind = self.text(), self.number("I")
            value = self.value(kind)
            if kind != 9:
                entries[key] = value
        shapes = []
        for _ in range(num_tensors):
            self.text()
            shape = tuple(self.number("Q") for _ in range(self.number("I")))
            shapes.append((shape, self.number("I"), self.number("Q")))
        return entries, shapes

    def value(self, kind: int) -> Any:
        """A value of a type."""
        if kind == 8:
            return self.text()
        if kind == 9:
            element, count = self.number("I"), self.number("Q")
            return [self.value(element) for _ in range(count)]
        return self.number(_FORMATS[kind])

    def text(self) -> str:
        """A string."""
        return self.take(self.number("Q")).decode()

    def number(self, form: str) -> Any:
        """A number."""
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))[0]

    def take(self, count: int) -> bytes:
        """Bytes, all of them there."""
        assert self.at + count <= len(self._content)
        self.at += count
        return self._content[self.at - count : self.at]
