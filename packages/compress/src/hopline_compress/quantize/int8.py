"""Converts weights and products to int8: static scales, by ONNX Runtime's quantiser, one file at a time.

Scales of activations are fixed at calibration. Dynamic ones, taken from each call's rows, would let a
row's answer depend on its batch-mates, which the engine rules out (docs/architecture.md).

Of the forms that the quantiser writes, float results (no scale of the output) are best: measured on
AVX-512 VNNI for 1,534 x 256, 0.075 ms for one row against 0.178 in float32 and 0.65 for 256 rows against
6.0; scaling the output as well took as long for 256 rows, and made the error 1.7 times as large.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from hopline.runtimes.ort import ort  # before anything imports onnxruntime

# isort: split
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from hopline_compress.quantize.operators import PRODUCTS, weights_of
from hopline_compress.quantize.record import Feeds

#: `range`: one scale for all columns of a layer's input, from its smallest to its largest value.
#: `equalised`: columns are first divided by factors that make them and their weights alike in size
#: (SmoothQuant, arXiv 2211.10438): sums over the long lists of hubs do not reduce the resolution of others.
Scheme = Literal["range", "equalised"]
SCHEMES: tuple[Scheme, ...] = ("range", "equalised")

#: Migration strength of SmoothQuant.
_ALPHA = 0.5


def to_int8(
    prepared: onnx.ModelProto, calls: list[Feeds], schemes: Mapping[str, Scheme], weight_bits: int = 8
) -> onnx.ModelProto:
    """Quantise some operators of a file: weights int8 by output column, inputs uint8 with a fixed scale.

    Args:
        prepared: from `operators.prepare`; not changed.
        calls: recorded inputs of the file.
        schemes: operator -> scheme; the others stay in float32.
        weight_bits: 8, or 7: weights up to 64, whose sums are exact on every processor; see
            `runtimes.processor.adds_in_16_bits`.
    """
    model = onnx.ModelProto()
    model.CopyFrom(prepared)
    equalised = [name for name, scheme in schemes.items() if scheme == "equalised"]
    if equalised:
        _equalise(model, calls, equalised)
    with tempfile.TemporaryDirectory(prefix="hopline-quantize-") as name, _quiet():
        folder = Path(name)
        onnx.save(model, folder / "float.onnx")
        quantize_static(
            folder / "float.onnx",
            folder / "int8.onnx",
            _Calls(calls),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(PRODUCTS),
            nodes_to_quantize=list(schemes),
            per_channel=True,
            reduce_range=weight_bits == 7,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            extra_options={"OpTypesToExcludeOutputQuantization": list(PRODUCTS)},
        )
        found = onnx.load(folder / "int8.onnx")
    _drop_unused(found.graph)
    return found


class _Calls(CalibrationDataReader):  # type: ignore[misc]
    """Recorded calls as a reader for the quantiser."""

    def __init__(self, calls: list[Feeds]) -> None:
        self._left = iter(calls)

    def get_next(self) -> Feeds | None:
        """The next call; None after the last."""
        return next(self._left, None)


def _equalise(model: onnx.ModelProto, calls: list[Feeds], operators: list[str]) -> None:
    """Divide the inputs of operators by column, and multiply their weights by the same factors."""
    graph = model.graph
    nodes = {node.name: node for node in graph.node}
    largest = _largest(model, calls, sorted({nodes[name].input[0] for name in operators}))
    for name in operators:
        node = nodes[name]
        columns = largest[node.input[0]]
        weight = weights_of(model, node.input[1])
        transposed = node.op_type == "Gemm" and any(a.name == "transB" and a.i for a in node.attribute)
        rows = np.abs(weight).max(axis=0 if transposed else 1)
        # A column without values in calibration is assumed to be as large as the others.
        seen = columns[columns > 0]
        columns = np.where(columns > 0, columns, np.median(seen) if seen.size else 1.0)
        scale = np.sqrt(columns) ** (2 * _ALPHA) / np.maximum(rows, 1e-6) ** (1 - _ALPHA)
        scale = np.where(rows > 0, scale, columns).astype(np.float32)
        moved = weight * (scale[None, :] if transposed else scale[:, None])
        divisor = numpy_helper.from_array((1 / scale).astype(np.float32), f"{name}.columns")
        weights = numpy_helper.from_array(np.ascontiguousarray(moved, np.float32), f"{name}.equalised")
        graph.initializer.extend([divisor, weights])
        divided = f"{name}.divided"
        multiply = helper.make_node("Mul", [node.input[0], divisor.name], [divided], name=divided)
        graph.node.insert(next(k for k, each in enumerate(graph.node) if each.name == name), multiply)
        node.input[0], node.input[1] = divided, weights.name
    _drop_unused(graph)


def _largest(
    model: onnx.ModelProto, calls: list[Feeds], values: list[str]
) -> dict[str, NDArray[np.float64]]:
    """The largest absolute value of each column of some values of a file, over all calls."""
    extended = onnx.ModelProto()
    extended.CopyFrom(model)
    outputs = {entry.name for entry in extended.graph.output}
    inputs = {entry.name for entry in extended.graph.input}
    inner = [name for name in values if name not in inputs]
    for name in inner:
        if name not in outputs:
            extended.graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = None
    if inner:
        session = ort.InferenceSession(
            extended.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    found: dict[str, NDArray[np.float64]] = {}
    for feeds in calls:
        seen = dict(feeds)
        if session is not None:
            seen |= dict(zip(inner, session.run(inner, feeds), strict=True))
        for name in values:
            rows = np.abs(seen[name].reshape(-1, seen[name].shape[-1])).max(axis=0, initial=0.0)
            found[name] = np.maximum(found[name], rows) if name in found else rows.astype(np.float64)
    return found


def _drop_unused(graph: onnx.GraphProto) -> None:
    """Remove unused constants."""
    used = {name for node in graph.node for name in node.input} | {entry.name for entry in graph.output}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    del graph.value_info[:]


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the quantiser's advice, which it logs to the root logger."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
