"""Maps the caller's ids to row numbers and back: range, integer and string ids.

The index is arrays that map into memory: opening it costs nothing, and all workers of a host share
it. The hash table is `hash_table.py`.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopline.errors import BadRequest, GraphError
from hopline.graph import id_values
from hopline.graph.columns import read_only
from hopline.graph.schema import IdKind
from hopline.graph.tables import Encoded
from hopline.types import AnyArray, ExternalIds, IdArray

#: Added to rows in place of the ids of removed nodes.
_NO_ID = int(np.iinfo(np.int64).min)


class IdIndex(ABC):
    """The ids of one node type.

    Attributes:
        kind: "range", "int" or "string".
        removed: int64 [r], ascending rows of removed nodes. They have no id: `external` makes one up for
            them, which `lookup` does not know.
    """

    kind: IdKind
    removed: IdArray = read_only(np.empty(0, np.int64))

    @property
    def num_nodes(self) -> int:
        """Nodes that exist: rows without those of removed ones."""
        return len(self) - len(self.removed)

    def nth(self, places: IdArray) -> IdArray:
        """Rows of nodes by their places among those that exist, int64 [n]."""
        removed = self.removed
        return places + np.searchsorted(removed - np.arange(len(removed)), places, side="right")

    @functools.cached_property
    def find(self) -> Any:
        """The look-ups of `hash_table`; a process without compiled code sets other ones."""
        from hopline.graph import hash_table

        return hash_table

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def lookup(self, external_ids: ExternalIds | AnyArray) -> IdArray:
        """Find row numbers, in request order.

        Args:
            external_ids: list of int or of str, or an array of them; duplicates allowed.
        Returns: int64 [n]; -1 where the id is unknown.
        Raises: BadRequest: an id is not of this type's kind (ints for range and int ids, strings for
            string ids); booleans and floats are never ids.
        """

    @abstractmethod
    def external(self, global_ids: IdArray) -> list[str] | IdArray:
        """The caller's ids of rows: int64 [n] for range and int ids, list of n str for string ids.

        Args:
            global_ids: int64 [n], each in [0, len(self)).
        """

    def select(self, global_ids: IdArray, what: str) -> IdIndex:
        """An independent index of some rows with the same ids; the ids of a range become integers.

        Raises: GraphError: a row is repeated; `what` names the rows.
        """
        chosen = self.external(global_ids)
        if isinstance(chosen, list):
            return StringIds.of(chosen, what)
        return IntIds.of(np.array(chosen, np.int64), what)

    @abstractmethod
    def arrays(self) -> dict[str, AnyArray]:
        """The stored arrays, by name; `slots` is derived from the other arrays."""

    @staticmethod
    def build(external_ids: Any, what: str) -> IdIndex:
        """Index distinct ids.

        Args:
            external_ids: N ints (all of int64) or N strings, a sequence or an array.
            what: whose ids they are, for error messages.
        Raises: GraphError: duplicates, mixed or other types, more than one dimension, a lone surrogate.
        """
        if isinstance(external_ids, Encoded):
            external_ids = [external_ids[row] for row in range(len(external_ids))]
        try:
            kind, values = id_values.typed(external_ids)
        except BadRequest as error:
            raise GraphError(f"{what}: {error}") from None
        if kind == "string":
            _check_unicode(values, what)
            return StringIds.of(values, what)
        ints = id_values.as_int64(values)
        if ints is None:
            raise GraphError(
                f"{what}: an id does not fit into a signed 64-bit integer; use string ids instead"
            )
        return IntIds.of(ints, what)

    @staticmethod
    def from_arrays(kind: IdKind, num_nodes: int, arrays: Mapping[str, AnyArray]) -> IdIndex:
        """Create an index from the result of `arrays()`; nothing is read or checked."""
        if "removed" in arrays:
            own = {name: array for name, array in arrays.items() if name != "removed"}
            return RemainingIds(IdIndex.from_arrays(kind, num_nodes, own), arrays["removed"])
        if kind == "range":
            return RangeIds(num_nodes)
        if kind == "int":
            return IntIds(arrays["values"], arrays["slots"])
        return StringIds(arrays["blob"], arrays["offsets"], arrays["slots"])


class RangeIds(IdIndex):
    """Row numbers are the ids; nothing is stored."""

    kind = "range"

    def __init__(self, num_nodes: int) -> None:
        self._num_nodes = num_nodes

    def __len__(self) -> int:
        return self._num_nodes

    def lookup(self, external_ids: ExternalIds | AnyArray) -> IdArray:
        """Ids in [0, N) are their own row numbers."""
        if type(external_ids) is list and len(external_ids) == 1 and type(external_ids[0]) is int:
            # The usual request; the general path costs four times as much.
            row = external_ids[0]
            return np.array((row if 0 <= row < self._num_nodes else -1,), np.int64)
        wanted, known = id_values.wanted_ints(external_ids)
        found: IdArray = self.find.range_find(self._num_nodes, wanted)
        return found if known is None else np.where(known, found, -1)

    def external(self, global_ids: IdArray) -> IdArray:
        """Row numbers are the ids."""
        return np.asarray(global_ids, np.int64)

    def arrays(self) -> dict[str, AnyArray]:
        """Nothing."""
        return {}


class IntIds(IdIndex):
    """64-bit integers: `values` int64 [N] and a hash table over them."""

    kind = "int"

    def __init__(self, values: IdArray, slots: NDArray[np.int32]) -> None:
        self._values = values
        self._slots = slots

    @classmethod
    def of(cls, values: IdArray, what: str) -> IntIds:
        """Index int64 [N]. Raises: GraphError: duplicates."""
        slots = _slots(values, what, values)
        return cls(read_only(values), slots)

    def __len__(self) -> int:
        return len(self._values)

    def lookup(self, external_ids: ExternalIds | AnyArray) -> IdArray:
        """Costs one or two cache misses for an id."""
        wanted, known = id_values.wanted_ints(external_ids)
        found: IdArray = self.find.int_find(self._values, self._slots, wanted)
        return found if known is None else np.where(known, found, -1)

    def external(self, global_ids: IdArray) -> IdArray:
        """The ids of rows, int64 [n]."""
        return self._values[global_ids]

    def arrays(self) -> dict[str, AnyArray]:
        """`values` and `slots`."""
        return {"values": self._values, "slots": self._slots}


class StringIds(IdIndex):
    """Strings: UTF-8 `blob` uint8, `offsets` int64 [N + 1] into it, and a hash table over them.

    Lone surrogates are encoded unchanged (Python's "surrogatepass"): older graphs may have them.
    """

    kind = "string"

    def __init__(self, blob: NDArray[np.uint8], offsets: IdArray, slots: NDArray[np.int32]) -> None:
        self._blob = blob
        self._offsets = offsets
        self._slots = slots

    @classmethod
    def of(cls, values: Sequence[str], what: str) -> StringIds:
        """Index N strings. Raises: GraphError: duplicates."""
        blob, lengths = id_values.encoded(values)
        offsets = np.zeros(len(values) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return cls.of_arrays(blob, offsets, values, what)

    @classmethod
    def of_arrays(
        cls, blob: NDArray[np.uint8], offsets: IdArray, values: Sequence[str] = (), what: str = ""
    ) -> StringIds:
        """Index the texts blob[offsets[i]:offsets[i + 1]], of which `values` may differ from each other."""
        slots = _slots(values or range(len(offsets) - 1), what, blob, offsets)
        return cls(read_only(blob), read_only(offsets), slots)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def lookup(self, external_ids: ExternalIds | AnyArray) -> IdArray:
        """Strings are hashed and compared as UTF-8 bytes."""
        kind, values = id_values.typed(external_ids)
        if kind != "string" and len(values):
            raise BadRequest(id_values.not_strings(values))
        blob, lengths = id_values.encoded(values)
        found: IdArray = self.find.bytes_find(self._blob, self._offsets, self._slots, blob, lengths)
        return found

    def external(self, global_ids: IdArray) -> list[str]:
        """The ids of rows, n str."""
        begins = self._offsets[global_ids].tolist()
        ends = self._offsets[np.asarray(global_ids) + 1].tolist()
        view = memoryview(self._blob)  # type: ignore[arg-type]
        return [
            str(view[begin:end], "utf-8", "surrogatepass") for begin, end in zip(begins, ends, strict=True)
        ]

    def arrays(self) -> dict[str, AnyArray]:
        """`blob`, `offsets` and `slots`."""
        return {"blob": self._blob, "offsets": self._offsets, "slots": self._slots}


class RemainingIds(IdIndex):
    """The ids of nodes after some were removed: `known`, by row, are those of the others, or a range."""

    def __init__(self, known: IdIndex, removed: IdArray) -> None:
        self.kind, self._known, self.removed = known.kind, known, removed

    def __len__(self) -> int:
        return len(self._known) + (0 if self.kind == "range" else len(self.removed))

    def lookup(self, external_ids: ExternalIds | AnyArray) -> IdArray:
        """As those of the others."""
        self._known.find = self.find
        found = self._known.lookup(external_ids)
        if self.kind == "range":
            return np.where(np.isin(found, self.removed), -1, found)
        return np.where(found < 0, -1, self.nth(found))

    def external(self, global_ids: IdArray) -> list[str] | IdArray:
        """As those of the others; made-up texts or numbers for removed nodes."""
        rows = np.asarray(global_ids, np.int64)
        place = np.searchsorted(self.removed, rows)
        gone = np.isin(rows, self.removed)
        if self.kind == "range":
            return np.where(gone, rows + _NO_ID, rows)
        known = self._known.external((rows - place)[~gone])
        if self.kind == "int":
            values = rows + _NO_ID
            values[~gone] = known
            return values
        names = [f"\0removed {row}" for row in rows.tolist()]
        for at, name in zip(np.flatnonzero(~gone).tolist(), known, strict=True):
            names[at] = str(name)
        return names

    def arrays(self) -> dict[str, AnyArray]:
        """Also `removed`."""
        return {**self._known.arrays(), "removed": self.removed}


def _check_unicode(values: Sequence[str], what: str) -> None:
    """Refuse lone surrogates. Raises: GraphError: names the first id that has one."""
    try:
        "".join(values).encode()  # one encode for all
    except UnicodeEncodeError:
        for row, value in enumerate(values):
            if any("\ud800" <= letter <= "\udfff" for letter in value):
                raise GraphError(
                    f"{what}: {value!a} in row {row} has a lone surrogate, which UTF-8 cannot express, so "
                    "no client could ask for it; decode the text with its true encoding (without "
                    "errors='surrogateescape'), or rename the id"
                ) from None


def _slots(values: Sequence[Any] | AnyArray, what: str, *keys: AnyArray) -> Any:
    """The hash table over N ids, stored as `keys`: int32 [capacity]. Raises: GraphError: duplicates."""
    from hopline.graph import hash_table

    slots = np.full(hash_table.capacity_for(len(values)), -1, np.int32)
    insert = hash_table.int_insert if len(keys) == 1 else hash_table.bytes_insert
    duplicates, row, earlier = insert(*keys, slots)
    if duplicates:
        value = int(values[row]) if len(keys) == 1 else values[row]
        raise GraphError(
            f"{what}: ids must be distinct; {duplicates} of them are repeated, the first is {value!r} in "
            f"row {row} (also in row {earlier})"
        )
    return read_only(slots)
