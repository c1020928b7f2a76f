"""Quantised files against NumPy."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from hopline.errors import PackagingError
from hopline.runtimes.processor import adds_in_16_bits
from hopline_compress.quantize.forms import to_narrow
from hopline_compress.quantize.int8 import SCHEMES, to_int8
from hopline_compress.quantize.operators import Layer


def product(weight: np.ndarray, bias: np.ndarray, transposed: bool) -> onnx.ModelProto:
    """h = x W + b as one file."""
    stored = np.ascontiguousarray(weight.T) if transposed else weight
    node = helper.make_node("Gemm", ["x", "w", "b"], ["h"], name="product", transB=int(transposed))
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", weight.shape[0]])],
        [helper.make_tensor_value_info("h", onnx.TensorProto.FLOAT, ["n", weight.shape[1]])],
        [numpy_helper.from_array(stored, "w"), numpy_helper.from_array(bias, "b")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(["h"], {"x": x})[0]


def drawn(seed: int, columns: int = 40, outputs: int = 12):
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((columns, outputs)).astype(np.float32)
    bias = rng.standard_normal(outputs).astype(np.float32)
    x = rng.standard_normal((64, columns)).astype(np.float32)
    return weight, bias, x


#: Of weights, that this processor takes.
BITS = 7 if adds_in_16_bits() else 8


@settings(max_examples=10, deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from(SCHEMES), st.sampled_from(sorted({7, BITS}))
)
def test_errors_stay_within_half_a_step_of_each_factor(seed, transposed, scheme, bits):
    weight, bias, x = drawn(seed)
    model = to_int8(product(weight, bias, transposed), [{"x": x}], {"product": scheme}, bits)
    stored = [t.data_type for t in model.graph.initializer if t.name.endswith("quantized")]
    assert onnx.TensorProto.INT8 in stored
    scales = np.ones(weight.shape[0], np.float32)
    for tensor in model.graph.initializer:
        if tensor.name == "product.columns":
            scales = numpy_helper.to_array(tensor)
    rows, moved = x * scales, weight / scales[:, None]
    step_x = (max(rows.max(), 0) - min(rows.min(), 0)) / 255
    step_w = np.abs(moved).max(axis=0) / (127 if bits == 8 else 64)
    bound = 0.5 * (
        step_x * np.abs(moved).sum(0) + np.abs(rows).sum(1)[:, None] * step_w + step_x * step_w * x.shape[1]
    )
    error = np.abs(run(model, x) - (x @ weight + bias))
    assert (error <= 1.1 * bound + 1e-3).all()


def test_weights_of_seven_bits_cannot_overflow_sixteen():
    """The largest inputs there are times the largest weights, two at a time: exact on every processor."""
    weight = np.full((40, 12), 3.0, np.float32)
    weight[:, ::2] *= -1
    x = np.full((4, 40), 5.0, np.float32)
    x[0] = 0
    bias = np.zeros(12, np.float32)
    model = to_int8(product(weight, bias, False), [{"x": x}], {"product": "range"}, 7)
    stored = next(t for t in model.graph.initializer if t.name.endswith("_quantized") and t.dims[0] == 40)
    assert np.abs(numpy_helper.to_array(stored)).max() == 64
    np.testing.assert_allclose(run(model, x), x @ weight, rtol=1e-5)


def test_equalised_columns_keep_what_a_large_column_would_drown():
    weight, bias, x = drawn(1)
    x[:, 0] *= 1000
    weight[0] /= 1000
    exact = x @ weight + bias
    errors = {
        scheme: np.abs(
            run(to_int8(product(weight, bias, True), [{"x": x}], {"product": scheme}, BITS), x) - exact
        )
        for scheme in SCHEMES
    }
    assert errors["equalised"].max() < 0.1 * errors["range"].max()


def test_a_column_that_calibration_never_saw_still_counts():
    weight, bias, x = drawn(2)
    blind = x.copy()
    blind[:, 5] = 0
    model = to_int8(product(weight, bias, False), [{"x": blind}], {"product": "equalised"}, BITS)
    exact = x @ weight + bias
    assert np.abs(run(model, x) - exact).max() < (0.2 if BITS == 8 else 0.4)  # half a step, or a whole one


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_weights_are_the_nearest_ones(dtype):
    weight, bias, x = drawn(3)
    layer = Layer("f/product", "f", "product", "w", weight.shape)
    model = to_narrow(product(weight, bias, False), [layer], dtype)
    expected = torch.from_numpy(weight).to(getattr(torch, dtype)).float().numpy()
    np.testing.assert_allclose(run(model, x), x @ expected + bias, rtol=1e-5, atol=1e-5)
    assert (
        len(model.SerializeToString()) < len(product(weight, bias, False).SerializeToString()) - weight.size
    )


def test_a_weight_beyond_float16_is_refused_with_the_way_out():
    weight, bias, _ = drawn(4)
    weight[3, 3] = 1e6
    layer = Layer("f/product", "f", "product", "w", weight.shape)
    with pytest.raises(PackagingError, match=r"1e\+06 is beyond float16's 65504; use bfloat16"):
        to_narrow(product(weight, bias, False), [layer], "float16")
