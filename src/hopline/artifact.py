"""The packaged model on disk: `<repository>/<model>/<version>/model.json` and its files.

Knows the format, nothing of torch or ONNX: written by `packaging`, read by `engine` and `runtimes`. Each
kind of model has a struct for its model.json; here is that of graph models (`ModelSpec`).
It is long because it has the whole format.

A graph model has `num_layers` message-passing layers. *Level* 0 is the state before the first layer,
level l the state after layer l. Each level has one `Stage` for each node type with a state at that level.
A stage is one ONNX file over rows, with the inputs that it declares; a stage without a file (only at
level 0) is the raw feature row.

Input kinds of a stage at level l (n = destination rows, float32 unless stated):

    self         [n, b-a]     columns [a, b) of the destination's own state at level l-1
    features     [n, b-a]     columns [a, b) of the destination's raw features (any level)
    structure    [n, b-a]     columns of the destination's row in the stage's structure file: computed
                              offline from the graph, looked up by node id (`engine/structure.py`)
    reduce       [n, b-a]     columns of the sampled in-neighbours' states at level l-1, reduced
                              (`reduce` below); 0 where there is no neighbour
    attend       [n, w]       attention over the sampled in-neighbours (`Attention`); 0 where there is none
    sources      [e, b-a]     states at level l-1 of the source of each sampled in-edge
    owners       int64 [e]    row of each edge's destination; n-1 for edges that fill up the call
    edge_attr    [e, d_e]     attributes of the sampled edges
    edge_weight  [e]          weights of the sampled edges (1 if the graph has no weights)
    is_self      bool [e]     true where the source is the destination itself (a self-loop)
    nodes        int64 [n]    row of each destination; in rows that fill up the call, that of the last one
    degree       [n]          number of in-edges of the destination in the graph, before sampling
    count        [n]          number of sampled in-edges
    seed_time    int64 [1]    time of the question: the request's cut, else the graph's latest time
    edge_time    int64 [e]    times of the sampled edges

`sources`, `owners`, `edge_*`, `is_self` of one edge type list the same edges, by destination. What fills up
a call (at least one row) repeats the last row or edge. Formulas of reductions and attention are in
docs/architecture.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec

from hopline.doors import brought
from hopline.errors import ArtifactCorrupted, ArtifactError, PackagingError
from hopline.types import UNREADABLE

#: The newest format that is read. A graph model is written in the oldest format that has all it needs.
FORMAT_VERSION = 10
#: Fields of model.json on which no answer depends.
NOT_CONTENT = ("name", "version", "parity", "producer", "digest")
#: The first formats with the input kind `attend`, named outputs, preprocessing, heads of several node types
#: or later nodes' rows that are not zeros, preprocessing of edges, rows of edges (blocks before), heads of
#: edges, excluded edges, and times as inputs.
ATTENTION_FORMAT, OUTPUTS_FORMAT, ENCODER_FORMAT, HEADS_FORMAT, EDGE_ENCODER_FORMAT = 2, 3, 4, 5, 6
EDGE_ROWS_FORMAT, EDGE_HEAD_FORMAT, EXCLUDED_FORMAT, TIMES_FORMAT = 7, 8, 9, 10
#: Kinds of stage inputs that are times.
TIMES = frozenset({"seed_time", "edge_time"})

#: Inputs in requests to graph models; columns of tabular models must have other names.
GRAPH_INPUTS = ("node_ids", "src_ids", "dst_ids", "features", "neighbors", "neighbor_counts", "as_of")

Reduce = Literal["mean", "sum", "max", "gcn", "gcn_noself"]
InputKind = Literal[
    "self", "features", "structure", "reduce", "attend", "sources", "owners", "nodes", "edge_attr",
    "edge_weight", "is_self", "degree", "count", "seed_time", "edge_time",
]  # fmt: skip


class Attention(msgspec.Struct, frozen=True, omit_defaults=True):
    """Computation of an input of kind `attend` (see the module docstring).

    Attributes:
        heads, channels: H and C.
        shared: all heads read the same columns; not for `gatv2`.
        query: [a, b) columns of the query row; None where no query is read (`gat` without own rows).
        is_query_state: the query row is the node's own state at level l-1, else a row of `Stage.query`.
        loops: the node attends to itself.
        slope: of leaky_relu.
        num_attr: attributes of an edge that are read, 0 for none.
        fill: attributes of the added self-loop: `mean` or `sum` of the other edges', or `row`.
        vector: float32 [H C], little endian, as the others.
        own_vector: float32 [H, q].
        edge: E, float32 [d_e, H] or [d_e, H C].
        fill_row: float32 [d_e].
    """

    kind: Literal["gat", "gatv2", "transformer"]
    heads: int
    channels: int
    query: tuple[int, int] | None = None
    is_query_state: bool = False
    shared: bool = False
    loops: bool = False
    slope: float = 0.0
    num_attr: int = 0
    fill: Literal["mean", "sum", "row"] = "row"
    vector: bytes = b""
    own_vector: bytes = b""
    edge: bytes = b""
    fill_row: bytes = b""

    @property
    def width(self) -> int:
        """Columns of the result."""
        attended = self.heads * self.num_attr if self.kind == "transformer" else 0
        return self.heads * self.channels + attended


class StageInput(msgspec.Struct, frozen=True, omit_defaults=True):
    """One input of a stage's ONNX file.

    Attributes:
        name: the ONNX input's name.
        kind: content of the input (see the module docstring).
        edge_type: key "src__rel__dst" of the relation, for kinds that read edges.
        columns: [a, b) of the source state; None means all.
        reduce: reduction, for kind `reduce`.
        weighted: multiply by edge weights, for kind `reduce`.
        attention: for kind `attend`.
    """

    name: str
    kind: InputKind
    edge_type: str = ""
    columns: tuple[int, int] | None = None
    reduce: Reduce | None = None
    weighted: bool = False
    attention: Attention | None = None

    @property
    def reads_own_state(self) -> bool:
        """True if the node's own state one level below is read."""
        attention = self.attention
        return (
            self.kind == "self"
            or self.reduce == "gcn"
            or (attention is not None and (attention.loops or attention.is_query_state))
        )

    @property
    def reads_attr(self) -> bool:
        """True if attributes of edges are read."""
        return self.kind == "edge_attr" or (self.attention is not None and self.attention.num_attr > 0)


class Stage(msgspec.Struct, frozen=True, omit_defaults=True):
    """The computation of one node type's state at one level.

    Attributes:
        state_dim: columns of the output state.
        file: ONNX file inside the artifact, output name `h`, float32 [n, state_dim]; None (level 0
            only) means the raw features are the state.
        inputs: in the ONNX file's order.
        structure: folder inside the artifact with the data of input `structure`.
        packed: the file has one input `x` [n, sum of widths] with all inputs concatenated, in
            order; only for inputs of one row per destination (a single Gemm instead of one per input).
        query: ONNX file that computes the query rows of attention first, output `h` [n, query_dim]; ""
            for none.
        query_inputs: of that file; kinds `self` and `features`.
    """

    state_dim: int
    file: str | None = None
    inputs: tuple[StageInput, ...] = ()
    packed: bool = False
    structure: str = ""
    query: str = ""
    query_dim: int = 0
    query_inputs: tuple[StageInput, ...] = ()

    @property
    def reads_own_state(self) -> bool:
        """True if the node's own state one level below is read."""
        return any(entry.reads_own_state for entry in (*self.inputs, *self.query_inputs))

    @property
    def reads_features(self) -> bool:
        """True if the node's own raw features are read."""
        return any(entry.kind == "features" for entry in (*self.inputs, *self.query_inputs))


Task = Literal["multiclass", "binary", "multilabel", "regression", "embedding"]


class NamedOutput(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of the outputs of a model that has several: some columns of its logits.

    Attributes:
        task, classes: as of `ModelSpec`. columns: [a, b) of the logits.
    """

    name: str
    task: Task
    columns: tuple[int, int]
    classes: tuple[str, ...] = ()


class Head(msgspec.Struct, frozen=True, omit_defaults=True):
    """The function from final states to answers.

    Attributes:
        kind: `node` reads `h` [n, d] of `node_type`; `link` reads `h_src` [n, d1] of `node_type`, `h_dst`
            [n, d2] of `dst_node_type`, and `edge_attr` [n, d_e] if there is an `edge_type`.
        node_type: type of the nodes whose final state is read and whose ids requests contain.
        dst_node_type: type of the second node of a pair, for `link`.
        file: ONNX file, output name `logits` float32 [n, output_dim]; None means the final state (or
            for `link` the dot product of both) is the logits.
        embedding: [a, b) columns of the final state with the embedding; None means all.
        outputs: of a model with several outputs.
        edge_type: key of the type of edges that are scored with their own rows.
        exclude_seed_edges: of a link model, for requests that do not say; "" excludes none.
    """

    node_type: str
    output_dim: int
    kind: Literal["node", "link"] = "node"
    dst_node_type: str = ""
    file: str | None = None
    embedding: tuple[int, int] | None = None
    outputs: tuple[NamedOutput, ...] = ()
    edge_type: str = ""
    exclude_seed_edges: Literal["", "self", "reverse"] = ""


#: Every edge type that the graph of packaging lacks, in `ModelSpec.types_without`.
ANY_TYPE = "*"
#: Kinds of edges in `ModelSpec.edges_without`.
REPEATED, LOOPS, NEGATIVE = "repeated edges", "self-loops", "negative weights"
#: Row of a node that a table has none of: its graph is refused, or it gets zeros or the mean of all rows.
Later = Literal["refuse", "zero", "mean-row"]


class LearnedRows(msgspec.Struct, frozen=True):
    """Learned rows of the nodes of one type; see `engine/embeddings.py`.

    Attributes:
        tables: path in the module -> columns, in their order in the file.
        num_rows: of the file. id_kind: of the ids of its rows; `range` are row numbers.
        later: of a node that has no row: "row" is float32 [columns] in `row`.
    """

    tables: dict[str, int]
    num_rows: int
    id_kind: Literal["range", "int", "string"]
    later: Literal["refuse", "zero", "row"] = "refuse"
    row: bytes = b""


class Encoder(msgspec.Struct, frozen=True):
    """Preprocessing: columns of a type become its features or attributes; see `engine/encoders.py`.

    Attributes:
        hash: hex sha256 of the file and of what it reads.
        names: of the features, or empty.
        model: the ONNX file and its columns, as the package for tabular models writes them.
    """

    hash: str
    width: int
    model: dict[str, Any]
    names: tuple[str, ...] = ()


class ModelSpec(msgspec.Struct, frozen=True):
    """The content of model.json.

    Attributes:
        name, version: as in the folder's path.
        task: how logits become probabilities and labels: `multiclass` softmax and argmax, `binary`
            sigmoid of one logit and >= 0.5, `multilabel` sigmoid per column; `regression` and
            `embedding` have neither; `several`: each of `head.outputs` has its own.
        graph_schema: schema of the graph that it was packaged for (graph.json's `schema`).
        fanouts: edge type key -> sampled neighbours for each hop, seed-outward; -1 means all.
        sampling: method of choosing neighbours.
        max_degree: hard cap on the neighbours of one node at one layer, also for fanout -1.
        windows: edge type key -> for each hop, seed-outward, the time before that of the question within
            which edges are read, in the unit of the graph's times; -1 means any.
        salt: salt of the keyed sampler.
        heads: of further node types, over the same levels; `head` is that of the first.
        levels: level -> node type -> stage; length num_layers + 1.
        classes: names of the output columns; may be empty.
        called: how forward was called when the model was packaged, in words.
        edges_without: edge type key -> kinds such as `LOOPS`, where the graph of packaging had no such
            edges and the answers rely on that: served answers would differ from the module's. In files
            it keeps its first name, so that no older artifact is served without its list.
        types_without: keys of edge types that the module reads if a graph has them, and that the graph of
            packaging lacked; `ANY_TYPE`: all that it lacked.
        types_nonempty: keys of edge types without whose edges the module takes another branch.
        embeddings: node type -> learned rows of its nodes.
        encoders: node type or edge type key -> the preprocessing of its columns.
        frozen: name of a statistic of all rows -> its numbers, those of the graph of packaging.
        files: path inside the artifact -> sha256.
        parity: measurements of the packaging check.
        producer: library -> version of it that wrote the artifact.
    """

    runtime: ClassVar[str] = "onnx"
    name: str
    version: str
    task: Literal[Task, "several"]
    num_layers: int
    graph_schema: dict[str, object]
    fanouts: dict[str, tuple[int, ...]]
    head: Head
    heads: tuple[Head, ...] = ()
    levels: tuple[dict[str, Stage], ...] = ()
    format: int = 1
    sampling: Literal["uniform", "recent", "weighted"] = "uniform"
    max_degree: int | None = None
    windows: dict[str, tuple[int, ...]] = {}
    salt: int = 0
    opset: int = 0
    classes: tuple[str, ...] = ()
    called: str = ""
    edges_without: dict[str, tuple[str, ...]] = msgspec.field(name="matrix_without", default_factory=dict)
    types_without: tuple[str, ...] = ()
    types_nonempty: tuple[str, ...] = ()
    embeddings: dict[str, LearnedRows] = {}
    encoders: dict[str, Encoder] = {}
    frozen: dict[str, object] = {}
    files: dict[str, str] = {}
    parity: dict[str, object] = {}
    producer: dict[str, str] = {}

    def fanout(self, edge_type: str, layer: int) -> int:
        """Number of neighbours sampled by layer `layer` (1-based, input-most first) along `edge_type`."""
        return self.fanouts[edge_type][self.num_layers - layer]

    def window(self, edge_type: str, layer: int) -> int | None:
        """The window of `layer` along `edge_type`, as of `fanout`; None for none."""
        found = self.windows.get(edge_type, (-1,) * self.num_layers)[self.num_layers - layer]
        return None if found < 0 else found

    def files_read(self, folder: Path) -> set[str]:
        """Paths inside the folder of the files that serving it reads."""
        stages = [stage for stages in self.levels for stage in stages.values()]
        named = {stage.file for stage in stages} | {head.file for head in (self.head, *self.heads)}
        named |= {stage.query or None for stage in stages}
        named |= {encoder.model["file"] for encoder in self.encoders.values()}
        if self.embeddings:
            named |= {path.relative_to(folder).as_posix() for path in folder.glob("embeddings/*")}
        for structure in {stage.structure for stage in stages if stage.structure}:
            named |= {path.relative_to(folder).as_posix() for path in folder.glob(f"{structure}/*")}
        return {name for name in named if name is not None}

    @property
    def by_type(self) -> dict[str, ModelSpec]:
        """Node type of a head -> the same model with this head alone."""
        heads = (self.head, *self.heads)
        return {head.node_type: msgspec.structs.replace(self, head=head, heads=()) for head in heads}

    def check_plain_features(self, what: str) -> None:
        """Check that the model has neither learned rows of nodes nor preprocessing.

        Args:
            what: what does not read them, such as "a run on Ray".

        Raises: ArtifactError: it has.
        """
        for named, name, option in (
            (self.embeddings, "learned rows", "embeddings"),
            (self.encoders, "preprocessing", "preprocess"),
        ):
            if named:
                raise ArtifactError(
                    f"{self.name}/{self.version} has {name} of {', '.join(named)} ({option}=), which "
                    f"{what} does not read; a server of a graph snapshot does"
                )

    @property
    def named_outputs(self) -> tuple[NamedOutput, ...]:
        """Its outputs; of a model with a single one, that one, without a name."""
        if self.task == "several":
            return self.head.outputs
        return (NamedOutput("", self.task, (0, self.head.output_dim), self.classes),)

    @property
    def reads_times(self) -> bool:
        """True if its answers depend on the time of the question."""
        stages = (stage for stages in self.levels for stage in stages.values())
        return bool(self.windows) or any(e.kind in TIMES for stage in stages for e in stage.inputs)

    @property
    def reach(self) -> int:
        """Hops from a node beyond which nothing changes its final state; a structure row counts as one."""
        return self.num_layers + any(stage.structure for stages in self.levels for stage in stages.values())


class Spec(Protocol):
    """The fields that model.json has for every kind; `ModelSpec` describes them."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def version(self) -> str: ...  # noqa: D102
    @property
    def files(self) -> dict[str, str]: ...  # noqa: D102

    def files_read(self, folder: Path) -> set[str]:
        """Paths inside the folder of the files that serving it reads."""


SpecT = TypeVar("SpecT", bound=Spec)


class _Kind(msgspec.Struct):
    kind: str = "graph"
    format: int = 1
    runtime: str = ""


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Check a value. Raises: PackagingError: it is not in `choices`, which the message lists."""
    if value not in choices:
        listed = ", ".join(str(choice) for choice in choices)
        raise PackagingError(f"{name}: {value!r} is not one of {listed}")


def write_spec(folder: Path, spec: SpecT) -> SpecT:
    """Hash every file below `folder`, write model.json and return the spec as written.

    Raises:
        PackagingError: `read_artifact` would not read it, or a named file is missing; nothing is written.
            The message names the field and its valid values.
    """
    for field, hint in get_type_hints(type(spec)).items():
        if get_origin(hint) is Literal:
            check_choice(field, getattr(spec, field), get_args(hint))
    try:
        msgspec.json.decode(msgspec.json.encode(spec), type=type(spec))
    except (msgspec.MsgspecError, TypeError) as error:
        raise PackagingError(f"{spec.name}/{spec.version}: cannot be written: {error}") from None
    files = {
        path.relative_to(folder).as_posix(): sha256_of(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "model.json"
    }
    for name in sorted(spec.files_read(folder) - files.keys()):
        raise PackagingError(f"{spec.name}/{spec.version}: cannot be written: no file {folder / name}")
    written: SpecT = msgspec.structs.replace(cast(Any, spec), files=files)
    fields = msgspec.json.decode(msgspec.json.encode(written))
    fields["digest"] = hash_of_fields(fields)
    (folder / "model.json").write_bytes(msgspec.json.format(msgspec.json.encode(fields), indent=1))
    return written


def hash_of(value: Any) -> str:
    """16 hexadecimal digits of SHA-256, for a value that JSON can hold; the order of keys is ignored."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def hash_of_fields(fields: Mapping[str, Any]) -> str:
    """The hash of the fields of a model.json that decide what the version answers."""
    return hash_of({name: value for name, value in fields.items() if name not in NOT_CONTENT})


def check_fields(content: bytes, path: Path | str) -> None:
    """Compare the fields of a model.json with its digest, which versions of an earlier Hopline lack.

    Raises: ArtifactCorrupted: they differ.
    """
    try:
        fields = msgspec.json.decode(content, type=dict[str, Any])
    except UNREADABLE as error:
        raise ArtifactCorrupted(f"{path}: not a valid model.json: {error}; package again") from None
    if isinstance(found := fields.get("format"), int) and found > FORMAT_VERSION:
        return  # `read_artifact` names the remedy
    if fields.get("digest", actual := hash_of_fields(fields)) != actual:
        raise ArtifactCorrupted(
            f"{path}: its fields hash to {actual}, its digest is {fields['digest']}; package or copy it "
            "again, or remove the digest if the change is meant"
        )


def read_spec(folder: Path, *, verify: bool = True) -> ModelSpec:
    """Read and check the artifact of a graph model.

    Raises: ArtifactError, ArtifactCorrupted: as `read_artifact`.
    """
    return read_artifact(folder, ModelSpec, "graph", verify=verify)


def read_artifact(folder: Path, spec_type: type[SpecT], kind: str, *, verify: bool = True) -> SpecT:
    """Read and check an artifact.

    Args:
        folder: `<repository>/<model>/<version>`.
        spec_type: its model.json.
        kind: of the model, as model.json names it.
        verify: compare the sha256 of every file.

    Raises:
        ArtifactError: model.json is missing, malformed, of another kind or of a newer format.
        ArtifactCorrupted: a file is missing or changed, or is read and not hashed.
    """
    path = folder / "model.json"
    try:
        content = path.read_bytes()
        found = msgspec.json.decode(content, type=_Kind)
        if found.format > FORMAT_VERSION:
            raise ArtifactError(
                f"{path}: format {found.format} is newer than {FORMAT_VERSION}, which this Hopline reads; "
                "upgrade hopline"
            )
        if found.runtime == "torch":
            raise ArtifactError(
                f"{folder} was packaged whole by an earlier Hopline (runtime torch). Whole models are no "
                "longer served: their answers were compared on the graph of packaging alone. Package it "
                "again: it is split into stages, or refused with the place that prevents it"
            )
        if found.kind != kind:
            raise ArtifactError(f"{folder} is a {found.kind} model; a {kind} model is needed")
        spec = msgspec.json.decode(content, type=spec_type)
    except FileNotFoundError:
        raise ArtifactError(f"{folder}: no model.json; is this a <model>/<version> folder?") from None
    except UNREADABLE as error:
        raise ArtifactError(f"{path}: not a valid model.json: {error}; package again") from None
    for name in sorted(spec.files_read(folder) - spec.files.keys()):
        raise ArtifactCorrupted(
            f"{folder / name}: this model reads it, and model.json has no sha256 of it; package again"
        )
    if verify:
        check_fields(content, path)
        check_files(folder, spec.files)
    return spec


def check_files(folder: Path, files: Mapping[str, str], shown: str = "") -> None:
    """Compare the sha256 of every file of an artifact, which messages call `shown`; "" is the folder.

    Raises: ArtifactCorrupted: one is absent or changed.
    """
    for name, expected in files.items():
        file, where = folder / name, f"{shown or folder}/{name}"
        if not file.is_file():
            raise ArtifactCorrupted(f"{where}: listed in model.json but absent; package or copy it again")
        actual = sha256_of(file)
        if actual != expected:
            raise ArtifactCorrupted(
                f"{where}: sha256 is {actual[:12]}…, model.json says {expected[:12]}…; "
                "package or copy it again"
            )


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


#: `Column`, of tabular models
__getattr__ = brought(__name__)
