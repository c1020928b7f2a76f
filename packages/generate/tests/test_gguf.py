"""GGUF files that this test writes, whole and damaged."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from hopline.errors import ArtifactError
from hopline_generate.gguf import read_gguf

F32, Q4_0 = 0, 2
NAME = "weights"


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def entry(key: str, value: int | str) -> bytes:
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    return text(key) + struct.pack("<II", 4, value)


def gguf(
    metadata: dict[str, int | str], kind: int, shape: tuple[int, ...], data: bytes, offset: int = 0
) -> bytes:
    """A file with one tensor."""
    info = text(NAME) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(metadata))
    head += b"".join(entry(key, value) for key, value in metadata.items()) + info
    return head + bytes(-len(head) % 32) + data


def read(folder: Path, content: bytes) -> tuple[dict[str, object], int]:
    file = folder / "model.gguf"
    file.write_bytes(content)
    return read_gguf(file)


@pytest.mark.parametrize(
    ("kind", "shape", "num_bytes"),
    [(F32, (5,), 20), (F32, (3, 4), 48), (Q4_0, (64, 2), 72), (Q4_0, (32,), 18)],
)
def test_a_file_is_whole_if_its_last_tensor_is(
    tmp_path: Path, kind: int, shape: tuple[int, ...], num_bytes: int
) -> None:
    content = gguf({"general.name": "x"}, kind, shape, bytes(num_bytes))
    metadata, num_parameters = read(tmp_path, content)
    assert metadata == {"general.name": "x"}
    assert num_parameters == shape[0] * (shape[1] if len(shape) > 1 else 1)
    with pytest.raises(ArtifactError, match="cut off"):
        read(tmp_path, content[:-1])


@pytest.mark.parametrize("alignment", [0, 2**31, "wide"])
def test_an_alignment_that_is_none_is_refused(tmp_path: Path, alignment: int | str) -> None:
    with pytest.raises(ArtifactError, match="are aligned to"):
        read(tmp_path, gguf({"general.alignment": alignment}, F32, (1,), bytes(64)))


def test_a_tensor_of_an_unknown_type_begins_inside_the_file(tmp_path: Path) -> None:
    content = gguf({}, 77, (5,), bytes(8))
    assert read(tmp_path, content)[1] == 5
    with pytest.raises(ArtifactError, match="cut off"):
        read(tmp_path, gguf({}, 77, (5,), bytes(8), offset=8))


def lists(depth: int) -> bytes:
    """A file whose only entry is a list in a list, so many of them."""
    value = struct.pack("<IQ", 9, 1) * (depth - 1) + struct.pack("<IQ", 0, 0)
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("lists") + struct.pack("<I", 9) + value + bytes(32)


def test_lists_in_lists_are_read_up_to_a_depth(tmp_path: Path) -> None:
    assert read(tmp_path, lists(8)) == ({}, 0)
    for depth in (9, 100_000):
        with pytest.raises(ArtifactError, match="more than 8 lists in each other"):
            read(tmp_path, lists(depth))


def test_a_refusal_does_not_repeat_the_file(tmp_path: Path) -> None:
    content = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("x" * 10_000_000) + struct.pack("<I", 9)
    with pytest.raises(ArtifactError, match="has 9 dimensions") as caught:
        read(tmp_path, content)
    assert len(str(caught.value)) < 1000


def test_texts_beyond_what_a_server_should_hold_are_refused(tmp_path: Path) -> None:
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 5)
    entries = b"".join(entry(f"key {number}", "x" * 15_000_000) for number in range(5))
    with pytest.raises(ArtifactError, match="more than 67108864 characters"):
        read(tmp_path, head + entries + bytes(32))


def test_a_value_of_an_unknown_type_is_refused(tmp_path: Path) -> None:
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("key") + struct.pack("<I", 13)
    with pytest.raises(ArtifactError, match="a value of type 13"):
        read(tmp_path, head + bytes(64))


def test_a_number_that_is_none_is_0(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(gguf({"llama.context_length": "long", "llama.heads": 3}, F32, (1,), bytes(4)))
    found = read_gguf(file)
    assert found.number("llama.context_length") == found.number("missing") == 0
    assert found.number("llama.heads") == 3
