"""Compressed adjacency: in-neighbours in few bits, weights and degrees as bytes, each readable alone.

Neighbours are packed without loss: 64 to a block or, if that is hardly larger, each in as many bits as the
largest one needs (`codec_kernels.py`). Reading one neighbour reads only its block or its bits, regardless
of where lists begin and end. The beginning of a list is the sum of at most 16 degrees.

Weights become codes of 8 bits and one scale for the edge type. The error of a weight is at most half of
`scale`, which is the largest weight over 255, and a weight above 0 stays above 0. If weights may be
negative, code 128 is 0, the scale is the largest magnitude over 127, and every weight keeps its sign.
Integers that fit the codes keep their values. The scale has 14 significant bits, so that every weight is
exact in float32 and every running sum in float64: sampling by weight draws the same as from plain arrays of
these weights.

Times and attributes of edges are not compressed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopline.errors import GraphError
from hopline.graph import codec_kernels as kernels
from hopline.graph import csc
from hopline.graph.columns import read_only
from hopline.graph.parts import Adjacency
from hopline.graph.schema import EdgeTypeSchema
from hopline.types import AnyArray, FloatArray, IdArray, Progress, silent

_LARGEST_CODE = 255
#: The code of weight 0 where weights may be negative; other codes are offset from it by their magnitude.
_SIGNED_ZERO = 128
_SCALE_BITS = 14
#: Above this weight, a code times the scale could exceed float32.
_LARGEST_WEIGHT = 1e38
_MAX_EDGES = 2**31 - 1
_MAX_BYTES = 2**32 - 1


#: How much larger evenly packed numbers may be; they are read several times as fast.
_WORTH = 1.15
_NO_OFFSETS = read_only(np.empty(0, np.uint32))


class _Column:
    """One value for each edge, unpacked on access; indexed like NumPy arrays."""

    __slots__ = ()

    def __len__(self) -> int:
        raise NotImplementedError

    def at(self, positions: IdArray) -> AnyArray:
        """The values at int64 [n] positions, each in [0, len)."""
        raise NotImplementedError

    @property
    def shape(self) -> tuple[int]:
        """(E,)."""
        return (len(self),)

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, slice):
            return self.at(np.arange(*item.indices(len(self)), dtype=np.int64))
        given = np.asarray(item)
        positions = np.flatnonzero(given) if given.dtype == bool else given.astype(np.int64)
        positions = np.where(positions < 0, positions + len(self), positions)
        if positions.size and not 0 <= int(positions.min()) <= int(positions.max()) < len(self):
            raise IndexError(f"edge positions are 0 to {len(self) - 1}")
        values = self.at(np.ascontiguousarray(positions).reshape(-1))
        return values[0] if given.ndim == 0 else values.reshape(positions.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> AnyArray:
        if copy is False:
            raise ValueError("packed edges can only be unpacked by copying")
        values = self.at(np.arange(len(self), dtype=np.int64))
        return values if dtype is None else values.astype(dtype, copy=False)


class PackedIds(_Column):
    """In-neighbours of all lists, in list order.

    Attributes:
        offsets: uint32 [blocks + 1], or [0] if packed evenly. data: uint8. See `codec_kernels.py`.
        bits: of a neighbour's row.
        kernel: the form that kernels read, see `edge_data.py`; valid while this object exists.
    """

    __slots__ = ("_length", "bits", "data", "kernel", "offsets")
    dtype = np.dtype(np.int32)

    def __init__(self, offsets: AnyArray, data: AnyArray, bits: int, length: int) -> None:
        self.offsets, self.data, self.bits, self._length = offsets, data, bits, length
        at = int(offsets.ctypes.data) if len(offsets) else 0
        self.kernel = (at, int(data.ctypes.data), bits)

    def __len__(self) -> int:
        return self._length

    @property
    def arrays(self) -> tuple[AnyArray, AnyArray]:
        """(offsets, data)."""
        return self.offsets, self.data

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays."""
        return self.offsets.nbytes + self.data.nbytes

    def at(self, positions: IdArray) -> NDArray[np.int32]:
        """Rows of the source type, int32 [n]."""
        out = np.empty(positions.shape[0], np.int32)
        kernels.read_numbers(self.kernel, positions, positions.shape[0], out)
        return out

    def mapped(self, copy: Callable[[AnyArray], AnyArray]) -> PackedIds:
        """The same neighbours over copies of the arrays."""
        offsets = copy(self.offsets) if len(self.offsets) else self.offsets
        return PackedIds(offsets, copy(self.data), self.bits, self._length)

    @classmethod
    def pack(cls, indices: AnyArray, num_sources: int) -> PackedIds:
        """Pack int32 [E] rows below `num_sources`.

        Raises: GraphError: more edges or bytes than block offsets can address.
        """
        if len(indices) > _MAX_EDGES:
            raise GraphError(
                f"an edge type of {len(indices)} edges cannot be compressed; the limit is {_MAX_EDGES}: "
                "use the graph uncompressed"
            )
        bits = bits_of(num_sources)
        ends = _ends_of_blocks(indices, bits)
        if even_bytes(len(indices), bits) <= _WORTH * (ends[-1] + 4 * len(ends)):
            return cls.evenly(indices, bits)
        if ends[-1] > _MAX_BYTES:
            raise GraphError(
                f"an edge type of {len(indices)} edges would need {ends[-1]} bytes compressed; the limit "
                f"is {_MAX_BYTES}: use the graph uncompressed"
            )
        return cls.in_blocks(indices, bits, ends)

    @classmethod
    def evenly(cls, indices: AnyArray, bits: int) -> PackedIds:
        """Pack each number in `bits` bits."""
        data = np.zeros(even_bytes(len(indices), bits) + kernels.PADDING, np.uint8)
        kernels.pack_evenly(indices, bits, data)
        return cls(_NO_OFFSETS, read_only(data), bits, len(indices))

    @classmethod
    def in_blocks(cls, indices: AnyArray, bits: int, ends: IdArray | None = None) -> PackedIds:
        """Pack in blocks, which are smaller where neighbours are close to each other.

        Args:
            ends: int64 [blocks + 1] where each block begins, if known.
        """
        offsets = (_ends_of_blocks(indices, bits) if ends is None else ends).astype(np.uint32)
        data = np.zeros(int(offsets[-1]) + kernels.PADDING, np.uint8)
        kernels.pack(indices, bits, offsets, data)
        return cls(read_only(offsets), read_only(data), bits, len(indices))


class PackedBounds(_Column):
    """Begin of each list, and end of the last one: `indptr`.

    Attributes:
        groups: uint8 [G, 20]. longs: int32 [rows, 17]. See `codec_kernels.read_bounds`.
        kernel: the form that kernels read, see `extent.py`; valid while this object exists.
    """

    __slots__ = ("_length", "groups", "kernel", "longs")
    dtype = np.dtype(np.int64)

    def __init__(self, groups: AnyArray, longs: AnyArray, length: int) -> None:
        self.groups, self.longs, self._length = groups, longs, length
        self.kernel = (int(groups.ctypes.data), int(longs.ctypes.data))

    def __len__(self) -> int:
        return self._length

    @property
    def arrays(self) -> tuple[AnyArray, AnyArray]:
        """(groups, longs)."""
        return self.groups, self.longs

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays."""
        return self.groups.nbytes + self.longs.nbytes

    def at(self, positions: IdArray) -> IdArray:
        """int64 [n]."""
        out = np.empty(positions.shape[0], np.int64)
        kernels.read_starts(self.kernel, positions, out)
        return out

    def mapped(self, copy: Callable[[AnyArray], AnyArray]) -> PackedBounds:
        """The same bounds over copies of the arrays."""
        return PackedBounds(
            copy(self.groups), copy(self.longs) if len(self.longs) else self.longs, len(self)
        )

    @classmethod
    def pack(cls, indptr: IdArray) -> PackedBounds:
        """Pack ascending int64 [N + 1] bounds up to 2**31 - 1."""
        count = num_groups(len(indptr) - 1)
        degrees = np.zeros(count * kernels.GROUP, np.int64)
        degrees[: len(indptr) - 1] = np.diff(indptr)
        is_long = degrees.reshape(count, kernels.GROUP).max(axis=1) > _LARGEST_CODE
        groups = np.zeros((count, kernels.GROUP_BYTES), np.uint8)
        longs = np.zeros((int(is_long.sum()), kernels.GROUP + 1), np.int32)
        kernels.pack_bounds(indptr, is_long, groups, longs)
        return cls(read_only(groups), read_only(longs), len(indptr))


#: Replaces an array of lists.
PACKED = (PackedIds, PackedBounds)


class PackedWeights(_Column):
    """Weights as codes of 8 bits.

    Attributes:
        codes: uint8 [E]. scale: float64 [1]. zero: the code of 0; a weight is (code - zero) scale.
        sums: int64, the sum of all codes before each block of 1,024, and before the last one's end.
        kernel: as in `PackedIds`; the same for weights and for their running sums.
    """

    __slots__ = ("codes", "kernel", "scale", "sums", "zero")
    dtype = np.dtype(np.float32)

    def __init__(self, codes: AnyArray, sums: IdArray, scale: AnyArray, signed: bool) -> None:
        self.codes, self.sums, self.scale = codes, sums, scale
        self.zero = _SIGNED_ZERO if signed else 0
        self.kernel = (int(codes.ctypes.data), int(sums.ctypes.data), float(scale[0]), self.zero)

    def __len__(self) -> int:
        return len(self.codes)

    def at(self, positions: IdArray) -> FloatArray:
        """float32 [n]."""
        steps = self.codes[positions].astype(np.int64) - self.zero
        weights: FloatArray = (steps * self.scale[0]).astype(np.float32)
        return weights

    @classmethod
    def pack(cls, weight: FloatArray, signed: bool) -> PackedWeights:
        """Round float32 [E] weights to codes.

        Args:
            signed: some may be negative.

        Raises: GraphError: a weight above 1e38 or below -1e38.
        """
        largest = float(max(weight.max(), -weight.min())) if len(weight) else 0.0
        if largest > _LARGEST_WEIGHT:
            raise GraphError(
                f"edge weights up to {largest:g} cannot be compressed; the limit is {_LARGEST_WEIGHT:g}: "
                "scale them, which has no effect where only their ratios matter"
            )
        most = _LARGEST_CODE - _SIGNED_ZERO if signed else _LARGEST_CODE
        step = 1 << 20
        parts = [weight[a : a + step] for a in range(0, len(weight), step)]
        whole = largest <= most and all((part == np.rint(part)).all() for part in parts)
        scale = 1.0 if whole else _short(largest / most)
        codes = np.empty(len(weight), np.uint8)
        for number, part in enumerate(parts):
            steps = np.rint(part.astype(np.float64) / scale)
            vanished = steps == 0
            steps[vanished] = np.sign(part[vanished])
            codes[number * step :][: len(part)] = steps + (_SIGNED_ZERO if signed else 0)
        sums = np.empty(num_sums(len(codes)), np.int64)
        kernels.code_sums(codes, sums)
        return cls(read_only(codes), read_only(sums), read_only(np.array([scale])), signed)


class RunningWeights(_Column):
    """The inclusive running sums of packed weights within each list, computed on access."""

    __slots__ = ("_indptr", "_weights", "kernel")
    dtype = np.dtype(np.float64)

    def __init__(self, weights: PackedWeights, indptr: Any) -> None:
        self._weights, self._indptr = weights, indptr
        self.kernel = weights.kernel

    def __len__(self) -> int:
        return len(self._weights)

    def at(self, positions: IdArray) -> NDArray[np.float64]:
        """float64 [n]. Computes all sums; kernels compute single ones from the codes."""
        sums: NDArray[np.float64] = csc.running_weights(
            np.asarray(self._indptr, np.int64), np.asarray(self._weights)
        )[positions]
        return sums


def bits_of(num_sources: int) -> int:
    """Bits of a row number of a node type."""
    return max(1, (num_sources - 1).bit_length())


def _ends_of_blocks(indices: AnyArray, bits: int) -> IdArray:
    """0, and the end of each block in bytes: int64 [blocks + 1]."""
    ends = np.zeros(num_blocks(len(indices)) + 1, np.int64)
    kernels.block_bytes(indices, bits, ends[1:])
    return np.cumsum(ends, out=ends)


def even_bytes(count: int, bits: int) -> int:
    """Bytes of `count` evenly packed numbers, without padding."""
    return -(-count * bits // 8)


def num_groups(num_destinations: int) -> int:
    """Groups of the bounds of `num_destinations` lists; the last one holds the end of the last list."""
    return (num_destinations >> kernels.GROUP_BITS) + 1


def num_blocks(num_edges: int) -> int:
    """Number of blocks for `num_edges` edges."""
    return -(-num_edges // kernels.BLOCK)


def num_sums(num_edges: int) -> int:
    """Number of stored sums for the weights of `num_edges` edges."""
    return (num_edges >> kernels.SUM_BITS) + 1


def is_compressed(adjacency: Adjacency) -> bool:
    """True if an adjacency's neighbours are packed."""
    return isinstance(adjacency.indices, PackedIds)


def compress(adjacency: Adjacency, num_sources: int, progress: Progress = silent) -> Adjacency:
    """Pack the edges of an adjacency; weights are rounded.

    Raises: GraphError: too many edges, or too large weights.
    """
    if is_compressed(adjacency):
        return adjacency
    stage = f"compressing {adjacency.key}"
    progress(stage, 0.0)
    indices = PackedIds.pack(adjacency.indices, num_sources)
    indptr = PackedBounds.pack(adjacency.indptr)
    weight = sums = None
    if adjacency.weight is not None:
        weight = PackedWeights.pack(adjacency.weight, adjacency.signed_weight)
        sums = RunningWeights(weight, indptr)
    progress(stage, 1.0)
    packed: Any = {"indptr": indptr, "indices": indices, "weight": weight, "cumweight": sums}
    return dataclasses.replace(adjacency, **packed)


def stored(adjacency: Adjacency) -> dict[str, AnyArray]:
    """The stored arrays of an adjacency, packed or not, by name."""
    arrays = adjacency.arrays()
    if not is_compressed(adjacency):
        return arrays
    for name in ("indptr", "indices", "weight", "cumweight"):
        arrays.pop(name, None)
    indptr: Any = adjacency.indptr
    indices: Any = adjacency.indices
    arrays |= {"indptr_groups": indptr.groups, "indptr_longs": indptr.longs}
    arrays |= {"packed_offsets": indices.offsets, "packed_data": indices.data}
    weight: Any = adjacency.weight
    if weight is not None:
        arrays |= {"weight_codes": weight.codes, "weight_scale": weight.scale, "weight_sums": weight.sums}
    return arrays


def is_stored(arrays: Mapping[str, AnyArray]) -> bool:
    """True if the arrays of an edge type are packed ones."""
    return "packed_data" in arrays


def columns_of(
    arrays: Mapping[str, AnyArray],
    num_edges: int,
    num_sources: int,
    num_destinations: int,
    schema: EdgeTypeSchema,
    where: Path,
) -> dict[str, Any]:
    """`indptr`, `indices`, `weight` and `cumweight` of an `Adjacency` from `stored`.

    Compiled code reads at the stored offsets, so they are checked here, which reads a fiftieth of the data.

    Raises: GraphError: arrays that disagree; KeyError: one that is absent.
    """
    groups, longs = arrays["indptr_groups"], arrays["indptr_longs"]
    offsets, data = arrays["packed_offsets"], arrays["packed_data"]
    bits = bits_of(num_sources)
    wrong = wrong_bounds(groups, longs, num_destinations) or _wrong_ids(offsets, data, num_edges, bits)
    indptr = PackedBounds(groups, longs, num_destinations + 1)
    columns: dict[str, Any] = {"weight": None, "cumweight": None}
    if schema.has_weight and not wrong:
        codes, scale, sums = arrays["weight_codes"], arrays["weight_scale"], arrays["weight_sums"]
        shapes = (codes.shape, scale.shape, sums.shape)
        if shapes != ((num_edges,), (1,), (num_sums(num_edges),)):
            wrong = f"weight_codes, weight_scale and weight_sums {shapes} are not of {num_edges} edges"
        elif codes.dtype != np.uint8 or scale.dtype != np.float64 or sums.dtype != np.int64:
            wrong = (
                f"weights are {codes.dtype}, {scale.dtype} and {sums.dtype}, not uint8, float64 and int64"
            )
        elif not 0 < 255 * scale[0] <= np.finfo(np.float32).max:
            wrong = f"weight_scale is {scale[0]}, not above 0, or beyond float32"
        else:
            columns["weight"] = PackedWeights(codes, sums, scale, schema.signed_weight)
            columns["cumweight"] = RunningWeights(columns["weight"], indptr)
    if wrong:
        raise GraphError(f"{where} is damaged: {wrong}; copy or build the graph again")
    return columns | {"indptr": indptr, "indices": PackedIds(offsets, data, bits, num_edges)}


def wrong_bounds(groups: AnyArray, longs: AnyArray, num_destinations: int) -> str:
    """The error in packed bounds; "" for none."""
    wanted, row = (num_groups(num_destinations), kernels.GROUP_BYTES), (kernels.GROUP + 1,)
    if groups.dtype != np.uint8 or groups.shape != wanted:
        return f"indptr_groups is {groups.dtype} {groups.shape}, not uint8 {wanted}"
    if longs.dtype != np.int32 or longs.shape[1:] != row:
        return f"indptr_longs is {longs.dtype} {longs.shape}, not int32 of rows {row}"
    first = np.ascontiguousarray(groups[:, :4]).view("<u4")[:, 0]
    named = first[first >= kernels.LONG] - np.uint32(kernels.LONG)
    if len(named) != len(longs) or (named != np.arange(len(longs))).any():
        return f"indptr_groups does not name the {len(longs)} rows of indptr_longs in their order"
    return ""


def _wrong_ids(offsets: AnyArray, data: AnyArray, count: int, bits: int) -> str:
    """The error in packed neighbours; "" for none."""
    if data.dtype != np.uint8 or data.ndim != 1 or offsets.dtype != np.uint32:
        return f"packed_offsets is {offsets.dtype}, not uint32, or packed_data {data.dtype}, not bytes"
    if offsets.shape == (0,):
        wanted_bytes = even_bytes(count, bits) + kernels.PADDING
        return "" if len(data) == wanted_bytes else f"packed_data has {len(data)} bytes, not {wanted_bytes}"
    if offsets.shape != (num_blocks(count) + 1,):
        return f"packed_offsets is of shape {offsets.shape}, not {(num_blocks(count) + 1,)}"
    if int(offsets[-1]) + kernels.PADDING != len(data):
        return f"packed_data has {len(data)} bytes, packed_offsets end at {int(offsets[-1])}"
    bad = kernels.first_bad_block(offsets, data, bits)
    return "" if bad < 0 else f"packed_offsets: block {bad} does not fit behind the one before it"


def _short(value: float) -> float:
    """The smallest number of `_SCALE_BITS` significant bits that is at least `value`; 1 for 0."""
    if value == 0.0:
        return 1.0
    exponent = math.frexp(value)[1]
    # Weights below float32's smallest normal numbers have fewer bits.
    exponent = max(exponent, -149 + _SCALE_BITS)
    return math.ldexp(math.ceil(math.ldexp(value, _SCALE_BITS - exponent)), exponent - _SCALE_BITS)
