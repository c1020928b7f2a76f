"""Ids of a graph snapshot, and of a precomputed file without its graph; without compiled code.

A look-up takes microseconds per id here, and nanoseconds with compiled code.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline.errors import GraphError
from hopline.graph.id_values import typed
from hopline.graph.ids import IdIndex
from hopline.types import UNREADABLE, AnyArray, IdArray

_WORD = 2**64 - 1
_INCREMENT = 0x9E3779B97F4A7C15
#: Hashes that are compared together in a search of all hashes.
_CHUNK = 1 << 20


class PlainHashTable:
    """The look-ups of `graph.hash_table`, in Python.

    Those kernels themselves, run as Python over NumPy's scalars, take nine times as long (log/).
    """

    @staticmethod
    def range_find(num_keys: int, wanted: IdArray) -> IdArray:
        """Row numbers int64 [n] of `wanted`, -1 where unknown; the ids are 0 … num_keys-1."""
        return np.where((wanted >= 0) & (wanted < num_keys), wanted, -1)

    @staticmethod
    def int_find(keys: IdArray, slots: NDArray[np.int32], wanted: IdArray) -> IdArray:
        """Row numbers of int64 `wanted`, -1 where unknown."""
        found, mask = np.empty(len(wanted), np.int64), len(slots) - 1
        for i, key in enumerate(wanted.tolist()):
            at = mix(key + _INCREMENT) & mask
            while (row := int(slots[at])) >= 0 and keys[row] != key:
                at = (at + 1) & mask
            found[i] = row
        return found

    @staticmethod
    def bytes_find(
        blob: NDArray[np.uint8],
        offsets: IdArray,
        slots: NDArray[np.int32],
        wanted: NDArray[np.uint8],
        lengths: IdArray,
    ) -> IdArray:
        """Row numbers of the byte strings concatenated in `wanted`, -1 where unknown."""
        found, mask = np.empty(len(lengths), np.int64), len(slots) - 1
        text, end = wanted.tobytes(), 0
        for i, length in enumerate(lengths.tolist()):
            begin, end = end, end + length
            key = text[begin:end]
            at = _bytes_hash(key) & mask
            while (row := int(slots[at])) >= 0 and blob[offsets[row] : offsets[row + 1]].tobytes() != key:
                at = (at + 1) & mask
            found[i] = row
        return found


class HashedIds:
    """Ids of a precomputed file without its graph, known only by their hashes.

    Args:
        hashes: uint64 [N], of the file.
    """

    def __init__(self, hashes: NDArray[np.uint64]) -> None:
        self._hashes = hashes

    def lookup(self, external_ids: Sequence[Any]) -> IdArray:
        """As `IdIndex.lookup`; tries row numbers first, then searches all hashes (1 ms per million)."""
        kind, values = typed(external_ids) if len(external_ids) else ("int", [])
        wanted = [id_hash(value if kind == "string" else int(value)) for value in values]
        found = np.full(len(wanted), -1, np.int64)
        rest = []
        for place, value in enumerate(wanted):
            row = -1 if kind == "string" else int(values[place])
            if 0 <= row < len(self._hashes) and self._hashes[row] == value:
                found[place] = row
            else:
                rest.append(place)
        if rest:
            found[rest] = self._search(np.array([wanted[place] for place in rest], np.uint64))
        return found

    def _search(self, wanted: NDArray[np.uint64]) -> IdArray:
        distinct, places = np.unique(wanted, return_inverse=True)
        rows = np.full(len(distinct), -1, np.int64)
        for begin in range(0, len(self._hashes), _CHUNK):
            chunk = self._hashes[begin : begin + _CHUNK]
            if len(distinct) == 1:
                hits = np.flatnonzero(chunk == distinct[0])
                at = np.zeros(len(hits), np.int64)
            else:
                at = np.minimum(np.searchsorted(distinct, chunk), len(distinct) - 1)
                hits = np.flatnonzero(distinct[at] == chunk)
                at = at[hits]
            rows[at] = hits + begin
        found: IdArray = rows[places]
        return found


def ids_of_graph(folder: Path, node_type: str) -> tuple[str, IdIndex, NDArray[Any]]:
    """The version of a snapshot, and the mapped ids and features of one node type.

    Raises: GraphError: the snapshot is missing, damaged, or has no such type.
    """
    try:
        manifest = msgspec.json.decode((folder / "graph.json").read_bytes(), type=_Manifest)
    except OSError as error:
        raise GraphError(f"{folder}: graph.json cannot be read: {error.strerror or error}") from None
    except UNREADABLE as error:
        raise GraphError(f"{folder / 'graph.json'} is damaged: {error}; build the graph again") from None
    if manifest.format > 1:
        raise GraphError(
            f"{folder}: format {manifest.format}; functions read only format 1: use a graph whose "
            "features are stored as float32 or float16"
        )
    kind = manifest.schema.node_types.get(node_type)
    if kind is None:
        raise GraphError(f"{folder}: no node type {node_type!r}; it has {', '.join(manifest.num_nodes)}")
    from urllib.parse import quote

    below = folder / "nodes" / quote(node_type, safe="")
    num_nodes = manifest.num_nodes[node_type]
    #: Array -> its rows, where they depend on the number of nodes.
    needed: dict[str, dict[str, int | None]] = {
        "range": {},
        "int": {"values": num_nodes, "slots": None},
        "string": {"blob": None, "offsets": num_nodes + 1, "slots": None},
    }
    arrays = {
        name: _mapped(below / "ids" / f"{name}.npy", rows) for name, rows in needed[kind.id_kind].items()
    }
    num_slots = len(arrays.get("slots", ()))
    if arrays and (num_slots < num_nodes or num_slots & (num_slots - 1)):
        raise GraphError(f"{below}/ids/slots.npy is damaged: {num_slots} slots for {num_nodes} ids")
    ids = IdIndex.from_arrays(kind.id_kind, num_nodes, arrays)
    ids.find = PlainHashTable
    return manifest.version, ids, _mapped(below / "features.npy", num_nodes)


def id_hash(value: int | str) -> int:
    """The hash of an id in a precomputed file: splitmix of an integer, mixed FNV-1a of string bytes."""
    if not isinstance(value, str):
        return mix(value)
    state = 0xCBF29CE484222325
    for byte in value.encode("utf-8", "surrogatepass"):
        state = ((state ^ byte) * 0x100000001B3) & _WORD
    return mix(state)


def mix(x: int) -> int:
    """The finaliser of splitmix64 (Steele et al., OOPSLA 2014), of an integer's lower 64 bits."""
    x &= _WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return x ^ (x >> 31)


def _bytes_hash(text: bytes) -> int:
    """As in `graph.hash_table`: eight bytes at a time, then the remaining ones with the last lowest."""
    state = mix(len(text) + _INCREMENT)
    whole = len(text) & ~7
    for at in range(0, whole, 8):
        state = mix((state ^ int.from_bytes(text[at : at + 8], "little")) + _INCREMENT)
    return mix((state ^ int.from_bytes(text[whole:], "big")) + _INCREMENT)


class _NodeType(msgspec.Struct):
    id_kind: Literal["range", "int", "string"] = "range"


class _Schema(msgspec.Struct):
    node_types: dict[str, _NodeType]


class _Manifest(msgspec.Struct):
    """The needed fields of graph.json."""

    version: str
    schema: _Schema
    num_nodes: dict[str, int]
    format: int = 1


def _mapped(path: Path, rows: int | None = None) -> AnyArray:
    try:
        array: AnyArray = np.asarray(np.load(path, mmap_mode="r"))
    except ValueError as error:
        if path.is_file() and path.stat().st_size <= 128:  # too small to map
            return np.load(path)  # type: ignore[no-any-return]
        raise GraphError(f"{path} cannot be read: {error}; copy or build the graph again") from None
    except OSError as error:
        raise GraphError(f"{path} cannot be read: {error}; copy or build the graph again") from None
    if rows is not None and len(array) != rows:
        raise GraphError(f"{path} has {len(array)} rows, graph.json says {rows}; copy or build it again")
    return array
