"""Checks that what model.json declares agrees with itself and with the graph that it names.

The engine's compiled code reads the columns, types and layers that are declared, and checks nothing: a
column beyond a row would be other memory. Files are compared when they are opened (`runtimes/onnx.py`).
"""

from __future__ import annotations

from typing import get_args

from hopline.artifact import TIMES, Attention, InputKind, ModelSpec, Stage, StageInput
from hopline.errors import ArtifactError
from hopline.graph import GraphSchema

#: Columns of a state and of query rows: memory for some rows is taken before a file is opened.
_WIDEST = 1 << 20
_OF_EDGES = frozenset(get_args(InputKind)) - {"self", "features", "structure", "nodes", "seed_time"}
#: Kinds that read rows of the level below.
_OF_STATES = frozenset(("self", "reduce", "attend", "sources"))


def check_declared(spec: ModelSpec, schema: GraphSchema) -> None:
    """Check a model's declarations.

    Args:
        schema: `spec.graph_schema`.

    Raises: ArtifactError: names the first wrong one.
    """
    for own in spec.by_type.values():
        _Check(own, schema).model()
    is_plain = len(spec.by_type) == 1 + len(spec.heads) and all(each.kind == "node" for each in spec.heads)
    _Check(spec, schema)._need(is_plain, "two heads of one node type, or one of links")


class _Check:
    def __init__(self, spec: ModelSpec, schema: GraphSchema) -> None:
        self._spec = spec
        self._schema = schema
        self._where = ""

    def model(self) -> None:
        spec, head = self._spec, self._spec.head
        self._need(spec.num_layers >= 0, f"num_layers is {spec.num_layers}")
        self._need(spec.max_degree is None or spec.max_degree > 0, f"max_degree is {spec.max_degree}")
        for key, fanouts in spec.fanouts.items():
            self._edge(key)
            self._need(
                all(-1 <= each < 2**31 for each in fanouts),
                f"fanouts of {key!r} are {list(fanouts)}; -1 takes all neighbours",
            )
            self._need(
                len(fanouts) == spec.num_layers,
                f"{len(fanouts)} fanouts of {key!r} for {spec.num_layers} layers",
            )
        for key in spec.edges_without:
            self._edge(key)
        self._where = "head: "
        self._need(head.output_dim > 0, f"output_dim is {head.output_dim}")
        at = 0
        for each in head.outputs:
            self._need(each.columns[0] == at < each.columns[1], f"columns of output {each.name!r}")
            at = each.columns[1]
        self._need(not head.outputs or at == head.output_dim, "columns of no output")
        self._need((spec.task == "several") == bool(head.outputs), f"task is {spec.task!r}")
        ends = [head.node_type] + [head.dst_node_type or head.node_type] * (head.kind == "link")
        for node_type in ends:
            self._node(node_type)
        if head.edge_type:
            self._edge(head.edge_type)
            edge = self._schema.edge_types[head.edge_type]
            self._need([edge.src, edge.dst] == ends, f"edges of {head.edge_type!r} do not join its ends")
            self._need(edge.attr_dim > 0 and head.file is not None, "rows of edges, and no file reads them")
        self._where = ""
        self._need(
            len(spec.levels) == spec.num_layers + 1,
            f"{len(spec.levels)} levels for {spec.num_layers} layers; there must be one more",
        )
        for level, stages in enumerate(spec.levels):
            for node_type, stage in stages.items():
                self._where = f"levels[{level}][{node_type!r}]: "
                self._node(node_type)
                self._stage(level, node_type, stage)
        self._where = "head: "
        dims = []
        for node_type in ends:
            self._need(node_type in spec.levels[-1], f"the last level has no state of {node_type!r}")
            dims.append(spec.levels[-1][node_type].state_dim)
        self._within(head.embedding, dims[0], "embedding")
        if head.file is None:
            wanted = dims[0] if head.kind == "node" else 1
            self._need(
                head.output_dim == wanted and len(set(dims)) == 1,
                f"without a file output_dim must be {wanted}, not {head.output_dim}",
            )

    def _stage(self, level: int, node_type: str, stage: Stage) -> None:
        self._need(0 < stage.state_dim <= _WIDEST, f"state_dim is {stage.state_dim}, of {_WIDEST} at most")
        dim = self._schema.node_types[node_type].feature_dim
        if stage.file is None:
            self._need(level == 0, "no file; only level 0 may have none")
            self._need(stage.state_dim == dim, f"state_dim is {stage.state_dim} of {dim} features")
            return
        dim = stage.query_dim
        self._need(bool(stage.query) == (0 < dim <= _WIDEST), f"query_dim is {dim}")
        self._need(bool(stage.query) == bool(stage.query_inputs), "query_inputs without query, or reverse")
        for entry in stage.query_inputs:
            self._need(entry.kind in ("self", "features"), f"query input of kind {entry.kind!r}")
            self._input(level, node_type, entry, stage)
        self._need(bool(stage.inputs), "no inputs")
        for entry in stage.inputs:
            self._input(level, node_type, entry, stage)
        edge_rows = ("sources", "owners", "nodes", "edge_attr", "edge_weight", "is_self", *TIMES)
        reads_edges = any(entry.kind in edge_rows for entry in stage.inputs)
        self._need(not (stage.packed and reads_edges), "packed with rows of edges")

    def _input(self, level: int, node_type: str, entry: StageInput, stage: Stage) -> None:
        before, self._where = self._where, f"{self._where}input {entry.name!r}: "
        spec, width = self._spec, 0
        below = spec.levels[level - 1] if level else {}
        attr_dim = 0
        if entry.kind in _OF_EDGES:
            self._edge(entry.edge_type)
            edge = self._schema.edge_types[entry.edge_type]
            attr_dim = edge.attr_dim
            self._need(level > 0, "level 0 has no neighbours")
            self._need(edge.dst == node_type, f"edge type {entry.edge_type!r} ends at {edge.dst!r}")
            self._need(entry.edge_type in spec.fanouts, f"no fanouts of edge type {entry.edge_type!r}")
            windows = spec.windows.get(entry.edge_type, (-1,) * spec.num_layers)
            self._need(len(windows) == spec.num_layers, f"{len(windows)} windows of {entry.edge_type!r}")
            self._need(edge.src in below, f"the level below has no state of {edge.src!r}")
            width = below[edge.src].state_dim
            self._need(entry.kind != "edge_attr" or attr_dim > 0, "the edge type has no attributes")
            self._need(entry.kind != "edge_weight" or edge.has_weight, "the edge type has no weights")
            self._need(entry.kind != "edge_time" or edge.has_time, "the edge type has no times")
        if entry.reads_own_state:
            self._need(node_type in below, f"the level below has no state of {node_type!r}")
        if entry.kind == "self":
            width = below[node_type].state_dim
        elif entry.kind == "features":
            width = self._schema.node_types[node_type].feature_dim
        self._need(entry.kind != "structure" or bool(stage.structure), "the stage has no structure")
        self._need(entry.kind != "structure" or entry.columns is not None, "structure without columns")
        if entry.kind in _OF_STATES or entry.kind == "features":
            self._within(entry.columns, width, "columns")
            if entry.reduce == "gcn":
                self._need(below[node_type].state_dim == width, "gcn of states of two widths")
        self._need((entry.kind == "reduce") == (entry.reduce is not None), f"reduce is {entry.reduce!r}")
        self._need((entry.kind == "attend") == (entry.attention is not None), "attention for kind 'attend'")
        if entry.attention is not None:
            a, b = entry.columns or (0, width)
            own = below[node_type].state_dim if entry.attention.is_query_state else stage.query_dim
            self._attention(entry.attention, b - a, own, attr_dim)
        self._where = before

    def _attention(self, attention: Attention, width: int, query_dim: int, attr_dim: int) -> None:
        heads, channels, kind = attention.heads, attention.channels, attention.kind
        self._need(heads > 0 and channels > 0, f"{heads} heads of {channels} channels")
        self._need(not (attention.shared and kind == "gatv2"), "gatv2 cannot be shared")
        all_heads, own = heads * channels, 0
        if attention.query is not None:
            self._within(attention.query, query_dim, "query")
            own = attention.query[1] - attention.query[0]
        reads = {"gat": all_heads + heads, "gatv2": all_heads, "transformer": 2 * all_heads}[kind]
        reads = channels if attention.shared else reads
        self._need(width == reads, f"{width} columns; {kind} of {heads} heads of {channels} needs {reads}")
        num_attr = attention.num_attr
        self._need(
            num_attr in (0, attr_dim), f"num_attr is {num_attr}, and edges have {attr_dim} attributes"
        )
        queries = {"gat": heads, "gatv2": all_heads, "transformer": all_heads + heads * num_attr}[kind]
        free = kind == "gat" and (own == 0 or attention.shared)
        self._need(free or own == queries, f"a query of {own} columns; {queries} are needed")
        sizes = {
            "vector": all_heads if kind == "gatv2" or (kind == "gat" and attention.shared) else 0,
            "own_vector": heads * own if kind == "gat" and attention.shared else 0,
            "edge": num_attr * {"gat": heads, "gatv2": all_heads, "transformer": 0}[kind],
            "fill_row": num_attr if attention.loops and attention.fill == "row" else 0,
        }
        for name, size in sizes.items():
            has = len(getattr(attention, name))
            self._need(has == 4 * size, f"{name} has {has} bytes, not {4 * size}")

    def _node(self, name: str) -> None:
        self._need(name in self._schema.node_types, f"node type {name!r} is not in graph_schema")

    def _edge(self, key: str) -> None:
        self._need(key in self._schema.edge_types, f"edge type {key!r} is not in graph_schema")

    def _within(self, columns: tuple[int, int] | None, width: int, what: str) -> None:
        if columns is not None:
            first, last = columns
            self._need(0 <= first <= last <= width, f"{what} {list(columns)} are not within {width}")

    def _need(self, holds: bool, wrong: str) -> None:
        if not holds:
            spec = self._spec
            raise ArtifactError(
                f"model {spec.name}/{spec.version}: model.json contradicts itself: {self._where}{wrong}; "
                "copy the artifact again or package again"
            )
