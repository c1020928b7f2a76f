"""The slow, simple engine: every node of a graph at full neighbourhoods, level by level, in NumPy.

Defines in NumPy what each input kind of `hopline.artifact` means; the parity gate of packaging and the
tests of the real engine compare with it. Needs NumPy and ONNX Runtime, not torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hopline.artifact import ModelSpec, Stage, StageInput, read_spec
from hopline.errors import ArtifactError, NotSplittable
from hopline.packaging.attended import attended
from hopline.packaging.check_graph import CheckEdges, CheckGraph
from hopline.runtimes.ort import ort
from hopline.types import AnyArray, FloatArray

if TYPE_CHECKING:
    from hopline.graph import Graph

#: node type -> float32 [N, d]
States = dict[str, FloatArray]


def full_graph_states(artifact: Path, graph: Graph | CheckGraph) -> list[States]:
    """Compute every state of a split model for every node.

    Args:
        artifact: a `<model>/<version>` folder.
        graph: any graph with the schema that the model was packaged for.

    Returns: for each level, node type -> float32 [N, state_dim].

    Raises:
        ArtifactError: the model is not split into stages.
    """
    spec = read_spec(artifact)
    if spec.runtime != "onnx":
        raise ArtifactError(f"{artifact}: runtime {spec.runtime!r} has no stages")
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


def full_graph_logits(
    artifact: Path,
    graph: Graph | CheckGraph,
    pairs: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
) -> FloatArray:
    """Compute the model's logits for every node, or for the given pairs.

    Args:
        pairs: for a link model, rows of the source and of the destination type, int64 [n] each.

    Returns: float32 [N or n, output_dim].
    """
    return head_logits(artifact, read_spec(artifact), full_graph_states(artifact, graph)[-1], pairs)


def head_logits(
    artifact: Path,
    spec: ModelSpec,
    states: States,
    pairs: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
) -> FloatArray:
    """Apply the head to final states; arguments as in `full_graph_logits`."""
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
    return _run(artifact / stage.file, "h", feeds)


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

    Returns: input name -> array.
    """
    return {item.name: _input(item, node_type, graph, previous, query) for item in inputs}


def _input(
    item: StageInput, node_type: str, graph: CheckGraph, previous: States, query: FloatArray | None
) -> AnyArray:
    if item.kind == "self":
        return _columns(previous[node_type], item)
    if item.kind == "features":
        return _columns(graph.features[node_type], item)
    edges = graph.edges[item.edge_type]
    if item.kind == "sources":
        return _columns(previous[edges.src], item)
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
    return _block(item, edges)


def _columns(state: FloatArray, item: StageInput) -> FloatArray:
    if item.columns is None:
        return state
    return np.ascontiguousarray(state[:, item.columns[0] : item.columns[1]])


def _block(item: StageInput, edges: CheckEdges) -> AnyArray:
    """One [n, K] (or [n, K, d_e]) array of the padded block of all in-edges."""
    counts = np.diff(edges.indptr)
    width = max(1, int(counts.max(initial=0)))
    mask = np.arange(width)[None, :] < counts[:, None]
    if item.kind == "mask":
        return mask
    if item.kind == "positions":
        positions = np.zeros(mask.shape, dtype=np.int64)
        positions[mask] = edges.indices
        return positions
    if item.kind == "is_self":
        loops = np.zeros(mask.shape, dtype=np.bool_)
        loops[mask] = edges.indices == edges.destinations
        return loops
    if item.kind == "edge_weight":
        weights = np.zeros(mask.shape, dtype=np.float32)
        weights[mask] = 1.0 if edges.weight is None else edges.weight
        return weights
    if edges.attr is None:
        raise ArtifactError(
            f"input {item.name!r} reads attributes of {item.edge_type!r}, which has no attributes"
        )
    attr = np.zeros((*mask.shape, edges.attr.shape[1]), dtype=np.float32)
    attr[mask] = edges.attr
    return attr


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
