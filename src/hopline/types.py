"""The values that cross module boundaries. Imports nothing of Hopline.

Ids come in three kinds, always qualified: `external_ids` are the caller's (integers or strings),
`global_ids` are row numbers of a node type in a snapshot, `local_ids` are positions in a block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

IdArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]
AnyArray = NDArray[Any]

#: What reading JSON or MessagePack may raise: of invalid UTF-8, and of what is nested too deeply, msgspec
#: raises Python's own errors.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

ExternalId = int | str
ExternalIds = Sequence[int] | Sequence[str] | IdArray

#: What a request may ask for. `score` is the model's own default (probability of the positive
#: class, class probabilities, regression value or link probability).
OutputName = Literal["embedding", "logits", "probabilities", "label"]
OnMissing = Literal["error", "null"]
Priority = Literal["high", "normal", "low"]


class InlineNode(msgspec.Struct, frozen=True, gc=False):
    """A node that the graph does not have, described by the request itself.

    A msgspec struct, as `ScoreRequest` is: thousands may be made for one request.

    Attributes:
        features: float [dim], the node's feature row.
        neighbors: edge type key -> external ids of its in-neighbours (known nodes, or ids of other
            inline nodes of the same request). The edge type may be left as "" where the node type
            has exactly one incoming edge type.
        id: the caller's name for it; needed only where another inline node refers to it.
        edge_attr: edge type key -> float [n_neighbors, d_e], where the model reads edge attributes.
        edge_weight: edge type key -> float [n_neighbors], where the model reads edge weights.
    """

    features: Sequence[float] | FloatArray
    neighbors: Mapping[str, ExternalIds] = {}
    id: ExternalId | None = None
    edge_attr: Mapping[str, Any] = {}
    edge_weight: Mapping[str, Any] = {}


class ScoreRequest(msgspec.Struct, frozen=True, gc=False):
    """One scoring request, from any transport.

    A msgspec struct, since one is made for each request: 0.5 µs where a frozen dataclass takes 3.

    Exactly one of these is asked for: `nodes` and/or `inline` (node models), `pairs` (link models) or
    `columns` (tabular models); a pipeline may take nodes and columns together. Answer rows are in request
    order: nodes first, then inline nodes.

    Attributes:
        model: model name.
        nodes: external ids, list[int], list[str] or int64 [n]; duplicates allowed.
        inline: nodes that the graph does not have.
        pairs: (source ids, destination ids) of equal length, for link scores.
        columns: column name -> values, one for each row [n], of equal length; for tabular models.
        version: a version of the model; None lets the rollout choose.
        outputs: what to answer; empty means the model's default outputs.
        as_of: only edges with time <= as_of count: an integer in the unit of the graph's edge times, or a
            moment (UTC where it names no time zone).
        on_missing: "error" fails the request naming all unknown ids; "null" answers null for them.
        deadline: absolute time on `time.monotonic()`'s clock, seconds; None means the server's
            default.
        request_id: for logs and traces.
        degraded: "allow" takes an answer that used a fallback (`engine/fallbacks.py`), "refuse" would
            rather have Unavailable.
        attributes: name -> string, number or truth value: what routing rules may look at.
        key: requests of one key get the same version in an A/B test; "" draws by chance.
        priority: in a queue, "high" goes before "normal", and "low" is refused first.
        client: the authenticated caller; "" where authentication is off.
        tags: labels of the caller's own, which the prediction log keeps.
        traceparent: W3C trace context that the request belongs to; "" for none.
        is_copy: a copy of the real request, to compare versions; no caller gets its answer.
    """

    model: str
    nodes: ExternalIds = ()
    inline: Sequence[InlineNode] = ()
    pairs: tuple[ExternalIds, ExternalIds] | None = None
    version: str | None = None
    outputs: tuple[str, ...] = ()
    as_of: int | datetime | None = None
    on_missing: OnMissing = "error"
    deadline: float | None = None
    request_id: str = ""
    degraded: Literal["allow", "refuse"] = "allow"
    columns: Mapping[str, Any] | None = None
    attributes: Mapping[str, Any] | None = None
    key: str = ""
    priority: Priority = "normal"
    client: str = ""
    traceparent: str = ""
    is_copy: bool = False
    tags: tuple[str, ...] = ()


class ScoreResult(msgspec.Struct, frozen=True, gc=False):
    """The answer to one request.

    Attributes:
        model, version: which model version answered.
        graph_version: id of the snapshot it was computed on.
        outputs: output name -> array with one row for each requested item, in request order
            (embedding float32 [n, d]; logits float32 [n, c]; probabilities float32 [n, c] or [n];
            label int64 [n]).
        missing: bool [n], rows that are null because the node is unknown; None when none is.
        degraded: fallbacks that the answer used; empty at full quality.
        timings_ms: stage -> milliseconds ("queue", "compute", ...); of a pipeline, step -> milliseconds.
        parts: of a pipeline, step -> "model/version" that answered it; empty otherwise.
        graph_through_ms: on a live graph, everything that happened until then is in the answer, ms since
            1970; 0 on a snapshot.
    """

    model: str
    version: str
    graph_version: str
    outputs: Mapping[str, AnyArray]
    missing: NDArray[np.bool_] | None = None
    degraded: tuple[str, ...] = ()
    timings_ms: Mapping[str, float] = {}
    parts: Mapping[str, str] = {}
    graph_through_ms: int = 0

    def graph_age_ms(self, now_s: float) -> int:
        """How long ago the graph of the answer had everything that had happened, ms.

        Args:
            now_s: the time, seconds since 1970.
        """
        return max(0, int(now_s * 1e3) - self.graph_through_ms)


#: Takes the outcome of a request: a `ScoreResult`, or a `HoplineError` in its place.
Deliver: TypeAlias = Callable[[Any], object]


class Ticket(Protocol):
    """A request that was handed in."""

    def cancel(self) -> object:
        """Withdraw it: its outcome is not delivered, and not computed where that can be spared."""
        ...


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A named tensor of a model's interface, in Open Inference Protocol terms.

    Attributes:
        datatype: OIP name: INT64, BYTES, FP32.
        shape: -1 where it varies.
        optional: may be left out of a request.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a transport tells about one model version.

    Attributes:
        versions: all versions of the model that can be asked for.
        version: the one described.
        state: "READY", "LOADING", "UNAVAILABLE".
        reason: why it is not ready, else "".
        kind: "node" (takes `node_ids`), "link" (takes `src_ids` and `dst_ids`), "tabular" (takes columns)
            or "pipeline" (takes what its steps read).
        id_kind: "int" or "string": what external ids of the model's node type are; "none" where it reads
            no graph.
        inputs, outputs: the OIP interface.
        default_outputs: what an empty `ScoreRequest.outputs` means.
        graph_version: snapshot id served.
        properties: anything else worth showing (task, fanouts, classes, parity …), JSON-able.
    """

    name: str
    versions: tuple[str, ...]
    version: str
    state: str
    reason: str
    kind: Literal["node", "link", "tabular", "pipeline"]
    id_kind: Literal["int", "string", "none"]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    default_outputs: tuple[str, ...]
    graph_version: str
    properties: Mapping[str, Any] = field(default_factory=dict)


#: Called with a stage's label and the part of it that is done, 0 to 1.
Progress: TypeAlias = Callable[[str, float], None]


def silent(stage: str, done: float) -> None:
    """A `Progress` that shows nothing."""
