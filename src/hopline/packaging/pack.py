"""Merges the Gemms of a row stage: sum_k x_k W_k becomes [x_1 | x_2 | …] [W_1; W_2; …].

A call of ONNX Runtime costs about 2 µs for each operator, which is most of a single request; one Gemm
over adjacent inputs also does the same flops in fewer passes (log/).
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from hopline.artifact import Stage

_ROW_MATRICES = frozenset({"self", "features", "reduce"})


def pack(folder: Path, stage: Stage) -> Stage:
    """Rewrite a stage's file with one input where its inputs only meet in a sum of Gemms.

    Args:
        folder: the artifact, which holds `stage.file`.

    Returns:
        the stage, with `packed` set where the file was rewritten.
    """
    if stage.file is None or len(stage.inputs) < 2:
        return stage
    if any(entry.kind not in _ROW_MATRICES for entry in stage.inputs):
        return stage
    path = folder / stage.file
    model = onnx.load(path)
    merged = _merge(model.graph, [entry.name for entry in stage.inputs])
    if not merged:
        return stage
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return msgspec.structs.replace(stage, packed=True)


def _merge(graph: onnx.GraphProto, names: list[str]) -> bool:
    """Rewrite the graph in place; False where it has another form."""
    weights = {tensor.name: tensor for tensor in graph.initializer}
    consumers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            consumers.setdefault(name, []).append(node)
    leaves = []
    blocks: list[NDArray[np.float32]] = []
    biases: list[NDArray[np.float32]] = []
    for name in names:
        users = consumers.get(name, [])
        found = _linear(users[0], name, weights) if len(users) == 1 else None
        if found is None:
            return False
        blocks.append(found[0])
        if found[1] is not None:
            biases.append(found[1])
        leaves.append(users[0])
    root, adds = _sum_of({leaf.output[0] for leaf in leaves}, consumers)
    if root is None or len({block.shape[1] for block in blocks}) != 1:
        return False
    bias = np.asarray(np.sum(biases, axis=0, dtype=np.float32)) if biases else None
    _replace(graph, names, leaves + adds, root, np.concatenate(blocks), bias)
    return True


def _linear(
    node: onnx.NodeProto, data: str, weights: dict[str, onnx.TensorProto]
) -> tuple[NDArray[np.float32], NDArray[np.float32] | None] | None:
    """(weight [in, out], bias [out] or None) of a Gemm or MatMul of `data` by a constant."""
    if len(node.input) < 2 or node.input[0] != data or node.input[1] not in weights:
        return None
    weight = numpy_helper.to_array(weights[node.input[1]])
    if weight.ndim != 2:
        return None
    if node.op_type == "MatMul":
        return weight, None
    if node.op_type != "Gemm":
        return None
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if attributes.get("alpha", 1.0) != 1.0 or attributes.get("transA", 0):
        return None
    if attributes.get("transB", 0):
        weight = weight.T
    bias = None
    if len(node.input) > 2 and node.input[2]:
        if node.input[2] not in weights or attributes.get("beta", 1.0) != 1.0:
            return None
        bias = numpy_helper.to_array(weights[node.input[2]])
        if bias.shape != (weight.shape[1],):
            return None
    return weight, bias


def _sum_of(
    terms: set[str], consumers: dict[str, list[onnx.NodeProto]]
) -> tuple[str | None, list[onnx.NodeProto]]:
    """The value that is the sum of all terms and of nothing else, and the Add nodes below it."""
    adds: list[onnx.NodeProto] = []
    open_terms = set(terms)
    while len(open_terms) > 1:
        for term in sorted(open_terms):
            users = consumers.get(term, [])
            if len(users) == 1 and users[0].op_type == "Add" and set(users[0].input) <= open_terms:
                node = users[0]
                if any(len(consumers.get(name, [])) != 1 for name in node.input):
                    return None, []
                adds.append(node)
                open_terms -= set(node.input)
                open_terms.add(node.output[0])
                break
        else:
            return None, []
    return open_terms.pop(), adds


def _replace(
    graph: onnx.GraphProto,
    names: list[str],
    old: list[onnx.NodeProto],
    root: str,
    weight: NDArray[np.float32],
    bias: NDArray[np.float32] | None,
) -> None:
    gone = {id(node) for node in old}
    operands = ["x", "packed.weight"] + ([] if bias is None else ["packed.bias"])
    # transB with [out, in] is the layout that ONNX Runtime packs once, when it loads the model
    gemm = helper.make_node("Gemm", operands, [root], name="packed", transB=1)
    kept = [node for node in graph.node if id(node) not in gone]
    del graph.node[:]
    graph.node.extend([gemm, *kept])
    used = {name for node in graph.node for name in node.input}
    tensors = [tensor for tensor in graph.initializer if tensor.name in used]
    tensors.append(numpy_helper.from_array(np.ascontiguousarray(weight.T), "packed.weight"))
    if bias is not None:
        tensors.append(numpy_helper.from_array(bias, "packed.bias"))
    del graph.initializer[:]
    graph.initializer.extend(tensors)
    inputs = [value for value in graph.input if value.name not in names]
    del graph.input[:]
    graph.input.append(helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", weight.shape[0]]))
    graph.input.extend(inputs)
    del graph.value_info[:]
