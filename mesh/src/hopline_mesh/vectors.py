"""Vectors of 16 numbers as values of Python expressions, from which LLVM instructions are made.

For compiled loops that LLVM does not vectorise, because they read and write so many arrays that it cannot
check for overlaps. Such a loop reads like NumPy:

    def body(row: Turn) -> None:
        near = row.load(level) - row.load(value)
        row.store(where(near > 0.0, near, 0.0), result, near.is_number)

Vectors are of float32, int32 or truth; int8, int16 and bool become int32 when they are loaded, and are cut
off when they are stored. Operations are done in the order that is written: no fast maths, no fused
products. LLVM splits vectors where the processor's are shorter. A processor without masks (those came with
AVX-512) reads and writes small integers one by one under a mask: there all turns but the last do without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from hopline.kernels.cpu_level import features

#: Numbers in a vector.
LANES = 16

_I64, _I32, _I1 = ir.IntType(64), ir.IntType(32), ir.IntType(1)
_FLOAT = ir.FloatType()
_FLOATS, _INTS, _TRUTHS = (ir.VectorType(kind, LANES) for kind in (_FLOAT, _I32, _I1))

_HAS_MASKS = "avx512bw" in features()

Value = Any


class Vector:
    """Sixteen numbers, or sixteen truths; as a value, nothing is changed in place."""

    __slots__ = ("builder", "value")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, builder: Any, value: Value) -> None:
        self.builder = builder
        self.value = value

    @property
    def is_float(self) -> bool:
        """Whether these are float32."""
        return bool(self.value.type == _FLOATS)

    def _like(self, other: Vector | float) -> Value:
        """Another operand, of this one's kind."""
        if isinstance(other, Vector):
            return other.value
        return ir.Constant(self.value.type, [other] * LANES)

    def _of(self, value: Value) -> Vector:
        return Vector(self.builder, value)

    def __add__(self, other: Vector | float) -> Vector:
        add = self.builder.fadd if self.is_float else self.builder.add
        return self._of(add(self.value, self._like(other)))

    def __sub__(self, other: Vector | float) -> Vector:
        subtract = self.builder.fsub if self.is_float else self.builder.sub
        return self._of(subtract(self.value, self._like(other)))

    def __rsub__(self, other: float) -> Vector:
        return self._of(self._like(other)) - self

    def __mul__(self, other: Vector | float) -> Vector:
        multiply = self.builder.fmul if self.is_float else self.builder.mul
        return self._of(multiply(self.value, self._like(other)))

    __radd__, __rmul__ = __add__, __mul__

    def __truediv__(self, other: Vector | float) -> Vector:
        return self._of(self.builder.fdiv(self.value, self._like(other)))

    def __rtruediv__(self, other: float) -> Vector:
        return self._of(self._like(other)) / self

    def __neg__(self) -> Vector:
        return self._of(self.builder.fneg(self.value))

    def __and__(self, other: Vector) -> Vector:
        return self._of(self.builder.and_(self.value, other.value))

    def __or__(self, other: Vector) -> Vector:
        return self._of(self.builder.or_(self.value, other.value))

    def __invert__(self) -> Vector:
        return self._of(self.builder.not_(self.value))

    def __lshift__(self, bits: int) -> Vector:
        return self._of(self.builder.shl(self.value, self._like(bits)))

    def __rshift__(self, bits: int) -> Vector:
        return self._of(self.builder.ashr(self.value, self._like(bits)))

    def _compare(self, how: str, other: Vector | float) -> Vector:
        """Comparisons with NaN are false, but for `!=`."""
        builder = self.builder
        if not self.is_float:
            return self._of(builder.icmp_signed(how, self.value, self._like(other)))
        compare = builder.fcmp_unordered if how == "!=" else builder.fcmp_ordered
        return self._of(compare(how, self.value, self._like(other)))

    def __lt__(self, other: Vector | float) -> Vector:
        return self._compare("<", other)

    def __le__(self, other: Vector | float) -> Vector:
        return self._compare("<=", other)

    def __gt__(self, other: Vector | float) -> Vector:
        return self._compare(">", other)

    def __ge__(self, other: Vector | float) -> Vector:
        return self._compare(">=", other)

    def __eq__(self, other: Vector | float) -> Vector:  # type: ignore[override]
        return self._compare("==", other)

    def __ne__(self, other: Vector | float) -> Vector:  # type: ignore[override]
        return self._compare("!=", other)

    def __abs__(self) -> Vector:
        return self._call("llvm.fabs.v16f32")

    @property
    def is_number(self) -> Vector:
        """Where this is not NaN."""
        return self == self

    def sqrt(self) -> Vector:
        """Square roots."""
        return self._call("llvm.sqrt.v16f32")

    def floor(self) -> Vector:
        """Whole numbers as int32, for what fits; of NaN anything."""
        whole = self.to_int()
        return whole - (whole.to_float() > self).to_int()

    def to_int(self) -> Vector:
        """As int32: float32 cut off, truths as 0 and 1."""
        if self.is_float:
            return self._of(self.builder.fptosi(self.value, _INTS))
        return self._of(self.builder.zext(self.value, _INTS)) if self.value.type == _TRUTHS else self

    def to_float(self) -> Vector:
        """int32 as float32."""
        return self._of(self.builder.sitofp(self.value, _FLOATS))

    def bits(self) -> Vector:
        """A float32's bits as int32, or the other way round."""
        return self._of(self.builder.bitcast(self.value, _INTS if self.is_float else _FLOATS))

    def _call(self, name: str) -> Vector:
        function = cgutils.get_or_insert_function(
            self.builder.module, ir.FunctionType(_FLOATS, [_FLOATS]), name
        )
        return self._of(self.builder.call(function, [self.value]))


def where(condition: Vector, then: Vector | float, otherwise: Vector | float) -> Vector:
    """One or the other, number by number; at least one of them a vector."""
    like = then if isinstance(then, Vector) else otherwise
    assert isinstance(like, Vector)
    chosen = like.builder.select(condition.value, like._like(then), like._like(otherwise))
    return Vector(like.builder, chosen)


class Variable:
    """A vector that a branch may change."""

    def __init__(self, builder: Any, first: Vector) -> None:
        self._builder = builder
        self._place = cgutils.alloca_once_value(builder, first.value)

    def set(self, vector: Vector) -> None:
        """Have it be another one from here on."""
        self._builder.store(vector.value, self._place)

    def get(self) -> Vector:
        """What it is here."""
        return Vector(self._builder, self._builder.load(self._place))


class Turn:
    """One turn of a loop: places `first` to `first + 15`; places from `count` on do not exist.

    Args:
        count: None if all places exist.
    """

    def __init__(self, builder: Any, first: Value, count: Value | None = None) -> None:
        self.builder = builder
        self._first = first
        self._there: Vector | None = None
        if count is not None:
            steps = ir.Constant(_INTS, list(range(LANES)))
            left = self._spread(builder.trunc(builder.sub(count, first), _I32))
            self._there = Vector(builder, builder.icmp_signed("<", steps, left))

    def _spread(self, scalar: Value) -> Value:
        kind = ir.VectorType(scalar.type, LANES)
        one = self.builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(_I32, 0))
        zeros = ir.Constant(_INTS, [0] * LANES)
        return self.builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), zeros)

    def all_of(self, scalar: Value) -> Vector:
        """A number in all lanes."""
        return Vector(self.builder, self._spread(scalar))

    def floats(self, number: float) -> Vector:
        """A float32 number in all lanes."""
        return Vector(self.builder, ir.Constant(_FLOATS, [number] * LANES))

    def ints(self, number: int) -> Vector:
        """An int32 number in all lanes."""
        return Vector(self.builder, ir.Constant(_INTS, [number] * LANES))

    def _at(self, array: Value) -> Value:
        place = self.builder.gep(array, [self._first])
        return self.builder.bitcast(place, ir.VectorType(array.type.pointee, LANES).as_pointer())

    def _function(self, name: str, result: Any, given: Sequence[Any]) -> Any:
        return cgutils.get_or_insert_function(
            self.builder.module, ir.FunctionType(result, list(given)), name
        )

    def load(self, array: Value) -> Vector:
        """Numbers of an array, 0 beyond its end; it points at float32 or integers up to 32 bits."""
        element = array.type.pointee
        value = self._load(self._at(array), element)
        return Vector(self.builder, value if element in (_FLOAT, _I32) else self.builder.sext(value, _INTS))

    def _load(self, place: Value, element: Any) -> Value:
        if self._there is None:
            return self.builder.load(place, align=_num_bytes(element))
        kind = ir.VectorType(element, LANES)
        load = self._function(
            f"llvm.masked.load.{_name(element)}.p0", kind, [place.type, _I32, _TRUTHS, kind]
        )
        align = ir.Constant(_I32, _num_bytes(element))
        return self.builder.call(load, [place, align, self._there.value, ir.Constant(kind, None)])

    def store(self, vector: Vector, array: Value, mask: Vector) -> None:
        """Numbers into an array, where `mask` holds and the array is.

        No other thread may write to its other places meanwhile.
        """
        element, value = array.type.pointee, vector.value
        kind = ir.VectorType(element, LANES)
        if element not in (_FLOAT, _I32):
            value = self.builder.trunc(value, kind)
        place = self._at(array)
        if self._there is None:
            align = _num_bytes(element)
            # LLVM makes one masked store of a choice and a store, which AMD's processors without masks take
            # some 20 cycles for; masks nearly always hold everywhere.
            is_all = self.builder.icmp_unsigned("==", self._bits(mask), ir.Constant(ir.IntType(LANES), -1))
            with self.builder.if_else(is_all, likely=True) as (then, otherwise):
                with then:
                    self.builder.store(value, place, align=align)
                with otherwise:
                    value = self.builder.select(mask.value, value, self._load(place, element))
                    self.builder.store(value, place, align=align)
            return
        store = self._function(
            f"llvm.masked.store.{_name(element)}.p0", ir.VoidType(), [kind, place.type, _I32, _TRUTHS]
        )
        align = ir.Constant(_I32, _num_bytes(element))
        self.builder.call(store, [value, place, align, (mask & self._there).value])

    def _bits(self, mask: Vector) -> Value:
        """An int16, one bit for each place; in an incomplete turn also for missing places."""
        return self.builder.bitcast(mask.value, ir.IntType(LANES))

    def _bits_there(self, mask: Vector) -> Value:
        """`_bits`, 0 for missing places."""
        return self._bits(mask if self._there is None else mask & self._there)

    def is_any(self, mask: Vector) -> Value:
        """Whether it holds in any place, for `builder.if_then`."""
        bits = self._bits_there(mask)
        return self.builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))

    def variable(self, vector: Vector) -> Variable:
        """A vector that is another one after some branch."""
        return Variable(self.builder, vector)

    def count(self, mask: Vector) -> Value:
        """In how many places it holds, an int64."""
        bits = self._bits_there(mask)
        ones = self._function(f"llvm.ctpop.i{LANES}", ir.IntType(LANES), [ir.IntType(LANES)])
        return self.builder.zext(self.builder.call(ones, [bits]), _I64)


def _name(element: Any) -> str:
    return f"v{LANES}f32" if element == _FLOAT else f"v{LANES}i{element.width}"


def _num_bytes(element: Any) -> int:
    return 4 if element == _FLOAT else max(1, element.width // 8)


def turns(
    builder: Any, count: Value, carried: Sequence[Value], body: Callable[..., Sequence[Value]]
) -> list[Value]:
    """`for each 16 of count: carried = body(turn, *carried)`; returns what is carried out, int64."""
    step, none = ir.Constant(_I64, LANES), ir.Constant(_I64, 0)
    sums = [cgutils.alloca_once_value(builder, value) for value in carried]

    def turn(row: Turn) -> None:
        results = body(row, *(builder.load(place) for place in sums))
        for place, result in zip(sums, results, strict=True):
            builder.store(result, place)

    whole = none
    if not _HAS_MASKS:
        whole = builder.and_(count, ir.Constant(_I64, -LANES))
        with cgutils.for_range_slice(builder, none, whole, step, intp=_I64) as (first, _):
            turn(Turn(builder, first))
    with cgutils.for_range_slice(builder, whole, count, step, intp=_I64) as (first, _):
        turn(Turn(builder, first, count))
    return [builder.load(place) for place in sums]
