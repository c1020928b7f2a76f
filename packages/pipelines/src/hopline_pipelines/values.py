"""Values between the steps of a pipeline: the type, known at load, and the arrays of one run.

Everything is row-wise: a value has one row for each requested item, or is one number, text or truth
value of the whole request (an attribute).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from hopline.errors import PipelineInvalid
from hopline.transports.tensors import DATATYPES
from hopline.types import AnyArray, TensorInfo

Kind: TypeAlias = Literal["number", "truth", "text"]

DTYPES = {**DATATYPES, "BYTES": np.dtype("O")}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class ValueType:
    """Type of a value.

    Attributes:
        datatype: Open Inference Protocol name.
        dims: sizes beyond the rows: () for [n], (8,) for [n, 8]; -1 where it is not known.
        by_row: False for one value of the whole request.
    """

    datatype: str
    dims: tuple[int, ...] = ()
    by_row: bool = True

    @property
    def kind(self) -> Kind:
        """Operations that a value allows."""
        return kind_of(self.datatype)

    def __str__(self) -> str:
        if not self.by_row:
            return f"one {self.kind}"
        return f"{self.datatype} {shape_in_words(self.dims)}"

    def sample(self, num_rows: int) -> Any:
        """Made-up values of this type: ones, or empty texts."""
        ones: dict[Kind, Any] = {"number": 1, "truth": True, "text": ""}
        one = ones[self.kind]
        if not self.by_row:
            return float(one) if self.datatype.startswith("FP") else one
        shape = (num_rows, *(1 if size < 0 else size for size in self.dims))
        return np.full(shape, one, DTYPES[self.datatype])

    def fits(self, datatype: str) -> bool:
        """True if nothing is lost but digits when it becomes a `datatype`."""
        wanted, own = kind_of(datatype), self.kind
        if wanted != "number":
            return own == wanted
        return own == "truth" or (
            own == "number" and (datatype.startswith("FP") or not self.datatype.startswith("FP"))
        )


def kind_of(datatype: str) -> Kind:
    """Number, truth or text.

    Raises: PipelineInvalid: no datatype of the protocol.
    """
    if datatype == "BYTES":
        return "text"
    if datatype == "BOOL":
        return "truth"
    if datatype not in DTYPES:
        raise PipelineInvalid(f"unknown datatype {datatype!r}; known are {', '.join(DTYPES)}")
    return "number"


def type_of(tensor: TensorInfo) -> ValueType:
    """Type of a model's output or column; [n, 1] differs from [n]."""
    return ValueType(tensor.datatype, tuple(tensor.shape[1:]))


def type_of_array(array: AnyArray) -> ValueType:
    """Type of rows that were computed."""
    return ValueType("BYTES" if array.dtype.kind in "OU" else _NAMES[array.dtype], array.shape[1:])


def shape_in_words(dims: tuple[int, ...]) -> str:
    """`[n, 8]`."""
    return f"[{', '.join(['n', *('?' if size < 0 else str(size) for size in dims)])}]"


class Values:
    """The arrays of one run.

    Attributes:
        num_rows: requested items.
        attributes: name -> value, as declared.
        columns: name -> [n], as declared.
        of: for each step in its order: output name -> array, once it has ended.
    """

    __slots__ = ("attributes", "columns", "num_rows", "of")

    def __init__(
        self, num_rows: int, attributes: dict[str, Any], columns: dict[str, AnyArray], num_steps: int
    ) -> None:
        self.num_rows = num_rows
        self.attributes = attributes
        self.columns = columns
        self.of: list[dict[str, AnyArray]] = [{}] * num_steps
