"""The report of a quantisation, parts of which are stored in the version's model.json."""

from __future__ import annotations

import msgspec

from hopline_compress.quantize.judge import Figures


class LayerReport(msgspec.Struct, frozen=True):
    """The report of one layer.

    Attributes:
        name: "<level>.<node type>/<operator>" or "head/<operator>".
        shape: of its weights.
        form: how its weights are stored: `int8`, `float16`, `bfloat16` or `float32`.
        scheme: for int8: `range` or `equalised`.
        drop: points that it costs alone, in the bucket with the largest cost; None if it was not tried.
        why: the reason, for a layer that stays in float32.
    """

    name: str
    shape: tuple[int, ...]
    form: str
    scheme: str = ""
    drop: float | None = None
    why: str = ""


class Latency(msgspec.Struct, frozen=True):
    """Medians in microseconds of processor time, both forms interleaved.

    Attributes:
        rows: of a call, or nodes of a request.
        before, after: of the original and of the quantised model.
    """

    rows: int
    before: float
    after: float

    @property
    def ratio(self) -> float:
        """After over before."""
        return self.after / self.before if self.before else 1.0


class QuantizeReport(msgspec.Struct, frozen=True):
    """The report of one quantisation.

    Attributes:
        model, version: of the original.
        name, new_version: of the new version; path: its folder.
        to: `int8`, `float16` or `bfloat16`.
        bytes_before, bytes_after: of the ONNX files.
        max_drop: points that were allowed, over all and in each bucket.
        figures: the cost.
        layers: the result for each layer.
        latency_model: the ONNX files alone, one row and 1,024 rows of each stage.
        latency_request: whole requests through the engine, without state caches.
        calibration_nodes, judged_nodes: numbers of nodes.
        labels: True if accuracy was measured against labels.
        weight_bits: of int8 weights; None if there are none.
        vnni: True if this processor multiplies int8 in one instruction; int8 latency depends on it.
        seconds: duration.
    """

    model: str
    version: str
    name: str
    new_version: str
    path: str
    to: str
    bytes_before: int
    bytes_after: int
    max_drop: float
    figures: Figures
    layers: tuple[LayerReport, ...]
    latency_model: tuple[Latency, ...]
    latency_request: tuple[Latency, ...]
    calibration_nodes: int
    judged_nodes: int
    labels: bool
    weight_bits: int | None
    vnni: bool
    seconds: float

    @property
    def size_ratio(self) -> float:
        """Bytes after over bytes before."""
        return self.bytes_after / self.bytes_before
