"""The operators of a model that can be narrowed: products of rows with constant weights.

Depends on ONNX files, not on graphs. A *layer* is one such operator, named `<level>.<node
type>/<operator>`, or `head/<operator>`: a stage may hold several, one of which may lose accuracy while the
others do not.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import numpy_helper

from hopline.artifact import ModelSpec
from hopline.errors import PackagingError
from hopline.runtimes.ort import ort
from hopline.types import AnyArray

#: Weights of an operator below which its scales and extra operators cost more than narrow weights save.
LEAST_WEIGHTS = 1024

PRODUCTS = ("MatMul", "Gemm")


@dataclass(frozen=True, slots=True)
class File:
    """One ONNX file of a model.

    Attributes:
        name: "<level>.<node type>", or "head".
        path: inside the artifact.
        level, node_type: of the stage; level -1 and the head's node type for the head.
        output: name of the file's output.
    """

    name: str
    path: str
    level: int
    node_type: str
    output: str = "h"


@dataclass(frozen=True, slots=True)
class Layer:
    """One product with constant weights.

    Attributes:
        name: "<file>/<operator>".
        file: name of its file.
        operator: name of the node in the prepared file.
        weight: name of its weights in that file.
        shape: of the weights.
    """

    name: str
    file: str
    operator: str
    weight: str
    shape: tuple[int, ...]


def files_of(spec: ModelSpec) -> list[File]:
    """The files of a model, lowest level first, the head last."""
    found = [
        File(f"{number}.{node_type}{part}", path, number, node_type)
        for number, stages in enumerate(spec.levels)
        for node_type, stage in stages.items()
        for part, path in ((".query", stage.query), ("", stage.file))
        if path
    ]
    if spec.head.file is not None:
        found.append(File("head", spec.head.file, -1, spec.head.node_type, "logits"))
    return found


def prepare(path: Path) -> onnx.ModelProto:
    """Load a file as ONNX Runtime would run it: constants folded, operators merged, nodes named.

    Raises: PackagingError: the file has narrow weights already.
    """
    narrow = narrowed(onnx.load(path))
    if narrow:
        raise PackagingError(
            f"{path} is quantised already ({narrow}); quantise the float32 version that it was made from"
        )
    options = ort.SessionOptions()
    # Higher levels write operators that only one processor or provider has.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory(prefix="hopline-quantize-") as folder:
        options.optimized_model_filepath = str(Path(folder) / "prepared.onnx")
        ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        model = onnx.load(options.optimized_model_filepath)
    taken = {node.name for node in model.graph.node}
    for number, node in enumerate(model.graph.node):
        if not node.name:
            node.name = f"{node.op_type.lower()}_{number}"
            while node.name in taken:
                node.name += "_"
            taken.add(node.name)
    return model


def narrowed(model: onnx.ModelProto) -> str:
    """Narrow weights or operators of a file, in words; "" if there are none."""
    for node in model.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear", "QGemm", "QLinearMatMul"):
            return f"it has {node.op_type}"
    narrow = {
        onnx.TensorProto.FLOAT16: "float16",
        onnx.TensorProto.BFLOAT16: "bfloat16",
        onnx.TensorProto.INT8: "int8",
        onnx.TensorProto.UINT8: "int8",
    }
    for tensor in model.graph.initializer:
        if tensor.data_type in narrow:
            return f"{narrow[tensor.data_type]} weights {tensor.name}"
    return ""


def layers_in(file: str, model: onnx.ModelProto) -> Iterator[Layer]:
    """The layers of a prepared file, in file order."""
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type not in PRODUCTS or node.input[1] not in weights or node.input[0] in weights:
            continue
        tensor = weights[node.input[1]]
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) == 2:
            yield Layer(f"{file}/{node.name}", file, node.name, tensor.name, tuple(tensor.dims))


def weights_of(model: onnx.ModelProto, name: str) -> AnyArray:
    """A constant of a file."""
    found: AnyArray = numpy_helper.to_array(next(t for t in model.graph.initializer if t.name == name))
    return found
