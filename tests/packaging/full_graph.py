"""The slow, simple engine: every node of a graph at full neighbourhoods, level by level, in NumPy.

Defines in NumPy what each input kind of `hopline.artifact` means, independent of the engine. Needs NumPy
and ONNX Runtime, not torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hopline.artifact import Attention, ModelSpec, Stage, StageInput, read_spec
from hopline.errors import ArtifactError, NotSplittable
from hopline.packaging.check_graph import CheckEdges, CheckGraph
from hopline.runtimes.ort import ort
from hopline.types import AnyArray, FloatArray

if TYPE_CHECKING:
    from hopline.graph import Graph

_Doubles = NDArray[np.float64]


def attended(
    attention: Attention,
    edges: CheckEdges,
    rows: FloatArray,
    loop_rows: FloatArray | None,
    query: FloatArray | None,
) -> FloatArray:
    """Attention of every destination.

    Args:
        rows: what edges read of their sources, [N, reads].
        loop_rows: what the added self-loops read, [n, reads]; None where nodes do not attend to themselves.
        query: [n, q]; `attention.query` says which columns.

    Returns: float32 [n, attention.width].
    """
    n, heads, channels = len(edges.indptr) - 1, attention.heads, attention.channels
    src, dst = edges.indices.astype(np.int64), edges.destinations
    num_attr = attention.num_attr
    attr = np.zeros((len(src), 0)) if edges.attr is None or not num_attr else edges.attr.astype(np.float64)
    if loop_rows is not None:
        others = src != dst
        src, dst, attr = src[others], dst[others], attr[others]
        rows = np.concatenate([rows, loop_rows])
        attr = np.concatenate([attr, _loop_attr(attention, dst, attr, n)])
        src = np.concatenate([src, len(rows) - n + np.arange(n)])
        dst = np.concatenate([dst, np.arange(n)])
    source = rows[src].astype(np.float64)
    if attention.shared:
        source = np.tile(source, heads)
    first, last = attention.query or (0, 0)
    mine = np.zeros((n, 0)) if query is None else query[:, first:last].astype(np.float64)
    scores = _scores(attention, source, mine[dst], attr)
    highest = np.full((n, heads), -np.inf)
    np.maximum.at(highest, dst, scores)
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - highest[dst])
    norm = np.zeros((n, heads))
    np.add.at(norm, dst, weights)
    weights /= norm[dst]
    width = heads * channels
    first = width if attention.kind == "transformer" and not attention.shared else 0
    value = source[:, first : first + width]
    out = np.zeros((n, width))
    np.add.at(out, dst, (weights[:, :, None] * value.reshape(-1, heads, channels)).reshape(-1, width))
    if attention.kind != "transformer" or not num_attr:
        return out.astype(np.float32)
    of_edges = np.zeros((n, heads * num_attr))
    np.add.at(of_edges, dst, (weights[:, :, None] * attr[:, None, :]).reshape(-1, heads * num_attr))
    return np.concatenate([out, of_edges], axis=1).astype(np.float32)


def _scores(attention: Attention, source: _Doubles, query: _Doubles, attr: _Doubles) -> _Doubles:
    """[E, heads]."""
    heads, channels, num_attr = attention.heads, attention.channels, attention.num_attr
    width = heads * channels
    edge = np.frombuffer(attention.edge, "<f4").astype(np.float64)
    of_edge = attr @ edge.reshape(num_attr, -1) if edge.size else 0.0

    def leaky(z: _Doubles) -> _Doubles:
        return np.where(z > 0, z, attention.slope * z)

    if attention.kind == "gat" and attention.shared:
        vector = np.frombuffer(attention.vector, "<f4").astype(np.float64)
        found = (source * vector).reshape(-1, heads, channels).sum(axis=2) + of_edge
        if query.shape[1]:
            found += (
                query @ np.frombuffer(attention.own_vector, "<f4").astype(np.float64).reshape(heads, -1).T
            )
        return leaky(found)
    if attention.kind == "gat":
        return leaky(source[:, width:] + (query if query.shape[1] else 0.0) + of_edge)
    if attention.kind == "gatv2":
        vector = np.frombuffer(attention.vector, "<f4").astype(np.float64)
        keys = leaky(source[:, :width] + query + of_edge) * vector
        return keys.reshape(-1, heads, channels).sum(axis=2)
    keys = (source[:, :width] * query[:, :width]).reshape(-1, heads, channels).sum(axis=2)
    if num_attr:
        keys += (query[:, width:].reshape(-1, heads, num_attr) * attr[:, None, :]).sum(axis=2)
    return keys


def _loop_attr(attention: Attention, dst: NDArray[np.int64], attr: _Doubles, n: int) -> _Doubles:
    """Attributes of the added self-loops, [n, d_e]."""
    if attention.fill == "row":
        row = np.frombuffer(attention.fill_row, "<f4").astype(np.float64)
        return np.tile(row[: attr.shape[1]], (n, 1))
    total = np.zeros((n, attr.shape[1]))
    np.add.at(total, dst, attr)
    if attention.fill == "mean":
        total /= np.maximum(np.bincount(dst, minlength=n), 1)[:, None]
    return total


#: node type -> float32 [N, d]
States = dict[str, FloatArray]


def states(artifact: Path, graph: Graph | CheckGraph) -> list[States]:
    """Compute every state of a split model for every node.

    Args:
        artifact: a `<model>/<version>` folder.
        graph: any graph with the schema that the model was packaged for.

    Returns: for each level, node type -> float32 [N, state_dim].
    """
    spec = read_spec(artifact)
    check = graph if isinstance(graph, CheckGraph) else CheckGraph.of(graph)
    levels: list[States] = []
    for stages in spec.levels:
        previous = levels[-1] if levels else {}
        levels.append(
            {
                node_type: run_stage(artifact, stage, node_type, check, previous)
                for node_type, stage in stages.items()
            }
        )
    return levels


def logits(
    artifact: Path,
    graph: Graph | CheckGraph,
    pairs: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
) -> FloatArray:
    """Compute the model's logits for every node, or for the given pairs.

    Args:
        pairs: for a link model, rows of the source and of the destination type, int64 [n] each.

    Returns: float32 [N or n, output_dim].
    """
    return head_logits(artifact, read_spec(artifact), states(artifact, graph)[-1], pairs)


def head_logits(
    artifact: Path,
    spec: ModelSpec,
    states: States,
    pairs: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
) -> FloatArray:
    """Apply the head to final states; arguments as in `logits`."""
    head = spec.head
    if head.kind == "node":
        feeds = {"h": states[head.node_type]}
        if head.file is None:
            return feeds["h"]
    else:
        if pairs is None:
            raise ArtifactError(f"{artifact}: a link model needs `pairs`")
        feeds = {"h_src": states[head.node_type][pairs[0]], "h_dst": states[head.dst_node_type][pairs[1]]}
        if head.file is None:
            return np.sum(feeds["h_src"] * feeds["h_dst"], axis=1, keepdims=True, dtype=np.float32)
    return _run(artifact / head.file, "logits", feeds)


def run_stage(
    artifact: Path, stage: Stage, node_type: str, graph: CheckGraph, previous: States
) -> FloatArray:
    """Compute one stage for all nodes of its type from the states of the level below.

    Raises: NotSplittable: ONNX Runtime cannot run the file.
    """
    if stage.file is None:
        return graph.features[node_type]
    feeds = packed(stage, feeds_of(artifact, stage, node_type, graph, previous))
    return _run(artifact / stage.file, "h", feeds)[: graph.num_nodes(node_type)]


def _run(file: Path, output: str, feeds: dict[str, AnyArray]) -> FloatArray:
    try:
        found: FloatArray = session(file).run([output], feeds)[0]
    except (
        Exception
    ) as error:  # the runtime has an error class for each of its codes, also when it opens the file
        raise NotSplittable(f"ONNX Runtime cannot run {file.name}: {str(error).splitlines()[0]}") from error
    return found


def feeds_of(
    artifact: Path, stage: Stage, node_type: str, graph: CheckGraph, previous: States
) -> dict[str, AnyArray]:
    """`stage_inputs` of a stage, with the rows of its query file."""
    query = None
    if stage.query:
        feeds = stage_inputs(stage.query_inputs, node_type, graph, previous)
        query = session(artifact / stage.query).run(["h"], feeds)[0]
    return stage_inputs(stage.inputs, node_type, graph, previous, query)


def packed(stage: Stage, feeds: dict[str, AnyArray]) -> dict[str, AnyArray]:
    """The inputs of the stage's file: one each, or all of them side by side if it is packed."""
    if not stage.packed:
        return feeds
    return {"x": np.concatenate([feeds[item.name] for item in stage.inputs], axis=1)}


def session(path: Path) -> ort.InferenceSession:
    """Open an ONNX file on one CPU thread (sums keep one order)."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def stage_inputs(
    inputs: tuple[StageInput, ...],
    node_type: str,
    graph: CheckGraph,
    previous: States,
    query: FloatArray | None = None,
) -> dict[str, AnyArray]:
    """Build the inputs of a stage for all nodes of its type, as hopline.artifact defines them.

    Args:
        previous: states of the level below, by node type.
        query: rows of the stage's query file.

    Returns: input name -> array; one row and one edge more in a stage that reads rows of edges.
    """
    found = {item.name: _input(item, node_type, graph, previous, query) for item in inputs}
    if all(item.kind != "nodes" for item in inputs):
        return found
    return {item.name: one_more(found[item.name], item, graph.num_nodes(node_type)) for item in inputs}


#: Kinds of one row for each edge.
EDGE_KINDS = frozenset({"sources", "owners", "is_self", "edge_weight", "edge_attr"})


def one_more(array: AnyArray, item: StageInput, beyond: int) -> AnyArray:
    """The last row once more; the edge is that of no node."""
    if item.kind == "owners":
        return np.append(array, np.int64(beyond))
    more = array[-1:] if len(array) else np.zeros((1, *array.shape[1:]), array.dtype)
    return np.concatenate([array, more])


def _input(
    item: StageInput, node_type: str, graph: CheckGraph, previous: States, query: FloatArray | None
) -> AnyArray:
    if item.kind == "self":
        return _columns(previous[node_type], item)
    if item.kind == "features":
        return _columns(graph.features[node_type], item)
    if item.kind == "nodes":
        return np.arange(graph.num_nodes(node_type))
    edges = _edges_of(graph, item.edge_type)
    if item.kind == "sources":
        return _columns(previous[edges.src], item)[edges.indices]
    if item.kind == "reduce":
        own = previous.get(node_type) if item.reduce == "gcn" else None
        return _reduce(
            item, edges, _columns(previous[edges.src], item), None if own is None else _columns(own, item)
        )
    if item.attention is not None:
        rows, own = _columns(previous[edges.src], item), previous.get(node_type)
        loop_rows = None if own is None or not item.attention.loops else _columns(own, item)
        query = own if item.attention.is_query_state else query
        return attended(item.attention, edges, rows, loop_rows, query)
    if item.kind in ("degree", "count"):
        return np.diff(edges.indptr).astype(np.float32)
    return _of_edges(item, edges)


def _edges_of(graph: CheckGraph, key: str) -> CheckEdges:
    """The edges of a type, also of one that is derived from another."""
    if key in graph.edges:
        return graph.edges[key]
    dst, relation, src = key.split("__")
    part = graph.edges[f"{src}__{relation.removeprefix('rev_')}__{dst}"]
    order = np.argsort(part.indices, kind="stable")
    counts = np.bincount(part.indices, minlength=graph.num_nodes(src))
    attr, weight = (None if each is None else each[order] for each in (part.attr, part.weight))
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    return CheckEdges(dst, src, indptr, part.destinations[order], attr, weight)


def _columns(state: FloatArray, item: StageInput) -> FloatArray:
    if item.columns is None:
        return state
    return np.ascontiguousarray(state[:, item.columns[0] : item.columns[1]])


def _of_edges(item: StageInput, edges: CheckEdges) -> AnyArray:
    """One [E] or [E, d_e] array of all in-edges."""
    if item.kind == "owners":
        return edges.destinations.astype(np.int64)
    if item.kind == "is_self":
        return edges.indices == edges.destinations
    if item.kind == "edge_weight":
        return np.ones(len(edges.indices), np.float32) if edges.weight is None else edges.weight
    if edges.attr is None:
        raise ArtifactError(
            f"input {item.name!r} reads attributes of {item.edge_type!r}, which has no attributes"
        )
    return np.asarray(edges.attr, np.float32)


def _reduce(item: StageInput, edges: CheckEdges, rows: FloatArray, own: FloatArray | None) -> FloatArray:
    """The reductions of hopline.artifact; sums in float64, so that this side is accurate."""
    n = len(edges.indptr) - 1
    dst = edges.destinations
    src = edges.indices
    if item.reduce == "max":
        best = np.full((n, rows.shape[1]), -np.inf, dtype=np.float32)
        np.maximum.at(best, dst, rows[src])
        return np.where(np.diff(edges.indptr)[:, None] == 0, np.float32(0), best)
    weight = np.ones(len(src))
    if item.weighted and edges.weight is not None:
        weight = edges.weight.astype(np.float64)
    total = np.zeros((n, rows.shape[1]))
    if item.reduce in ("mean", "sum"):
        np.add.at(total, dst, rows[src] * weight[:, None])
        if item.reduce == "mean":
            total /= np.maximum(np.diff(edges.indptr), 1)[:, None]
        return total.astype(np.float32)
    assert item.reduce in ("gcn", "gcn_noself")
    return _gcn(edges, rows, own, weight, total)


def _gcn(
    edges: CheckEdges,
    rows: FloatArray,
    own: FloatArray | None,
    weight: NDArray[np.float64],
    total: NDArray[np.float64],
) -> FloatArray:
    """Symmetric normalisation over one node type; `own` is None if no self-loop is added."""
    dst, src = edges.destinations, edges.indices
    n = len(total)
    loop_weight = np.zeros(n)
    if own is not None:
        loop_weight[:] = 1.0
        loops = src == dst
        # Of several self-loops PyG keeps the last one (a scatter that overwrites); so does NumPy.
        loop_weight[dst[loops]] = weight[loops]
        src, dst, weight = src[~loops], dst[~loops], weight[~loops]
    degree = loop_weight.copy()
    np.add.at(degree, dst, weight)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.where(degree != 0, degree**-0.5, 0.0)  # NaN where it is negative, as in PyG
    np.add.at(total, dst, rows[src] * (weight * scale[src] * scale[dst])[:, None])
    if own is not None:
        total += own * (loop_weight * scale * scale)[:, None]
    return total.astype(np.float32)
