"""Instructions on vectors of 16 float32 numbers at addresses, for the encoder's inner loops.

Addresses are int64; nothing is checked. LLVM splits vectors where the processor's are shorter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from hopline.kernels.intrinsics import LINE_BYTES

#: Numbers in a vector.
LANES = 16

FLOAT, I32, I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
VECTOR = ir.VectorType(FLOAT, LANES)
QUAD = ir.VectorType(FLOAT, 4)
FAST = ("fast",)
#: Products and sums may be fused, but keep their order.
ORDERED = ("contract",)
Value = Any


class _Bfloat16(ir.Type):  # type: ignore[misc]
    """LLVM's `bfloat`, which llvmlite does not name."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Bfloat16)

    def __hash__(self) -> int:
        return hash(_Bfloat16)


HALF = _Bfloat16()
#: As many pairs as a vector has lanes.
HALVES = ir.VectorType(HALF, 2 * LANES)


class Emit:
    """Instructions on vectors at int64 addresses."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def at(self, address: Value, offset: Value | int = 0) -> Value:
        """An address some bytes on."""
        if isinstance(offset, int):
            offset = ir.Constant(I64, offset)
        return self.builder.add(address, offset)

    def times(self, value: Value, factor: int) -> Value:
        """An int64 times a constant."""
        return self.builder.mul(value, ir.Constant(I64, factor))

    def load(self, address: Value, kind: Any = VECTOR) -> Value:
        """What lies at an address, which need not be aligned."""
        return self.builder.load(self.builder.inttoptr(address, kind.as_pointer()), align=4)

    def prefetch(self, address: Value, num_bytes: int) -> None:
        """Ask for the cache lines of a row that is read soon; never faults."""
        function = cgutils.get_or_insert_function(
            self.builder.module,
            ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, I32, I32, I32]),
            "llvm.prefetch.p0",
        )
        read_to_all_caches = [ir.Constant(I32, number) for number in (0, 3, 1)]
        for line in range(0, num_bytes, LINE_BYTES):
            place = self.builder.inttoptr(self.at(address, line), cgutils.voidptr_t)
            self.builder.call(function, [place, *read_to_all_caches])

    def store(self, value: Value, address: Value) -> None:
        """Put a value at an address."""
        self.builder.store(value, self.builder.inttoptr(address, value.type.as_pointer()), align=4)

    def shuffle(self, a: Value, b: Value, lanes: Sequence[int]) -> Value:
        """Lanes of two vectors: those of `b` count on from those of `a`."""
        mask = ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes))
        return self.builder.shuffle_vector(a, b, mask)

    def splat(self, scalar: Value, lanes: int = LANES) -> Value:
        """A number in all lanes."""
        kind = ir.VectorType(scalar.type, lanes)
        one = self.builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(I32, 0))
        return self.shuffle(one, ir.Constant(kind, ir.Undefined), [0] * lanes)

    def number(self, value: float, kind: Any = VECTOR) -> Value:
        """A constant in all lanes."""
        return ir.Constant(kind, [value] * kind.count)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c."""
        builder = self.builder
        return builder.fadd(builder.fmul(a, b, flags=ORDERED), c, flags=ORDERED)

    def add_pairs(self, a: Value, b: Value, c: Value) -> Value:
        """c + a * b, two products to each lane; `a` and `b` hold pairs of bfloat16."""
        function = cgutils.get_or_insert_function(
            self.builder.module,
            ir.FunctionType(VECTOR, [VECTOR, HALVES, HALVES]),
            "llvm.x86.avx512bf16.dpbf16ps.512",
        )
        return self.builder.call(function, [c, self.builder.bitcast(a, HALVES), b])

    def add_four_pairs(self, a: Value, address: Value, c: Value) -> Value:
        """`add_pairs` of vectors of four; `a` is four int32, the other pairs lie at an address."""
        kind = ir.VectorType(HALF, 2 * QUAD.count)
        function = cgutils.get_or_insert_function(
            self.builder.module,
            ir.FunctionType(QUAD, [QUAD, kind, kind]),
            "llvm.x86.avx512bf16.dpbf16ps.128",
        )
        return self.builder.call(function, [c, self.builder.bitcast(a, kind), self.load(address, kind)])

    def rounded(self, vector: Value) -> Value:
        """A vector as bfloat16, to the nearest."""
        kind = ir.VectorType(HALF, LANES)
        function = cgutils.get_or_insert_function(
            self.builder.module, ir.FunctionType(kind, [VECTOR]), "llvm.x86.avx512bf16.cvtneps2bf16.512"
        )
        return self.builder.call(function, [vector])

    def load_some(self, address: Value, count: Value, kind: Any = QUAD) -> Value:
        """The first `count` numbers of a vector at an address, the others 0; there may be fewer or more."""
        builder, place = self.builder, self.builder.inttoptr(address, cgutils.voidptr_t)
        lanes = ir.Constant(ir.VectorType(I32, kind.count), list(range(kind.count)))
        truths = ir.VectorType(ir.IntType(1), kind.count)
        there = builder.icmp_signed("<", lanes, self.splat(builder.trunc(count, I32), kind.count))
        load = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(kind, [cgutils.voidptr_t, I32, truths, kind]),
            f"llvm.masked.load.v{kind.count}f32.p0",
        )
        return builder.call(load, [place, ir.Constant(I32, 4), there, self.number(0.0, kind)])

    def store_some(self, halves: Value, address: Value, count: Value) -> None:
        """The first `count` of a vector of bfloat16, put at an address; there may be fewer or more."""
        builder, kind = self.builder, ir.VectorType(ir.IntType(16), LANES)
        place = builder.inttoptr(address, cgutils.voidptr_t)
        lanes = ir.Constant(ir.VectorType(I32, LANES), list(range(LANES)))
        there = builder.icmp_signed("<", lanes, self.splat(builder.trunc(count, I32)))
        store = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(
                ir.VoidType(), [kind, cgutils.voidptr_t, I32, ir.VectorType(ir.IntType(1), LANES)]
            ),
            f"llvm.masked.store.v{LANES}i16.p0",
        )
        builder.call(store, [builder.bitcast(halves, kind), place, ir.Constant(I32, 2), there])

    def max(self, a: Value, b: Value) -> Value:
        """The larger one, lane by lane."""
        builder = self.builder
        return builder.select(builder.fcmp_ordered(">", a, b, flags=FAST), a, b)

    def magnitude(self, x: Value) -> Value:
        """The absolute value, lane by lane."""
        builder, kind = self.builder, x.type
        ints = ir.VectorType(I32, kind.count)
        bits = builder.and_(builder.bitcast(x, ints), ir.Constant(ints, [0x7FFFFFFF] * kind.count))
        return builder.bitcast(bits, kind)

    def any_above(self, quad: Value, bound: float) -> Value:
        """Whether any of four numbers is larger, or not a number."""
        builder = self.builder
        above = builder.fcmp_unordered(">", quad, self.number(bound, QUAD))
        return builder.icmp_unsigned(
            "!=", builder.bitcast(above, ir.IntType(4)), ir.Constant(ir.IntType(4), 0)
        )

    def nearest(self, x: Value) -> Value:
        """Rounded to whole numbers, to even where there are two."""
        name = f"llvm.roundeven.v{x.type.count}f32"
        function = cgutils.get_or_insert_function(
            self.builder.module, ir.FunctionType(x.type, [x.type]), name
        )
        return self.builder.call(function, [x])

    def leaky(self, x: Value, slope: Value) -> Value:
        """LeakyReLU, for slopes up to 1."""
        return self.max(x, self.builder.fmul(x, slope, flags=FAST))

    def loop(self, count: Value, carried: Sequence[Value], body: Callable[..., Sequence[Value]]) -> Any:
        """`for k in range(count): carried = body(k, *carried)`; returns what is carried out."""
        builder = self.builder
        before = builder.block
        head = builder.append_basic_block("lanes.head")
        inside = builder.append_basic_block("lanes.body")
        after = builder.append_basic_block("lanes.end")
        builder.branch(head)
        builder.position_at_end(head)
        k = builder.phi(I64)
        k.add_incoming(ir.Constant(I64, 0), before)
        phis = [builder.phi(value.type) for value in carried]
        for phi, value in zip(phis, carried, strict=True):
            phi.add_incoming(value, before)
        builder.cbranch(builder.icmp_signed("<", k, count), inside, after)
        builder.position_at_end(inside)
        results = body(k, *phis)
        k.add_incoming(builder.add(k, ir.Constant(I64, 1)), builder.block)
        for phi, value in zip(phis, results, strict=True):
            phi.add_incoming(value, builder.block)
        builder.branch(head)
        builder.position_at_end(after)
        return phis

    def when(
        self, condition: Value, values: Sequence[Value], body: Callable[[], Sequence[Value]]
    ) -> list[Value]:
        """`values`, or where the condition holds what `body` makes of them."""
        builder = self.builder
        before = builder.block
        with builder.if_then(condition):
            results = body()
            inside = builder.block
        return self._of_either(values, before, results, inside)

    def either(
        self,
        condition: Value,
        then: Callable[[], Sequence[Value]],
        otherwise: Callable[[], Sequence[Value]],
    ) -> list[Value]:
        """What one of the two makes."""
        builder = self.builder
        with builder.if_else(condition) as (if_true, if_false):
            with if_true:
                results, after = then(), builder.block
            with if_false:
                others, after_others = otherwise(), builder.block
        return self._of_either(results, after, others, after_others)

    def _of_either(
        self, values: Sequence[Value], block: Any, others: Sequence[Value], other_block: Any
    ) -> list[Value]:
        """Values by the block that was come from."""
        phis = []
        for value, other in zip(values, others, strict=True):
            phi = self.builder.phi(value.type)
            phi.add_incoming(value, block)
            phi.add_incoming(other, other_block)
            phis.append(phi)
        return phis

    def any_set(self, quad: Value) -> Value:
        """Whether any of four numbers is not 0."""
        builder = self.builder
        bits = builder.bitcast(quad, ir.IntType(128))
        signs = ir.Constant(ir.IntType(128), int("7fffffff" * 4, 16))
        return builder.icmp_unsigned("!=", builder.and_(bits, signs), ir.Constant(ir.IntType(128), 0))

    def exp(self, x: Value) -> Value:
        """e^x for x in [-87, 88], to 2 units in the last place: Cephes' polynomial (Moshier)."""
        builder, kind = self.builder, x.type
        ints = ir.VectorType(I32, kind.count)
        floor = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(kind, [kind]), f"llvm.floor.v{kind.count}f32"
        )
        whole = builder.call(
            floor, [self.fma(x, self.number(1.44269504088896, kind), self.number(0.5, kind))]
        )
        rest = self.fma(whole, self.number(-0.693359375, kind), x)
        rest = self.fma(whole, self.number(2.12194440e-4, kind), rest)
        sum_ = self.number(1.9875691500e-4, kind)
        for factor in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
            sum_ = self.fma(sum_, rest, self.number(factor, kind))
        sum_ = self.fma(
            sum_,
            builder.fmul(rest, rest),
            builder.fadd(rest, self.number(1.0, kind)),
        )
        power = builder.add(builder.fptosi(whole, ints), ir.Constant(ints, [127] * kind.count))
        scale = builder.bitcast(builder.shl(power, ir.Constant(ints, [23] * kind.count)), kind)
        return builder.fmul(sum_, scale)

    def four_sums(self, parts: Sequence[Value]) -> Value:
        """Sums of four vectors over their lanes, as one vector of four."""
        builder = self.builder
        low = [k + 4 * q for q in range(LANES // 4) for k in (0, 1)]
        pairs = []
        for a, b in ((parts[0], parts[1]), (parts[2], parts[3])):
            even = self.shuffle(a, b, [x for q in low[::2] for x in (q, LANES + q, q + 1, LANES + q + 1)])
            odd = self.shuffle(
                a, b, [x for q in low[::2] for x in (q + 2, LANES + q + 2, q + 3, LANES + q + 3)]
            )
            pairs.append(builder.fadd(even, odd, flags=FAST))  # of each four lanes: a, b, a, b
        first = self.shuffle(
            pairs[0], pairs[1], [x for q in low[::2] for x in (q, q + 1, LANES + q, LANES + q + 1)]
        )
        second = self.shuffle(
            pairs[0], pairs[1], [x for q in low[::2] for x in (q + 2, q + 3, LANES + q + 2, LANES + q + 3)]
        )
        return self.fold(builder.fadd(first, second, flags=FAST))

    def fold(self, vector: Value) -> Value:
        """The sum of a vector's four quarters."""
        builder = self.builder
        lanes = list(range(LANES))
        half = builder.fadd(
            self.shuffle(vector, vector, lanes[:8]), self.shuffle(vector, vector, lanes[8:]), flags=FAST
        )
        return builder.fadd(
            self.shuffle(half, half, lanes[:4]), self.shuffle(half, half, lanes[4:8]), flags=FAST
        )
