"""Vectors as Python expressions give what NumPy gives, whatever the length, and touch nothing beyond it."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from hopline_mesh import vectors
from hopline_mesh.vectors import turns, where


def compiled(expression, result):
    """A function of two float32 arrays and an array of `result`, which `expression` makes of them."""

    @intrinsic
    def loop(typingctx, a, b, found):
        def codegen(context, builder, signature, args):
            at = [
                context.make_array(kind)(context, builder, value).data
                for kind, value in zip(signature.args, args, strict=True)
            ]
            size = context.make_array(signature.args[0])(context, builder, args[0]).shape

            def one_turn(row, count):
                x, y = row.load(at[0]), row.load(at[1])
                made = expression(x, y)
                row.store(made, at[2], x.is_number)
                return [builder.add(count, row.count(x.is_number & (x > 0.0)))]

            none = cgutils.intp_t(0)
            (count,) = turns(builder, builder.extract_value(size, 0), [none], one_turn)
            return count

        return types.int64(a, b, found), codegen

    @njit
    def run(a, b, found):
        return loop(a, b, found)

    return run, result


EXPRESSIONS = {
    "sum": (lambda x, y: x + y * 2.0, np.float32, lambda x, y: x + y * np.float32(2)),
    "quotient": (lambda x, y: (1.0 - x) / (y * y + 1.0), np.float32, lambda x, y: (1 - x) / (y * y + 1)),
    "root": (lambda x, y: (abs(x) + abs(y)).sqrt(), np.float32, lambda x, y: np.sqrt(abs(x) + abs(y))),
    "choice": (
        lambda x, y: where((x > y) | ~(y <= 0.5), x, -y), np.float32,
        lambda x, y: np.where((x > y) | ~(y <= 0.5), x, -y),
    ),
    "floor": (lambda x, y: x.floor() - 3, np.int32, lambda x, y: np.floor(x) - 3),
    "shift": (lambda x, y: x.floor() << 3 >> 1, np.int32, lambda x, y: np.floor(x).astype(int) << 3 >> 1),
    "small": (lambda x, y: x.floor(), np.int16, lambda x, y: np.floor(x)),
    "smaller": (lambda x, y: (x != y).to_int(), np.int8, lambda x, y: x != y),
    "bits": (lambda x, y: x.bits(), np.int32, lambda x, y: x.view(np.int32)),
}  # fmt: skip
#: Compiled as for a processor with masks, and as for one without.
COMPILED = {
    (name, has_masks): compiled(expression, result)
    for name, (expression, result, _) in EXPRESSIONS.items()
    for has_masks in (False, True)
}


@pytest.fixture(params=[False, True], ids=["without masks", "with masks"])
def has_masks(request, monkeypatch):
    monkeypatch.setattr(vectors, "_HAS_MASKS", request.param)
    return request.param


@pytest.mark.parametrize("name", EXPRESSIONS)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(size=st.integers(0, 70), absent=st.sampled_from([0.0, 0.1, 1.0]), seed=st.integers(0, 1000))
def test_an_expression_gives_what_numpy_gives(has_masks, name, size, absent, seed):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(0, 100, (2, size)).astype(np.float32)
    a[rng.random(size) < absent] = np.nan
    run, kind = COMPILED[name, has_masks]
    found = np.full(size + 16, 77, kind)
    there = ~np.isnan(a)
    assert run(a, b, found[:size]) == (a[there] > 0).sum()
    with np.errstate(invalid="ignore"):
        expected = EXPRESSIONS[name][2](a, b)
    np.testing.assert_array_equal(found[:size][there], expected[there].astype(kind))
    assert (found[:size][~there] == 77).all()  # not stored where the mask does not hold
    assert (found[size:] == 77).all()


def test_an_int_array_is_loaded_with_its_sign(has_masks):
    @intrinsic
    def doubled(typingctx, small, found):
        def codegen(context, builder, signature, args):
            at = [
                context.make_array(kind)(context, builder, value)
                for kind, value in zip(signature.args, args, strict=True)
            ]

            def one_turn(row):
                number = row.load(at[0].data)
                row.store(number * 2, at[1].data, number == number)
                return []

            turns(builder, builder.extract_value(at[0].shape, 0), [], one_turn)
            return context.get_dummy_value()

        return types.void(small, found), codegen

    @njit
    def run(small, found):
        doubled(small, found)

    for kind in (np.int8, np.int16, np.int32, np.bool_):
        small = np.array([-3, 0, 5, -128] * 9).astype(kind)
        found = np.zeros(36, np.int32)
        run(small, found)
        np.testing.assert_array_equal(found, 2 * small.astype(np.int32))
