"""Stores weights as float16 or bfloat16, which are widened when the model is loaded.

ONNX Runtime's CPU kernels multiply in float32, so this saves size on disk and in transfers: the runtime
folds the casts away once, and then runs the same operations as before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from hopline.errors import PackagingError
from hopline.jobs.quantize.operators import Layer

Narrow = Literal["float16", "bfloat16"]


def to_narrow(prepared: onnx.ModelProto, layers: Iterable[Layer], dtype: Narrow) -> onnx.ModelProto:
    """Store the weights of some layers in a narrow type, with a cast before each.

    Args:
        prepared: not changed.

    Raises:
        PackagingError: a weight is beyond the range of float16.
    """
    model = onnx.ModelProto()
    model.CopyFrom(prepared)
    graph = model.graph
    for name in sorted({layer.weight for layer in layers}):
        tensor = next(t for t in graph.initializer if t.name == name)
        weights = numpy_helper.to_array(tensor).astype(np.float32)
        stored = f"{name}.{dtype}"
        narrow = _float16(weights, stored) if dtype == "float16" else _bfloat16(weights, stored)
        graph.initializer.remove(tensor)
        graph.initializer.append(narrow)
        cast = helper.make_node("Cast", [stored], [name], name=f"{stored}.widened", to=TensorProto.FLOAT)
        graph.node.insert(0, cast)
    return model


def _float16(weights: NDArray[np.float32], name: str) -> onnx.TensorProto:
    largest = float(np.abs(weights).max(initial=0.0))
    if largest > float(np.finfo(np.float16).max):
        raise PackagingError(
            f"{name}: a weight of {largest:.3g} is beyond float16's 65504; use bfloat16 or float32"
        )
    return numpy_helper.from_array(weights.astype(np.float16), name)


def _bfloat16(weights: NDArray[np.float32], name: str) -> onnx.TensorProto:
    """The upper half of each float32, rounded to nearest even."""
    bits = np.ascontiguousarray(weights).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return helper.make_tensor(name, TensorProto.BFLOAT16, weights.shape, rounded.tobytes(), raw=True)
