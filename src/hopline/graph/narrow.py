"""Features in fewer bits: what a narrow matrix is, and how numbers are encoded and decoded.

    float16    IEEE half: 10 bits of fraction, up to 65,504. A plain NumPy array; not handled here.
    bfloat16   the upper 16 bits of a float32, rounded to even: 7 bits of fraction, the range of float32.
    int8       code * scale + offset, with a scale and an offset for each column.

The range of an int8 column is measured: of several ranges, the one with the smallest mean squared error on
(a sample of) the column. In addition to the whole range, ranges that clip its tails are tried, since one
extreme value would otherwise cost all other values precision. Whole numbers that span fewer than 256 keep
their exact values. Zero stays zero if the range contains it.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hopline.types import AnyArray, FloatArray, Progress, silent

#: How features can be stored.
DTYPES = ("float32", "float16", "bfloat16", "int8")

Kind = Literal["bfloat16", "int8"]

#: Dtype of the codes of a narrow matrix.
CODES: dict[str, np.dtype[Any]] = {"bfloat16": np.dtype(np.uint16), "int8": np.dtype(np.int8)}

#: Shares of a column's numbers that a range may clip at each end.
_CLIPS = (1e-4, 1e-3, 1e-2)
#: Rows of the sample for ranges, and rows that are encoded in one step.
_SAMPLE_ROWS, _CHUNK_ROWS = 1 << 16, 1 << 14


class NarrowMatrix:
    """Numbers [N, d] stored in one or two bytes each. Reads like a float32 array; never changes.

    Indexing decodes the indexed rows, `np.asarray` all rows. The engine reads the codes.

    Args:
        codes: uint16 (bfloat16) or int8 [N, d], C-contiguous.
        scale, offset: float32 [d] of int8, else [0].
    """

    __slots__ = ("codes", "offset", "scale")

    #: Dtype of decoded rows.
    dtype = np.dtype(np.float32)

    def __init__(self, codes: AnyArray, scale: FloatArray, offset: FloatArray) -> None:
        self.codes = codes
        self.scale = scale
        self.offset = offset

    @property
    def kind(self) -> Kind:
        """The storage type."""
        return "int8" if self.codes.dtype == np.int8 else "bfloat16"

    @property
    def shape(self) -> tuple[int, int]:
        """(N, d)."""
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def ndim(self) -> int:
        """2."""
        return 2

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.codes.nbytes + self.scale.nbytes + self.offset.nbytes

    def __len__(self) -> int:
        return int(self.codes.shape[0])

    def __getitem__(self, rows: Any) -> FloatArray:
        return self.decoded(self.codes[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> AnyArray:
        """All rows, always as a copy (NumPy's protocol)."""
        whole: AnyArray = self.decoded(self.codes)
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def decoded(self, codes: AnyArray) -> FloatArray:
        """Decode codes of any rows, [..., d], to float32. The engine's kernels do the same operations."""
        if self.kind == "bfloat16":
            widened: FloatArray = (codes.astype(np.uint32) << np.uint32(16)).view(np.float32)
            return widened
        found: FloatArray = codes.astype(np.float32)
        found *= self.scale
        found += self.offset
        return found

    def taken(self, rows: Any) -> NarrowMatrix:
        """Some rows, still encoded."""
        return self.with_codes(np.ascontiguousarray(self.codes[rows]))

    def with_codes(self, codes: AnyArray) -> NarrowMatrix:
        """The same columns with other codes."""
        return NarrowMatrix(codes, self.scale, self.offset)

    def arrays(self) -> dict[str, AnyArray]:
        """The stored arrays, by name."""
        if self.kind == "bfloat16":
            return {"features": self.codes}
        return {"features": self.codes, "scale": self.scale, "offset": self.offset}


#: The features of a node type: float32 or float16 [N, d], or a narrow matrix.
Features = NDArray[np.floating[Any]] | NarrowMatrix


def from_arrays(dtype: str, arrays: dict[str, AnyArray]) -> Features:
    """Create features from the result of `stored`.

    Raises:
        KeyError: an array is missing.
        ValueError: the arrays are not those of `dtype`; the error says which.
    """
    features = arrays["features"]
    wanted = CODES.get(dtype) or (np.dtype(dtype) if dtype in DTYPES else None)
    if features.dtype != wanted or features.ndim != 2:
        raise ValueError(
            f"features are {features.dtype} {list(features.shape)}; {dtype} needs {wanted} [N, d]"
        )
    if dtype not in CODES:
        return features
    if dtype == "bfloat16":
        return NarrowMatrix(features, _NONE, _NONE)
    for name in ("scale", "offset"):
        column = arrays[name]
        if column.dtype != np.float32 or column.shape != features.shape[1:]:
            raise ValueError(
                f"the {name} of int8 features is {column.dtype} {list(column.shape)}; expected float32 "
                f"[{features.shape[1]}]"
            )
    return NarrowMatrix(features, arrays["scale"], arrays["offset"])


def stored(features: Features) -> dict[str, AnyArray]:
    """The arrays of a feature matrix, by name."""
    return features.arrays() if isinstance(features, NarrowMatrix) else {"features": features}


def taken(features: Features, rows: Any) -> Features:
    """Some rows of features, in the same form."""
    if isinstance(features, NarrowMatrix):
        return features.taken(rows)
    found: NDArray[np.floating[Any]] = features[rows]
    found.flags.writeable = False
    return found


def name_of(features: Features) -> str:
    """The storage dtype of features, one of DTYPES."""
    return features.kind if isinstance(features, NarrowMatrix) else str(features.dtype)


def encode(
    values: AnyArray, kind: str, *, progress: Progress = silent, what: str = "features"
) -> NarrowMatrix:
    """Encode numbers in fewer bits.

    Args:
        values: finite float32 [N, d].
        kind: "bfloat16" or "int8".
        what: for `progress`.
    """
    codes = np.empty(values.shape, CODES[kind])
    scale, offset = _ranges(values) if kind == "int8" else (_NONE, _NONE)
    for begin in range(0, len(values), _CHUNK_ROWS):
        rows = slice(begin, begin + _CHUNK_ROWS)
        if kind == "int8":
            codes[rows] = _codes(values[rows], scale, offset)
        else:
            bits = np.ascontiguousarray(values[rows]).view(np.uint32)
            # Round to nearest, ties to even; the largest float32 numbers would become infinite: see `fits`.
            codes[rows] = (
                bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
            ) >> np.uint32(16)
        progress(what, min(1.0, (begin + _CHUNK_ROWS) / len(values)))
    for array in (codes, scale, offset):
        array.flags.writeable = False
    return NarrowMatrix(codes, scale, offset)


def rounded(values: AnyArray, dtype: str) -> FloatArray:
    """Round rows that are added later to the precision of `dtype`; float32, infinite if they do not fit.

    Rows for an int8 graph are unchanged, because its scales were computed from other numbers. Rows are only
    added to live graphs, which hold all rows in float32.
    """
    if dtype == "bfloat16":
        return np.asarray(encode(np.ascontiguousarray(values, np.float32), dtype))
    with np.errstate(over="ignore"):
        stored_as = np.float16 if dtype == "float16" else np.float32
        found: FloatArray = np.ascontiguousarray(values.astype(stored_as, copy=False), np.float32)
    return found


#: The largest bfloat16 number.
BFLOAT16_MAX = float(np.array([0x7F7F0000], np.uint32).view(np.float32)[0])

_NONE: FloatArray = np.empty(0, np.float32)
_NONE.flags.writeable = False


def _codes(values: FloatArray, scale: FloatArray, offset: FloatArray) -> NDArray[np.int8]:
    steps = np.where(scale > 0, scale, 1).astype(np.float64)
    found = np.rint((values.astype(np.float64) - offset) / steps)
    return np.clip(found, -128, 127).astype(np.int8)


def _ranges(values: AnyArray) -> tuple[FloatArray, FloatArray]:
    """The scale and offset of each column, float32 [d]."""
    num_rows, dim = values.shape
    if not num_rows or not dim:
        return np.zeros(dim, np.float32), np.zeros(dim, np.float32)
    low, high = values.min(axis=0).astype(np.float64), values.max(axis=0).astype(np.float64)
    sample = np.ascontiguousarray(values[:: -(-num_rows // _SAMPLE_ROWS)])
    ends = [(low, high), (-np.maximum(-low, high), np.maximum(-low, high))]
    inner = np.quantile(sample, [*_CLIPS, *(1 - share for share in _CLIPS)], axis=0)
    ends += [(inner[k], inner[k + len(_CLIPS)]) for k in range(len(_CLIPS))]
    layouts = [_layout(*pair) for pair in ends]
    # Counts, flags and years: a step of one, starting at the smallest.
    layouts.append((np.ones(dim, np.float32), (np.floor(low) + 128).astype(np.float32)))
    errors = np.stack([_error(sample, *layout) for layout in layouts])
    best = errors.argmin(axis=0)
    columns = np.arange(dim)
    scale = np.stack([layout[0] for layout in layouts])[best, columns]
    offset = np.stack([layout[1] for layout in layouts])[best, columns]
    return np.ascontiguousarray(scale), np.ascontiguousarray(offset)


def _layout(low: AnyArray, high: AnyArray) -> tuple[FloatArray, FloatArray]:
    """Scale and offset of ranges; code -128 is at the lower end (approximately, if zero is inside)."""
    scale = ((high - low) / 255).astype(np.float32)
    step = np.where(scale > 0, scale, 1).astype(np.float32)
    zero = np.rint(-128 - low / step)  # the code of the number zero
    inside = (zero >= -128) & (zero <= 127) & (scale > 0)
    # That code times the scale, rounded like decoding does, so that their sum is exactly zero.
    exact = -(zero.astype(np.float32) * scale)
    offset = np.where(inside, exact, low + 128.0 * scale).astype(np.float32)
    return scale, offset


def _error(sample: AnyArray, scale: FloatArray, offset: FloatArray) -> NDArray[np.float64]:
    total = np.zeros(sample.shape[1])
    for begin in range(0, len(sample), _CHUNK_ROWS):
        rows = sample[begin : begin + _CHUNK_ROWS]
        found = _codes(rows, scale, offset).astype(np.float32) * scale + offset
        total += np.square(found.astype(np.float64) - rows).sum(axis=0)
    return total
