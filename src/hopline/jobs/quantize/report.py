"""What a quantisation says when it is done, and what of it goes into the version's model.json."""

from __future__ import annotations

import msgspec

from hopline.jobs.quantize.judge import Figures


class LayerReport(msgspec.Struct, frozen=True):
    """One layer.

    Attributes:
        name: "<level>.<node type>/<operator>" or "head/<operator>".
        shape: of its weights.
        form: how it is kept: `int8`, `float16`, `bfloat16` or `float32`.
        scheme: for int8: `range` or `equalised`.
        drop: points that it costs alone, in the bucket where it costs most; None where it was not tried.
        why: for a layer that stays in float32: why.
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
    """One quantisation.

    Attributes:
        model, version: of the original.
        name, new_version: of what was written; path: its folder.
        to: `int8`, `float16` or `bfloat16`.
        bytes_before, bytes_after: of the ONNX files.
        max_drop: points that were allowed, over all and in each bucket.
        figures: what it costs.
        layers: what became of each.
        latency_model: the ONNX files alone, one row and 1,024 rows of each stage.
        latency_request: whole requests through the engine, without state caches.
        calibration_nodes, judged_nodes: how many.
        labels: whether accuracy was measured against labels.
        weight_bits: of int8 weights; None where there are none.
        vnni: whether this processor multiplies int8 in one instruction; int8 latency depends on it.
        seconds: how long it took.
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
