"""The header of a precomputed file, and the layout of its sections."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hopline.artifact import sha256_of
from hopline.errors import PrecomputedFileError

MAGIC = b"\x93HOPTABL"
#: Of a file that is being written; readers reject it.
DRAFT_MAGIC = b"\x93HOPDRFT"
FORMAT_VERSION = 1
PAGE = 4096

#: magic, format version, bytes of JSON, blake2b of the JSON
_PREFIX = struct.Struct("<8sII16s")
_MAX_JSON = 1 << 20


class Section(msgspec.Struct, frozen=True):
    """One array of the file.

    Attributes:
        offset: of its first byte, a multiple of `PAGE`.
        blake2b: content hash as in `graph.digest`; "" while it is being written.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    blake2b: str = ""

    @property
    def num_bytes(self) -> int:
        """Bytes of the array."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


class PrecomputedPlan(msgspec.Struct, frozen=True):
    """Contents of a precomputed file that are known before rows are computed.

    Attributes:
        model, version: of the artifact.
        model_hash: hex sha256 of its model.json, which has the hashes of its files; see `model_hash`.
        graph_version: of the snapshot, with the sequence of a live graph where it is one.
        node_type: whose rows these are.
        num_nodes: N.
        state_dim: d, columns of the final state.
        output_dim: c, columns of logits; 0 for a file without logits.
        exact: all neighbours were read, without the model's fanouts.
    """

    model: str
    version: str
    model_hash: str
    graph_version: str
    node_type: str
    num_nodes: int
    state_dim: int
    output_dim: int = 0
    exact: bool = False

    def sections(self, begin: int = PAGE) -> tuple[Section, ...]:
        """Layout of the arrays in a file whose header has `begin` bytes."""
        n = self.num_nodes
        shapes: list[tuple[str, str, tuple[int, ...]]] = [("state", "<f4", (n, self.state_dim))]
        if self.output_dim:
            shapes.append(("logits", "<f4", (n, self.output_dim)))
        shapes += [("computed_at", "<i8", (n,)), ("ids", "<u8", (n,))]
        found = []
        at = begin
        for name, dtype, shape in shapes:
            section = Section(name, dtype, shape, at)
            found.append(section)
            at = _next_page(at + section.num_bytes)
        return tuple(found)


class Header(msgspec.Struct, frozen=True):
    """The header of a finished file.

    Attributes:
        plan: what it is about.
        created_ms: when it was finished, ms since the epoch.
        file_bytes: of the whole file.
    """

    plan: PrecomputedPlan
    created_ms: int
    sections: tuple[Section, ...]
    file_bytes: int
    level: str = "final"


def model_hash(folder: Path) -> str:
    """The identity of an artifact: hex sha256 of its model.json."""
    return sha256_of(folder / "model.json")


def packed(magic: bytes, content: Any) -> bytes:
    """Encode a struct as the first bytes of a file, padded to whole pages."""
    text = msgspec.json.encode(content)
    prefix = _PREFIX.pack(magic, FORMAT_VERSION, len(text), _digest(text))
    return prefix + text + bytes(_next_page(len(prefix) + len(text)) - len(prefix) - len(text))


def unpacked(magic: bytes, head: bytes, path: Path, kind: Any) -> Any:
    """Read the output of `packed`.

    Args:
        head: the file's first bytes, as many as there may be.

    Raises: PrecomputedFileError: the file is of another kind, damaged, or of a newer format.
    """
    again = "run `hopline batch` again"
    if len(head) < _PREFIX.size or head[:8] != magic:
        raise PrecomputedFileError(
            f"{path} is not a precomputed file, such as `hopline batch --to FILE.precomputed` writes"
        )
    _, version, length, digest = _PREFIX.unpack_from(head)
    if version > FORMAT_VERSION:
        raise PrecomputedFileError(
            f"{path}: format {version} is newer than {FORMAT_VERSION}, which this Hopline reads; "
            "upgrade hopline"
        )
    text = head[_PREFIX.size : _PREFIX.size + length]
    if version < 1 or length > _MAX_JSON or len(text) < length or _digest(text) != digest:
        raise PrecomputedFileError(f"{path} is damaged: its header is not as it was written; {again}")
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PrecomputedFileError(f"{path} is damaged: invalid header: {error}; {again}") from None


def max_head_bytes() -> int:
    """The largest size of a header, bytes."""
    return _PREFIX.size + _MAX_JSON


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).digest()


def _next_page(at: int) -> int:
    return -(-at // PAGE) * PAGE
