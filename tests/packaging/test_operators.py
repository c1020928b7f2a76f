"""The ONNX form of an operator answers as torch, also for values that a packaging graph may not have."""

import math
from functools import partial

import numpy as np
import onnxruntime as ort
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hopline.errors import NotSplittable
from hopline.packaging.export import export

SIZES = [
    0.0,
    1e-30,
    1e-7,
    0.3,
    0.5,
    0.999999,
    1.0,
    1.0000001,
    1.5,
    2.5,
    3.0,
    5.5,
    7.0,
    10.0,
    30.0,
    88.0,
    90.0,
]
SIZES += [300.0, 1e4, 86400.0, 16777217.0, 1e10, 1e30]
FINITE = torch.tensor([*SIZES, *(-size for size in SIZES)])
ALL = torch.cat([FINITE, torch.tensor([math.inf, -math.inf, math.nan])])
ROWS = FINITE[FINITE.abs() <= 1e4][torch.randint(0, 30, (300, 4), generator=torch.manual_seed(0))]

STATISTICS = (torch.linspace(-1, 1, 4), torch.linspace(0.5, 2, 4))


def _codes(x):
    return x.nan_to_num().clamp(-1000, 1000).long()


def _named(module, names, **arguments):
    return {name: partial(getattr(module, name), **arguments) for name in names.split()}


_PLAIN = """
abs acos acosh asin asinh atan atanh ceil cos cosh deg2rad erf exp exp2 expm1 floor frac
isfinite isinf isnan log log10 log1p log2 logit nan_to_num neg rad2deg reciprocal relu round rsqrt
sigmoid sin sinc sinh sqrt square tan tanh trunc
"""
_ACTIVATIONS = """
celu elu hardshrink hardsigmoid hardtanh leaky_relu logsigmoid mish relu6 selu silu softplus
softshrink softsign tanhshrink
"""
_REDUCTIONS = """
amax amin argmax argmin cumsum log_softmax logsumexp mean nanmean nansum prod softmax std sum var
"""
OF_ONE = {
    **_named(torch, _PLAIN),
    **_named(F, _ACTIVATIONS),
    "clamp below": lambda x: x.clamp(min=0.3),
    "clamp above": lambda x: x.clamp(max=0.3),
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp, bounds exchanged": lambda x: x.clamp(1, -1),
    "clamp_min": lambda x: torch.clamp_min(x, 0.3),
    "clamp_max": lambda x: torch.clamp_max(x, 0.3),
    "clamp by tensors": lambda x: x.clamp(torch.tensor(-1.0), torch.tensor(2.0)),
    "clamp of integers": lambda x: _codes(x).clamp(min=2),
    "softplus, beta": lambda x: F.softplus(x, beta=2.0),
    "softplus, threshold": lambda x: F.softplus(x, threshold=5.0),
    "logaddexp of a number": lambda x: torch.logaddexp(x, torch.tensor(0.0)),
    "remainder": lambda x: x % 1.3,
    "remainder, negative": lambda x: torch.remainder(x, -1.3),
    "remainder of doubles": lambda x: x.double() % 86400.0,
    "fmod": lambda x: torch.fmod(x, 1.3),
    "remainder of integers": lambda x: _codes(x) % 3,
    "remainder of integers, negative": lambda x: _codes(x) % -3,
    "floor division": lambda x: x // 0.3,
    "floor division of doubles": lambda x: x.double() // 3600.0,
    "floor division of integers": lambda x: _codes(x) // -3,
    "floored quotient": lambda x: torch.div(x, 0.5, rounding_mode="floor"),
    "truncated quotient": lambda x: torch.div(x, 0.3, rounding_mode="trunc"),
    "truncated quotient of integers": lambda x: torch.div(_codes(x), 3, rounding_mode="trunc"),
    "powers": lambda x: torch.stack([x**2, x**3, x**-1.0, x**0.0], -1).flatten(1),
    "where": lambda x: torch.where(x > 0, x, -x),
    "masked_fill": lambda x: x.masked_fill(torch.isinf(x), 7.0),
    "one minus": lambda x: 1 - x,
    "one minus doubles": lambda x: 1 - x.double(),
    "one minus integers": lambda x: 1 - _codes(x),
    "a fraction minus integers": lambda x: 1.5 - _codes(x),
    "a number minus several times": lambda x: torch.rsub(x, 2, alpha=3),
    "a number minus several integers": lambda x: torch.rsub(_codes(x), 2, alpha=3),
    "conversions": lambda x: x.float().double().to(torch.float32, copy=True).bool().int() * 2,
    "converted memory": lambda x: x.to(torch.float64, memory_format=torch.contiguous_format),
    "one_hot": lambda x: F.one_hot(_codes(x)[:, 0].clamp(0, 3), 4),
}
OF_TWO = {
    **_named(torch, "add sub mul div maximum minimum pow logaddexp logaddexp2 gt ge lt le eq ne"),
    "atan2": torch.atan2,
    "remainder": torch.remainder,
    "floor_divide": torch.floor_divide,
}
OF_ROWS = {
    **_named(torch, _REDUCTIONS, dim=1),
    "sort": lambda x: x.sort(1)[0],
    "topk": lambda x: x.topk(2, 1)[0],
    "normalize": lambda x: F.normalize(x, dim=1),
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "batch_norm": lambda x: F.batch_norm(x, *STATISTICS, torch.arange(4.0), torch.ones(4), eps=0.1),
    "batch_norm without weights": lambda x: F.batch_norm(x, *STATISTICS),
    "batch_norm without a bias": lambda x: F.batch_norm(x, *STATISTICS, torch.arange(4.0)),
    "batch_norm without a weight": lambda x: F.batch_norm(x, *STATISTICS, bias=torch.arange(4.0)),
    "batch_norm of blocks": lambda x: F.batch_norm(x.view(-1, 4, 1), *STATISTICS).flatten(1),
    "norms": lambda x: (
        torch.stack([torch.linalg.vector_norm(x, p, dim=1) for p in (0, 1, 2, 3, math.inf)]).T
    ),
    "bucketize": lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0, 2.5])),
}


def _answers(function, x, folder):
    """Of torch and of the written file, float32 [n, columns]."""

    class Stage(nn.Module):
        def forward(self, x):
            return function(x).float()

    stage = Stage().eval()
    export(
        stage,
        [torch.zeros(7, x.shape[1])],
        [{0: torch.export.Dim("n", min=1)}],
        ["x"],
        "h",
        folder / "a.onnx",
    )
    session = ort.InferenceSession(folder / "a.onnx", providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {"x": x.numpy()})
    return got, stage(x).numpy()


@pytest.mark.sample(18)
@pytest.mark.parametrize("name", OF_ONE)
def test_of_one_number(name, tmp_path):
    x = (FINITE if name in ("powers", "remainder of doubles") else ALL).unsqueeze(1)
    np.testing.assert_allclose(*_answers(OF_ONE[name], x, tmp_path), rtol=1e-4, atol=1e-6)


@pytest.mark.sample(18)
@pytest.mark.parametrize("name", sorted({*_PLAIN.split(), *_ACTIVATIONS.split()} - {"tanhshrink"}))
def test_small_answers_have_as_many_true_digits_as_those_of_torch(name, tmp_path):
    """A ratio or a norm of them shows each digit: F.normalize, s / s.sum(), GatedGCN."""
    sizes = torch.logspace(-12, 1.9, 300)
    x = torch.cat([sizes, -sizes]).unsqueeze(1)
    got, expected = _answers(OF_ONE[name], x, tmp_path)
    exact = OF_ONE[name](x.double()).double().numpy()
    allowed = 1e-5 * np.abs(exact) + 8 * np.abs(expected - exact) + 1e-37
    known = np.isfinite(exact)
    np.testing.assert_array_less(np.abs(got - exact)[known], allowed[known])


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", OF_TWO)
def test_of_two_numbers(name, tmp_path):
    # torch has angles of two infinities and remainders of infinities; the form has NaN
    values = FINITE if name in ("atan2", "remainder", "floor_divide") else ALL
    x = torch.cartesian_prod(values, values)
    got, expected = _answers(lambda x: OF_TWO[name](x[:, :1], x[:, 1:]), x, tmp_path)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", OF_ROWS)
def test_of_rows(name, tmp_path):
    np.testing.assert_allclose(*_answers(OF_ROWS[name], ROWS, tmp_path), rtol=1e-4, atol=1e-5)


def test_what_has_no_form_that_holds_is_refused(tmp_path):
    with pytest.raises(NotSplittable, match="logcumsumexp has no ONNX form that holds for large values"):
        _answers(lambda x: torch.logcumsumexp(x, dim=1), ROWS, tmp_path)
    with pytest.raises(NotSplittable, match="erfc has no ONNX form that holds for small values"):
        _answers(torch.erfc, ROWS, tmp_path)


def test_statistics_of_a_batch_are_refused(tmp_path):
    with pytest.raises(NotSplittable, match="rows of a batch"):
        _answers(lambda x: F.batch_norm(x, None, None, training=True), ROWS, tmp_path)
