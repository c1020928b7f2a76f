"""The values that modules pass to each other. Imports nothing of Hopline.

Ids come in three kinds, always qualified: `external_ids` are the caller's (integers or strings),
`global_ids` are row numbers of a node type in a snapshot, `local_ids` are positions in a block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal, Protocol, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

IdArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]
StampArray = NDArray[np.float64]
AnyArray = NDArray[Any]

#: Errors of decoding JSON or MessagePack; msgspec raises Python's own for invalid UTF-8 and deep nesting.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

ExternalId = int | str
ExternalIds = Sequence[int] | Sequence[str] | IdArray
#: An id as JSON has it: of 64 bits.
ContextId: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | str
Cell: TypeAlias = ContextId | float | bool | list[ContextId | float | bool | None] | None

OnMissing = Literal["error", "null"]
Priority = Literal["high", "normal", "low"]
#: Edges that message passing for the pair that is scored does not see.
Excluded = Literal["none", "self", "reverse"]


class InlineNode(msgspec.Struct, frozen=True, gc=False):
    """A node that is not in the graph and is described by the request.

    A msgspec struct like `ScoreRequest`, since one request may contain thousands.

    Attributes:
        features: float [dim], the node's feature row; empty with `columns`.
        neighbors: edge type key -> external ids of its in-neighbours (known nodes, or ids of other
            inline nodes of the same request). The edge type may be left as "" where the node type
            has exactly one incoming edge type.
        id: the caller's name for the node; needed only if another inline node refers to it.
        edge_attr: edge type key -> float [n_neighbors, d_e], where the model reads edge attributes; with
            preprocessing of edges a mapping as `columns` for each neighbour.
        edge_weight: edge type key -> float [n_neighbors], where the model reads edge weights.
        columns: name -> value, for a model with preprocessing: a number, text, boolean, None, list, or time
            as text in ISO 8601 (the client also takes datetimes); None for a model without preprocessing.
    """

    features: Sequence[float] | FloatArray = ()
    neighbors: Mapping[str, ExternalIds] = {}
    id: ExternalId | None = None
    edge_attr: Mapping[str, Any] = {}
    edge_weight: Mapping[str, Any] = {}
    columns: Mapping[str, Any] | None = None


class ContextNode(InlineNode, frozen=True, gc=False, forbid_unknown_fields=True):
    """A node that is not in the graph, which an inline node refers to; no row is answered for it.

    Attributes:
        type: the node type; "" means the one that the model answers.
    """

    type: str = ""
    features: list[float] = []
    neighbors: dict[str, list[ContextId]] = {}  # type: ignore[assignment]
    edge_attr: dict[str, list[list[float] | dict[str, Cell]]] = {}
    edge_weight: dict[str, list[float]] = {}
    columns: dict[str, Cell] | None = None


class EdgeEdit(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """An edge that a request adds or removes.

    Attributes:
        src, dst: external ids; "from" and "to" in JSON.
        type: edge type key; "" means the only one.
        time: of an added edge, in the graph's unit; of a removed one, None removes all of them.
        edge_weight, edge_attr: of an added edge, as of an inline node's.
    """

    src: ContextId = msgspec.field(name="from")
    dst: ContextId = msgspec.field(name="to")
    type: str = ""
    time: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    edge_weight: float | None = None
    edge_attr: list[float] | dict[str, Cell] | None = None


class Edit(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """One edit of the graph that holds for one request; exactly one field is set.

    Attributes:
        set: a known node with another row; its id, type, and all of its features or columns.
    """

    remove_edge: EdgeEdit | None = None
    add_edge: EdgeEdit | None = None
    set: ContextNode | None = None

    def __post_init__(self) -> None:
        if (self.remove_edge, self.add_edge, self.set).count(None) != 2:
            raise ValueError("an edit is one of `remove_edge`, `add_edge` and `set`")


class ScoredEdge(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """An edge that is scored by its ends and its own row, which the graph need not have; or by its id.

    Attributes:
        src, dst: ids of its ends, "from" and "to" in JSON; of `context` or of the graph.
        columns: as of an inline node; attr: float [d_e], for a model without preprocessing of its type.
            Without both, the row is that of the only such edge in the graph.
        id: of an edge of the graph, which has its ends and its row.
    """

    src: ContextId | None = msgspec.field(name="from", default=None)
    dst: ContextId | None = msgspec.field(name="to", default=None)
    columns: dict[str, Cell] | None = None
    attr: list[float] | None = None
    id: ContextId | None = None

    def __post_init__(self) -> None:
        ends = self.src, self.dst
        if None in ends if self.id is None else (*ends, self.columns, self.attr) != (None,) * 4:
            raise ValueError("an edge has `from` and `to`, or only an `id`")


class ScoreRequest(msgspec.Struct, frozen=True, gc=False):
    """One scoring request of any transport.

    A msgspec struct, since one is created for each request: 0.5 µs instead of 3 for a frozen dataclass.

    A request has exactly one of: `nodes` and/or `inline` (node models), `pairs` (link models), `edges`
    (link models that read rows of edges) or `columns` (tabular models). A pipeline may have nodes and
    columns together. Answer rows are in request order: nodes first, then inline nodes.

    Attributes:
        model: model name.
        nodes: external ids, list[int], list[str] or int64 [n]; duplicates allowed.
        inline: nodes that are not in the graph.
        context: further such nodes, of any type, that inline nodes refer to; no row is answered for them.
        node_type: of these nodes, for a model with heads of several node types; "" means its only one.
        pairs: (source ids, destination ids) of equal length, for link scores.
        columns: column name -> values, one per row [n], of equal length; for tabular models.
        version: a version of the model; None lets the rollout choose.
        outputs: which outputs to return; empty means the model's default outputs.
        as_of: only edges with time <= as_of are used: an integer in the unit of the graph's edge times, or
            a datetime (UTC if it has no time zone).
        on_missing: "error" fails the request with a list of all unknown ids; "null" returns null for them.
        deadline: absolute time on `time.monotonic()`'s clock, seconds; None means the server's
            default.
        request_id: for logs and traces.
        degraded: "allow" accepts an answer that used a fallback (`engine/fallbacks.py`), "refuse" raises
            Unavailable instead.
        attributes: name -> string, number or bool, for routing rules.
        key: requests with the same key get the same version in an A/B test; "" chooses at random.
        priority: in a queue, "high" goes before "normal", and "low" is refused first.
        client: name of the authenticated client; "" without authentication.
        tags: the caller's labels, stored in the prediction log.
        min_version: a `graph_version`: the answer must be of that version of the graph or of a later one.
        edits: of the graph, for this request only; "if" in JSON.
        exclude_seed_edges: the edges that are scored, which message passing for their own pair does not
            see: "self" those from source to destination, "reverse" also those back, "none" none; "" as the
            model was packaged.
        traceparent: W3C trace context that the request belongs to; "" without one.
        is_copy: a copy of a real request, to compare versions; no caller gets the answer.
        keep: add inline and context nodes to the live graph, and score them there by their ids.
        edges: edges to score, with their rows.
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
    min_version: str = ""
    context: tuple[ContextNode, ...] = ()
    node_type: str = ""
    keep: bool = False
    edits: tuple[Edit, ...] = ()
    edges: tuple[ScoredEdge, ...] = ()
    exclude_seed_edges: Literal["", Excluded] = ""

    @property
    def reads_present(self) -> bool:
        """True if it is about known nodes of the present graph: rows computed before may answer it."""
        return not (self.inline or self.edits or self.edges or self.context) and self.as_of is None

    @property
    def excludes(self) -> bool:
        """True if message passing for its pairs does not see their own edges."""
        return self.exclude_seed_edges in ("self", "reverse")

    @property
    def names_edges(self) -> bool:
        """True if it has edges by their ids."""
        return any(edge.id is not None for edge in self.edges)

    @property
    def ends(self) -> tuple[ExternalIds, ExternalIds] | None:
        """Ids of the sources and destinations of pairs or edges; None if it has neither.

        Those of an edge by its id are None.
        """
        edges: Any = self.edges
        return ([each.src for each in edges], [each.dst for each in edges]) if edges else self.pairs


class ScoreResult(msgspec.Struct, frozen=True, gc=False):
    """The answer to one request.

    Attributes:
        model, version: which model version answered.
        graph_version: id of the snapshot that it was computed on.
        outputs: output name -> array with one row for each requested item, in request order
            (embedding float32 [n, d]; logits float32 [n, c]; probabilities float32 [n, c] or [n];
            label int64 [n]).
        missing: bool [n], rows that are null because the node is unknown; None if all are known.
        degraded: fallbacks that were used; empty at full quality.
        timings_ms: stage -> milliseconds ("queue", "compute", ...); for a pipeline, step -> milliseconds.
        parts: for a pipeline, step -> "model/version" that answered; empty otherwise.
        graph_through_ms: on a live graph, the answer includes all events until this time, ms since 1970; 0
            on a snapshot.
        features_age_ms: where features are in a feature store, the age of the oldest row that the answer
            read, or that another answer of its batch did; -1 elsewhere.
        features_until: time.monotonic() from which on one of these rows is older than its time to live, and
            the answer may not be given any more; inf without a feature store.
        as_of: of a model that reads the time of the question, that time in the unit of the graph's times:
            that of the request, else the latest one of the graph.
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
    features_age_ms: int = -1
    features_until: float = math.inf
    as_of: int | None = None

    def graph_age_ms(self, now_s: float) -> int:
        """Return the age of the graph state that the answer was computed on, ms.

        Args:
            now_s: the time, seconds since 1970.
        """
        return max(0, int(now_s * 1e3) - self.graph_through_ms)


class TextPart(Protocol):
    """A part of a text that a model generates."""

    @property
    def text(self) -> str:
        """New text; may be empty."""


#: A callback for parts of an outcome as they come, on the event loop: the row, and a part that its model
#: defines (for text, a `TextPart`). The outcome follows as always.
OnPart: TypeAlias = Callable[[int, Any], object]

#: A callback for the outcome of a request: a `ScoreResult` or a `HoplineError`.
Deliver: TypeAlias = Callable[[Any], object]


class Ticket(Protocol):
    """A request that was submitted."""

    def cancel(self) -> object:
        """Withdraw the request: its outcome is not delivered, and not computed if that can be avoided."""
        ...


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A named tensor of a model's interface, in Open Inference Protocol terms.

    Attributes:
        datatype: OIP name: INT64, BYTES, FP32.
        shape: -1 for a variable dimension.
        optional: may be left out of a request.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The description of one model version that transports return.

    Attributes:
        versions: all versions of the model that can be requested.
        version: the described version.
        state: "READY", "LOADING" or "UNAVAILABLE".
        reason: why it is not ready, else "".
        kind: "node" (reads `node_ids`), "link" (reads `src_ids` and `dst_ids`), "tabular" (reads columns),
            "generative" (reads columns: prompts) or "pipeline" (reads what its steps read); kinds of other
            packages have the name of their entry point.
        id_kind: "int" or "string", the type of external ids of the model's node type; "none" if the model
            reads no graph.
        inputs, outputs: the OIP interface.
        default_outputs: the outputs for an empty `ScoreRequest.outputs`.
        graph_version: snapshot id served.
        properties: other properties (task, fanouts, classes, parity …), JSON-able.
    """

    name: str
    versions: tuple[str, ...]
    version: str
    state: str
    reason: str
    kind: str
    id_kind: Literal["int", "string", "none"]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    default_outputs: tuple[str, ...]
    graph_version: str
    properties: Mapping[str, Any] = field(default_factory=dict)


#: A callback with a stage's label and the finished part of the stage, 0 to 1.
Progress: TypeAlias = Callable[[str, float], None]


def silent(stage: str, done: float) -> None:
    """Ignore progress: a `Progress` that shows nothing."""


class RefusedEvent(msgspec.Struct, frozen=True):
    """An event that was not applied.

    Attributes:
        index: position in the request.
        id: its id, "" without one.
        code: for example "unknown_node"; docs/guides/live.md lists all codes.
        reason: what was wrong and what would be right.
    """

    index: int
    code: str
    reason: str
    id: str = ""


class GraphState(msgspec.Struct, frozen=True):
    """The state of a live graph.

    Attributes:
        graph_version, sequence: the newest version.
        age_ms: age of the graph state, ms; None until the writer has answered for the first time.
        nodes: node type -> number. edges: edge type -> number.
        writer: "up", or "away" if the worker that answered has no connection to the writer.
    """

    graph_version: str
    sequence: int
    age_ms: int | None
    nodes: dict[str, int]
    edges: dict[str, int]
    writer: Literal["up", "away"]
