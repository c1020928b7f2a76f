"""Merges the Gemms of a row stage: sum_k x_k W_k becomes [x_1 | x_2 | …] [W_1; W_2; …].

A call of ONNX Runtime costs about 2 µs for each operator, which is most of a single request; one Gemm
over adjacent inputs also does the same flops in fewer passes (log/).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from hopline.artifact import StageInput
from hopline.packaging.settled import replace

_ROW_MATRICES = frozenset({"self", "features", "reduce"})
_Matrix = NDArray[np.float32]


def add_biases(graph: ir.Graph) -> None:
    """Make a constant that is added to a Gemm its bias: one operator less."""
    for add in [node for node in graph if node.op_type == "Add"]:
        pairs: Any = (add.inputs, add.inputs[::-1])
        for value, other in pairs:
            gemm, bias = value.producer(), ir.convenience.get_const_tensor(other)
            is_gemm = gemm is not None and gemm.op_type == "Gemm" and len(gemm.inputs) == 2
            if is_gemm and len(value.uses()) == 1 and bias is not None and len(bias.shape) == 1:
                tape = ir.tape.Tape()
                replace(add, tape, tape.op("Gemm", [*gemm.inputs, other], dict(gemm.attributes)))
                graph.remove(gemm, safe=True)
                break


def pack(graph: ir.Graph, inputs: Sequence[StageInput]) -> bool:
    """Give a stage's graph one input `x` where its inputs only meet in a sum of Gemms.

    Returns: True if it has one now.
    """
    if len(inputs) < 2 or any(entry.kind not in _ROW_MATRICES for entry in inputs):
        return False
    return _merge(graph, list(graph.inputs))


def _merge(graph: ir.Graph, inputs: list[ir.Value]) -> bool:
    """Rewrite the graph in place; False where it has another form."""
    found = []
    old: list[ir.Node] = []
    for value in inputs:
        users = [node for node, _ in value.uses()]
        linear = _linear(users[0], value) if len(users) == 1 else None
        if linear is None:
            return False
        found.append(linear)
        old.append(users[0])
    blocks = [weight for weight, _ in found]
    biases = [bias for _, bias in found if bias is not None]
    terms = {node.outputs[0] for node in old}
    while len(terms) > 1:
        # A node that adds two terms which nothing else reads.
        once = {term for term in terms if len(term.uses()) == 1}
        adds = [user for term in once for user, _ in term.uses() if user.op_type == "Add"]
        add = next((each for each in adds if once.issuperset(each.inputs) and len(each.inputs) == 2), None)
        if add is None:
            return False
        old.append(add)
        terms = terms - set(add.inputs) | {add.outputs[0]}
    if len({block.shape[1] for block in blocks}) != 1:
        return False
    bias = np.asarray(np.sum(biases, axis=0, dtype=np.float32)) if biases else None
    _replace(graph, old, np.concatenate(blocks), bias)
    return True


def _linear(node: ir.Node, data: ir.Value) -> tuple[_Matrix, _Matrix | None] | None:
    """(weight [in, out], bias [out] or None) of a Gemm or MatMul of `data` by a constant."""
    if node.op_type not in ("MatMul", "Gemm") or node.inputs[0] is not data:
        return None
    constants = (ir.convenience.get_const_tensor(value) for value in node.inputs[1:] if value is not None)
    weight, *rest = (None if each is None else each.numpy() for each in constants)
    if weight is None or weight.ndim != 2:
        return None
    given = node.attributes
    if given.get_float("alpha", 1.0) != 1.0 or given.get_float("beta", 1.0) != 1.0:
        return None
    if given.get_int("transA", 0):
        return None
    weight = weight.T if given.get_int("transB", 0) else weight
    if not rest:
        return weight, None
    return None if rest[0] is None or rest[0].shape != (weight.shape[1],) else (weight, rest[0])


def _replace(graph: ir.Graph, old: list[ir.Node], weight: _Matrix, bias: _Matrix | None) -> None:
    """Put one Gemm into the place of the last of the old nodes, whose result is the sum."""
    shape = ir.Shape(["n", weight.shape[0]])
    x = ir.Value(name="x", shape=shape, type=ir.TensorType(ir.DataType.FLOAT))
    graph.inputs[:] = [x]
    # transB with [out, in] is the layout that ONNX Runtime packs once, when it loads the model
    arrays = {"packed.weight": np.ascontiguousarray(weight.T), "packed.bias": bias}
    operands = [x]
    for name, array in arrays.items():
        if array is not None:
            operands.append(ir.Value(name=name, const_value=ir.tensor(array, name=name)))
            graph.register_initializer(operands[-1])
    tape = ir.tape.Tape()
    replace(old[-1], tape, tape.op("Gemm", operands, {"transB": 1}, name="packed"))
    for node in reversed(old[:-1]):
        graph.remove(node, safe=True)
    for name in [name for name, value in graph.initializers.items() if not value.uses()]:
        del graph.initializers[name]
