"""Changes operators of an ONNX file whose result ONNX Runtime leaves open, or whose form is not torch's.

- **NaN.** For torch a NaN is the maximum and the minimum of its row, and the largest in sorted order. ONNX
  leaves it open, and ONNX Runtime answers NaN or a number, depending on the place of the NaN. A row can
  get a NaN long after its model was packaged: the logarithm of an amount that is negative for once.
- **Sums of a row.** ONNX Runtime adds four columns at a time, from the first address that is a multiple of
  16 bytes. Unless there are a multiple of four columns, a row's sum depends on its place in the batch.
- **Integers.** ONNX Runtime takes `fmod`, sums and products of int64 in float64, exact to 2^53.
- **Small numbers.** ONNX Runtime rounds Sigmoid, and exp(x) - 1 of Elu, Celu and Selu, to some 1e-7: the
  small ones have no true digit, which a ratio shows.
- **Codes.** torch refuses an index below 0 or beyond the end. ONNX Runtime counts one below 0 from the end.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx_ir as ir

from hopline.errors import NotServable

_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
#: Operators that order their first input -> what has the place of a NaN in that order.
_STAND_INS = {"ArgMax": np.inf, "ArgMin": -np.inf, "TopK": np.inf}
#: Exponential units -> their factors alpha and gamma, if none are given.
_UNITS = {
    "Elu": (1.0, 1.0),
    "Celu": (1.0, 1.0),
    "Selu": (1.67326319217681884765625, 1.05070102214813232421875),
}
#: Where the exporter notes the operator of torch from which a node was made.
_NOTE = "pkg.torch.onnx.fx_node"
#: Columns that are added at a time.
_STEP = 4
#: torch's operators that refuse an index below 0; the ONNX operators that take it as their second input.
_CHECKED = re.compile(
    r"torch\.ops\.aten\.(embedding|embedding_bag|index_select|gather|scatter\w*|one_hot)\."
)
_INDEXED = frozenset({"Gather", "GatherElements", "ScatterElements"})
#: What represents such an index: no array is as long.
_OUTSIDE = 2**31 - 1


def settle(model: ir.Model) -> None:
    """Change the operators of a model that this module names."""
    for node in tuple(model.graph):
        data = node.inputs[0] if node.inputs else None
        if data is not None and data.dtype == ir.DataType.INT64:
            if node.op_type == "Mod" and node.attributes.get_int("fmod", 0) == 1:
                _remainder(node)
            elif node.op_type == "ReduceSum":
                _whole_sum(node, data)
            elif node.op_type == "ReduceProd" and node.inputs[1:] and not _is_truth(data):
                raise NotServable("forward multiplies columns of int64, which rounds; compute with floats")
        if data is None or data.dtype not in _FLOATS:
            continue
        if node.op_type == "Sigmoid" and data.dtype == ir.DataType.FLOAT:
            _sigmoid(node, data)
        elif node.op_type in _UNITS and data.dtype == ir.DataType.FLOAT:
            _unit(node, data)
        elif node.op_type in ("ReduceMax", "ReduceMin"):
            _reduce(node, data)
        elif node.op_type in _STAND_INS:
            _order(node, data)
        elif node.op_type in ("ReduceSum", "ReduceMean"):
            _sum(node, data)


def refuse_codes(model: ir.Model) -> None:
    """Make a model fail for indices below 0 where torch does, and take the types of index that torch takes.

    Args:
        model: as the exporter wrote it, with its notes on the operators of torch.
    """
    for node in tuple(model.graph):
        if node.op_type == "GatherND" and node.inputs[1].dtype == ir.DataType.INT32:  # type: ignore[union-attr]
            tape = ir.tape.Tape()
            _feed(node, 1, tape, tape.op("Cast", [node.inputs[1]], {"to": ir.DataType.INT64}))
        if node.op_type not in _INDEXED or not _CHECKED.search(node.metadata_props.get(_NOTE, "")):
            continue
        index = node.inputs[1]
        if index is None or index.producer() is None or ir.convenience.get_const_tensor(index) is not None:
            continue  # ours, or known while packaging
        tape = ir.tape.Tape()
        wide = tape.op("Cast", [index], {"to": ir.DataType.INT64})
        zero, outside = (_array(tape, np.array(number, np.int64)) for number in (0, _OUTSIDE))
        _feed(node, 1, tape, tape.op("Where", [tape.op("Less", [wide, zero]), outside, wide]))


def _remainder(node: ir.Node) -> None:
    """Of a division toward zero, which is what torch's `%` and `//` are made of."""
    tape = ir.tape.Tape()
    number, divisor = node.inputs
    whole = tape.op("Mul", [tape.op("Div", [number, divisor]), divisor])
    replace(node, tape, tape.op("Sub", [number, whole]))


def _is_truth(data: ir.Value) -> bool:
    """True for truth values as integers."""
    cast = data.producer()
    source = cast.inputs[0] if cast is not None and cast.op_type == "Cast" else None
    return source is not None and source.dtype == ir.DataType.BOOL


def _whole_sum(node: ir.Node, data: ir.Value) -> None:
    """The last of the running sums, which are of integers."""
    given = node.inputs[1] if node.inputs[1:] else None
    axes = None if given is None else ir.convenience.get_const_tensor(given)
    if axes is None or data.shape is None:
        return  # of a shape
    tape, result = ir.tape.Tape(), data
    last = np.array([-1] if node.attributes.get_int("keepdims", 1) else -1)
    for place in sorted(place % len(data.shape) for place in axes.numpy().tolist())[::-1]:
        running = tape.op("CumSum", [result, _array(tape, np.array(place))])
        result = tape.op("Gather", [running, _array(tape, last)], {"axis": place})
    replace(node, tape, result)


def _sigmoid(node: ir.Node, data: ir.Value) -> None:
    """1 / (1 + exp(-x)), as torch computes it."""
    tape = ir.tape.Tape()
    total = tape.op("Add", [tape.op("Exp", [tape.op("Neg", [data])]), _number(tape, data, 1)])
    replace(node, tape, tape.op("Reciprocal", [total]))


def _unit(node: ir.Node, data: ir.Value) -> None:
    """Of x below 0, exp(x) - 1 is 2 t / (1 - t) with t = tanh(x / 2), which has no cancellation."""
    tape = ir.tape.Tape()
    alpha, gamma = map(node.attributes.get_float, ("alpha", "gamma"), _UNITS[node.op_type])
    half = 0.5 / alpha if node.op_type == "Celu" else 0.5
    bent = tape.op("Tanh", [tape.op("Mul", [data, _number(tape, data, half)])])
    rest = tape.op("Sub", [_number(tape, data, 1), bent])
    below = tape.op("Mul", [tape.op("Div", [bent, rest]), _number(tape, data, 2 * alpha * gamma)])
    above = data if gamma == 1 else tape.op("Mul", [data, _number(tape, data, gamma)])
    is_below = tape.op("Less", [data, _number(tape, data, 0)])
    replace(node, tape, tape.op("Where", [is_below, below, above]))


def _reduce(node: ir.Node, data: ir.Value) -> None:
    """The result is NaN where an input is."""
    tape = ir.tape.Tape()
    found = tape.op("Cast", [tape.op("IsNaN", [data])], {"to": ir.DataType.UINT8})
    found = tape.op("ReduceMax", [found, *node.inputs[1:]], dict(node.attributes))
    found = tape.op("Cast", [found], {"to": ir.DataType.BOOL})
    replace(node, tape, tape.op("Where", [found, _number(tape, data, np.nan), node.outputs[0]]))


def _order(node: ir.Node, data: ir.Value) -> None:
    """NaN has its place in the order; values are read from the input, by their index."""
    tape = ir.tape.Tape()
    stand_in = _number(tape, data, _STAND_INS[node.op_type])
    _feed(node, 0, tape, tape.op("Where", [tape.op("IsNaN", [data]), stand_in, data]))
    if node.op_type == "TopK":
        tape = ir.tape.Tape()
        axis = node.attributes.get_int("axis", -1)
        replace(node, tape, tape.op("GatherElements", [data, node.outputs[1]], {"axis": axis}))


def _sum(node: ir.Node, data: ir.Value) -> None:
    """Columns of zeros make each row begin at a multiple of 16 bytes."""
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    tensor = None if axes is None else ir.convenience.get_const_tensor(axes)
    if tensor is None or data.shape is None:
        return
    rank, width = len(data.shape), data.shape[-1]
    if [axis % rank for axis in tensor.numpy().tolist()] != [rank - 1] or not isinstance(width, int):
        return
    missing = -width % _STEP
    if not missing:
        return
    tape = ir.tape.Tape()
    pads = _array(tape, np.array([0] * (2 * rank - 1) + [missing], np.int64))
    result = tape.op("ReduceSum", [tape.op("Pad", [data, pads]), axes], dict(node.attributes))
    if node.op_type == "ReduceMean":
        result = tape.op("Div", [result, _number(tape, data, width)])
    replace(node, tape, result)


def _array(tape: Any, array: Any) -> ir.Value:
    value: ir.Value = tape.op("Constant", [], {"value": ir.tensor(array)})
    return value


def _number(tape: Any, data: ir.Value, number: float) -> ir.Value:
    """A scalar of the type of `data`."""
    return _array(tape, np.array(number, np.float64 if data.dtype == ir.DataType.DOUBLE else np.float32))


def _feed(node: ir.Node, place: int, tape: ir.tape.Tape, value: ir.Value) -> None:
    """Give a node another input, which the nodes of a tape compute."""
    node.replace_input_with(place, value)
    node.graph.insert_before(node, tape.nodes)  # type: ignore[union-attr]


def replace(node: ir.Node, tape: ir.tape.Tape, new: ir.Value) -> None:
    """Use a value of a tape in the place of a node's first output; a node that nothing reads then goes."""
    graph, old = node.graph, node.outputs[0]
    assert isinstance(graph, ir.Graph)
    graph.insert_after(node, tape.nodes)
    new.type, new.shape = old.type, old.shape
    for user, place in tuple(old.uses()):
        if user not in tape.nodes:
            user.replace_input_with(place, new)
    for place, output in enumerate(graph.outputs):
        if output is old:
            new.name, old.name = old.name, new.name
            graph.outputs[place] = new
    if not any(output.uses() for output in node.outputs):
        graph.remove(node, safe=True)
