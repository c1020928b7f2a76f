"""Converts external ids to row numbers, for small requests and without compiled code.

Reads the same data as the engine's index: the hash tables of a graph snapshot (`graph/hash_table.py`) and
the hashes of ids in a precomputed file (`engine/precomputed_file/identity.py`). Tests compare both. A
look-up takes microseconds per id here, and nanoseconds with compiled code.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline.errors import BadRequest, GraphError
from hopline.graph.id_values import typed, wanted_ints
from hopline.types import UNREADABLE, AnyArray, IdArray

_WORD = 2**64 - 1
_INCREMENT = 0x9E3779B97F4A7C15
#: Hashes that are compared together in a search of all hashes.
_CHUNK = 1 << 20


class Ids(Protocol):
    """The ids of one node type."""

    def lookup(self, external_ids: Sequence[Any]) -> IdArray:
        """Row numbers int64 [n], -1 where unknown; as `graph.ids.IdIndex.lookup`.

        Raises: BadRequest: ids of another kind.
        """
        ...


class RangeIds:
    """Ids that are row numbers."""

    def __init__(self, num_nodes: int) -> None:
        self._num_nodes = num_nodes

    def lookup(self, external_ids: Sequence[Any]) -> IdArray:
        """See `Ids`."""
        ids, known = wanted_ints(external_ids)
        inside = (ids >= 0) & (ids < self._num_nodes)
        return np.where(inside if known is None else inside & known, ids, -1)


class IntIds:
    """Integer ids: `values` int64 [N], `slots` int32 [capacity]."""

    def __init__(self, values: IdArray, slots: NDArray[np.int32]) -> None:
        self._values = values
        self._slots = slots

    def lookup(self, external_ids: Sequence[Any]) -> IdArray:
        """See `Ids`."""
        ids, known = wanted_ints(external_ids)
        found = np.fromiter(map(self._row, ids.tolist()), np.int64, len(ids))
        return found if known is None else np.where(known, found, -1)

    def _row(self, wanted: int) -> int:
        slots, values, mask = self._slots, self._values, len(self._slots) - 1
        at = mix(wanted + _INCREMENT) & mask
        while (row := int(slots[at])) >= 0 and values[row] != wanted:
            at = (at + 1) & mask
        return row


class StringIds:
    """String ids: `blob` uint8, `offsets` int64 [N + 1] into it, `slots` int32 [capacity]."""

    def __init__(self, blob: NDArray[np.uint8], offsets: IdArray, slots: NDArray[np.int32]) -> None:
        self._blob = blob
        self._offsets = offsets
        self._slots = slots

    def lookup(self, external_ids: Sequence[Any]) -> IdArray:
        """See `Ids`."""
        kind, values = typed(external_ids)
        if kind != "string" and len(values):
            raise BadRequest(f"node ids are strings here; got the integer {int(values[0])}")
        return np.array([self._row(value.encode("utf-8", "surrogatepass")) for value in values], np.int64)

    def _row(self, wanted: bytes) -> int:
        slots, mask = self._slots, len(self._slots) - 1
        at = _bytes_hash(wanted) & mask
        while (row := int(slots[at])) >= 0:
            begin, end = int(self._offsets[row]), int(self._offsets[row + 1])
            if self._blob[begin:end].tobytes() == wanted:
                break
            at = (at + 1) & mask
        return row


class HashedIds:
    """Ids of a precomputed file without its graph, known only by their hashes.

    Args:
        hashes: uint64 [N], of the file.
    """

    def __init__(self, hashes: NDArray[np.uint64]) -> None:
        self._hashes = hashes

    def lookup(self, external_ids: Sequence[Any]) -> IdArray:
        """See `Ids`; tries row numbers first; other ids need a search of all hashes (1 ms per million)."""
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


def ids_of_graph(folder: Path, node_type: str) -> tuple[str, Ids, NDArray[Any]]:
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
    features = _mapped(below / "features.npy", num_nodes)
    if kind.id_kind == "range":
        return manifest.version, RangeIds(num_nodes), features
    slots = _mapped(below / "ids" / "slots.npy")
    if len(slots) < num_nodes or len(slots) & (len(slots) - 1):
        raise GraphError(f"{below}/ids/slots.npy is damaged: {len(slots)} slots for {num_nodes} ids")
    if kind.id_kind == "int":
        return manifest.version, IntIds(_mapped(below / "ids" / "values.npy", num_nodes), slots), features
    offsets = _mapped(below / "ids" / "offsets.npy", num_nodes + 1)
    return manifest.version, StringIds(_mapped(below / "ids" / "blob.npy"), offsets, slots), features


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


def _bytes_hash(text: bytes) -> int:
    """As in `graph.hash_table`: eight bytes at a time, then the remaining ones with the last lowest."""
    state = mix(len(text) + _INCREMENT)
    whole = len(text) & ~7
    for at in range(0, whole, 8):
        state = mix((state ^ int.from_bytes(text[at : at + 8], "little")) + _INCREMENT)
    return mix((state ^ int.from_bytes(text[whole:], "big")) + _INCREMENT)


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
