"""Writes forms of a model: the original's folder with some layers narrowed."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from hopline.artifact import ModelSpec
from hopline.errors import PackagingError
from hopline_compress.quantize.int8 import SCHEMES, Scheme, to_int8
from hopline_compress.quantize.operators import File, Layer, files_of, layers_in, prepare
from hopline_compress.quantize.record import Feeds

Narrow = Literal["float16", "bfloat16"]


def to_narrow(prepared: onnx.ModelProto, layers: Iterable[Layer], dtype: Narrow) -> onnx.ModelProto:
    """Store the weights of some layers in a narrow type, with a cast before each.

    Args:
        prepared: not changed.

    Raises: PackagingError: a weight is beyond the range of float16.
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


#: How the weights of one layer are stored.
Form = Literal["range", "equalised", "float16", "bfloat16"]


class Forms:
    """The forms that a model can take.

    Args:
        folder, spec: the original.
        weight_bits: of int8 weights.

    Attributes:
        files: its ONNX files.
        layers: their layers that can be narrowed, in the order of the files.
        calls: file -> its recorded inputs; set before int8 forms are written.

    Raises: PackagingError: the model is quantised already.
    """

    def __init__(self, folder: Path, spec: ModelSpec, weight_bits: int = 8) -> None:
        self._folder = folder
        self._weight_bits = weight_bits
        self.spec = spec
        self.files: list[File] = files_of(spec)
        self._prepared = {file.name: prepare(folder / file.path) for file in self.files}
        self.layers: list[Layer] = [
            layer for file in self.files for layer in layers_in(file.name, self._prepared[file.name])
        ]
        self.calls: dict[str, list[Feeds]] = {}

    def write(self, target: Path, forms: Mapping[str, Form]) -> Path:
        """Write the model with these layers narrowed; other files are copied byte for byte.

        Args:
            target: the folder, created. forms: layer name -> form.
        """
        for file in self.files:
            path = target / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            own = [layer for layer in self.layers if layer.file == file.name and layer.name in forms]
            if own:
                onnx.save(self._narrowed(file, own, forms), path)
            else:
                shutil.copyfile(self._folder / file.path, path)
        return target

    def _narrowed(self, file: File, layers: list[Layer], forms: Mapping[str, Form]) -> onnx.ModelProto:
        model = self._prepared[file.name]
        for dtype in ("float16", "bfloat16"):
            chosen = [layer for layer in layers if forms[layer.name] == dtype]
            if chosen:
                model = to_narrow(model, chosen, "float16" if dtype == "float16" else "bfloat16")
        schemes: dict[str, Scheme] = {
            layer.operator: scheme for layer in layers for scheme in SCHEMES if forms[layer.name] == scheme
        }
        if not schemes:
            return model
        return to_int8(model, self.calls[file.name], schemes, self._weight_bits)

    def num_bytes(self, folder: Path) -> int:
        """Bytes of the ONNX files of a form."""
        return sum((folder / file.path).stat().st_size for file in self.files)
