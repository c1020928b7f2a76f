"""Stages over bound buffers: any number of rows, and the same bits for each row."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hopline.errors import BadRequest
from hopline.runtimes.onnx import RowStage


def write_two_products(path, rng):
    weights = [rng.standard_normal(shape).astype(np.float32) for shape in ((24, 40), (40, 5))]
    nodes = [
        helper.make_node("Gemm", ["x", "w0"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Gemm", ["b", "w1"], ["h"]),
    ]
    graph = helper.make_graph(
        nodes,
        "stage",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 24])],
        [helper.make_tensor_value_info("h", TensorProto.FLOAT, ["n", 5])],
        [numpy_helper.from_array(weight, f"w{k}") for k, weight in enumerate(weights)],
    )
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]), path)


def test_rows_have_the_same_bits_for_every_number_of_rows(tmp_path):
    rng = np.random.default_rng(0)
    write_two_products(tmp_path / "stage.onnx", rng)
    stage = RowStage(tmp_path / "stage.onnx", ["x"], [24], "h", 5)
    rows = rng.standard_normal((stage.chunk_rows, 24)).astype(np.float32)
    stage.inputs[0][:] = rows
    together = stage.run(stage.chunk_rows).copy()
    for count in range(1, stage.chunk_rows + 1):
        stage.inputs[0][:count] = rows[:count]
        stage.inputs[0][count:] = np.nan  # what is behind the rows of a call has no effect
        found = stage.run(count)
        assert found.shape == (count, 5)
        np.testing.assert_array_equal(found, together[:count])


def write_table(path, num_codes):
    """The entries of a table, by codes in the first column."""
    nodes = [
        helper.make_node("Cast", ["x"], ["code"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "code"], ["h"]),
    ]
    graph = helper.make_graph(
        nodes,
        "stage",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("h", TensorProto.FLOAT, ["n", 1])],
        [numpy_helper.from_array(np.arange(num_codes, dtype=np.float32)[:, None], "table")],
    )
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]), path)


@pytest.mark.parametrize("later", [1, 2, 3, 5, 33])
@pytest.mark.parametrize("place", [0, 2, 3, 30, 40])
def test_a_row_that_fails_does_not_make_later_calls_fail(place, later, tmp_path):
    write_table(tmp_path / "stage.onnx", 10)
    stage = RowStage(tmp_path / "stage.onnx", ["x"], [0], "h", 1)
    stage.inputs[0][: place + 1] = [*[1.0] * place, 40.0]
    with pytest.raises(BadRequest, match=r"no entry in its table \(40\), whose entries are 0 to 9"):
        stage.run(place + 1)
    stage.inputs[0][:later] = 7.0
    assert stage.run(later).tolist() == [[7.0]] * later


def test_rows_that_no_call_has_written_do_not_make_it_fail(tmp_path):
    """No number can be divided by 0, which the buffers begin with."""
    path = tmp_path / "stage.onnx"
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["x"], ["code"], to=TensorProto.INT64),
            helper.make_node("Mod", ["seven", "code"], ["rest"]),
            helper.make_node("Cast", ["rest"], ["h"], to=TensorProto.FLOAT),
        ],
        "stage",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1])],
        [helper.make_tensor_value_info("h", TensorProto.FLOAT, ["n", 1])],
        [numpy_helper.from_array(np.array([7], np.int64), "seven")],
    )
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]), path)
    stage = RowStage(path, ["x"], [1], "h", 1)
    stage.inputs[0][:1] = 4.0
    assert stage.run(1).tolist() == [[3.0]]


ELEMENTWISE = (
    *("Acos", "Asin", "Atan", "Celu", "Cos", "Elu", "Erf", "Exp", "Gelu", "Log", "Mish", "Reciprocal"),
    *("Selu", "Sigmoid", "Sin", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh"),
)


@pytest.mark.parametrize("width", [1, 5, 8])
@pytest.mark.parametrize("operator", ELEMENTWISE)
def test_a_row_has_the_same_bits_at_every_place_of_a_call(operator, width, tmp_path):
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], ["h"])],
        "stage",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", width])],
        [helper.make_tensor_value_info("h", TensorProto.FLOAT, ["n", width])],
    )
    path = tmp_path / "stage.onnx"
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 22)]), path)
    stage = RowStage(path, ["x"], [width], "h", width)
    rows = np.random.default_rng(1).uniform(-0.99, 0.99, (stage.chunk_rows, width)).astype(np.float32)
    if operator in ("Log", "Sqrt"):
        rows = np.abs(rows)
    stage.inputs[0][:] = rows
    together = stage.run(stage.chunk_rows).copy()
    for first in range(stage.chunk_rows):
        count = 1 + first % 37
        part = rows[first : first + count]
        stage.inputs[0][: len(part)] = part
        found = stage.run(len(part))
        np.testing.assert_array_equal(found, together[first : first + len(part)])
