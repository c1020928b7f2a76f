"""The loaded form of one stage: its runner, samplers, state cache and buffers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hopline.artifact import ModelSpec, Stage
from hopline.engine.interner import Interner
from hopline.engine.kernels import (
    gcn_coefficients,
    gcn_edges,
    loop_weights,
    self_loops,
    take,
    weighted_degrees,
)
from hopline.engine.narrow_kernels import Matrix
from hopline.engine.overlay import Lists, edge_data
from hopline.engine.source import RowSource
from hopline.engine.stage import StageRunner
from hopline.engine.state_cache import NO_STAMPS, StateCache
from hopline.engine.structure import Structure
from hopline.engine.view import NO_FLOATS, EdgeView
from hopline.errors import ArtifactError
from hopline.graph import Adjacency, Graph
from hopline.graph.live.view import LiveAdjacency, LiveNodes, LiveView
from hopline.graph.store_columns import is_in_store
from hopline.sampling import Block, BlockBuffers, Sampler, layer_key
from hopline.sampling.keyed import KEPT_ROWS, NO_CUT, frozen, roomy
from hopline.types import AnyArray, FloatArray, IdArray, StampArray

_NO_TIMES = frozen(np.empty(0, np.int64))
_NO_WEIGHTS, _NO_CUMWEIGHTS = frozen(NO_FLOATS), frozen(np.empty(0, np.float64))
#: For `known` of `weighted_degrees`.
_NONE_KNOWN: FloatArray = np.empty(0, np.float32)
_COUNTS = _NO_CUMWEIGHTS, _NO_WEIGHTS, False, False, _NONE_KNOWN
_SCANS = (
    "edge type {}: the model reads {}, and these edges lie in a graph store, which reads sampled edges "
    "only; serve the folder of the graph"
)


class Relation:
    """One edge type as one stage reads it: how to sample it and which edge data the stage reads.

    Args:
        adjacency: the edge type.
        sampler: of this layer.
        stage: its inputs decide which data a view carries.
        sources: nodes of the source type, where the graph is live.

    Attributes:
        source_slots: `sources`; they map ids to feature rows.
        stored_columns: edge data that the stage reads from a graph store.
    """

    def __init__(
        self,
        adjacency: Adjacency | LiveAdjacency,
        sampler: Sampler,
        stage: Stage,
        sources: LiveNodes | None = None,
    ) -> None:
        self.source_slots = sources
        entries = [entry for entry in stage.inputs if entry.edge_type == adjacency.key]
        kinds = {entry.kind for entry in entries}
        reduces = {entry.reduce for entry in entries}
        self.adjacency = adjacency
        self.key = adjacency.key
        self.source = adjacency.src
        self.sampler = sampler
        self.buffers = BlockBuffers()
        self.add_loops = "gcn" in reduces
        self.gcn = self.add_loops or "gcn_noself" in reduces
        gcn_weighted = any(e.weighted for e in entries if e.reduce in ("gcn", "gcn_noself"))
        self.reads_weight = adjacency.weight is not None and (
            "edge_weight" in kinds or any(e.weighted for e in entries)
        )
        self.reads_attr = any(entry.reads_attr for entry in entries)
        self.reads_is_self = "is_self" in kinds
        self.reads_time = "edge_time" in kinds
        self.reads_degree = "degree" in kinds or self.gcn
        self._plain = not (
            self.reads_weight
            or self.reads_attr
            or self.reads_is_self
            or self.reads_time
            or self.add_loops
            or self.reads_degree
        )
        if sampler.is_stored and (self.gcn and adjacency.has_self_loops):
            raise ArtifactError(_SCANS.format(adjacency.key, "self-loops of its nodes"))
        if sampler.window is not None and self.reads_degree:
            raise ArtifactError(f"edge type {adjacency.key}: a model of degrees cannot have a window")
        if sampler.is_stored and self.reads_time:
            raise ArtifactError(_SCANS.format(adjacency.key, "times of its edges"))
        if sampler.is_stored and gcn_weighted and adjacency.weight is not None:
            raise ArtifactError(_SCANS.format(adjacency.key, "weights of whole lists"))
        self.stored_columns = (
            (*(("weight",) if self.reads_weight else ()), *(("attr",) if self.reads_attr else ()))
            if sampler.is_stored
            else ()
        )
        self._clock = adjacency.clock
        self._lists = tuple(map(frozen, (adjacency.indptr, adjacency.records, adjacency.indices)))
        self._time = _NO_TIMES if sampler.is_stored else frozen(_or_empty(adjacency.time, np.int64))
        self.gcn_weighted = gcn_weighted and adjacency.weight is not None
        self._weight = frozen(_or_empty(adjacency.weight if gcn_weighted else None, np.float32))
        cumweight = frozen(_or_empty(adjacency.cumweight if gcn_weighted else None, np.float64))
        skips_loops = self.add_loops and adjacency.has_self_loops
        self._sums = cumweight, self._weight, skips_loops, self.add_loops
        #: float32 [N] of `degree_with_loop`, 0 where it was not asked for yet (such pages take no memory).
        self._known_degrees = _NONE_KNOWN
        if self.add_loops and adjacency.has_self_loops and not isinstance(adjacency, LiveAdjacency):
            self._known_degrees = np.zeros(len(adjacency.indptr) - 1, np.float32)
        self._all_weight = frozen(_or_empty(None if sampler.is_stored else adjacency.weight, np.float32))

    def view(
        self,
        base: Matrix,
        rows: IdArray,
        nodes: IdArray,
        block: Block,
        as_of: int,
        lists: Lists | None = None,
    ) -> EdgeView:
        """The edges of `nodes` in `block`, with the edge data that the stage reads.

        Args:
            base: [m, d] previous-level states; rows: int64 [E] into it.
            nodes: int64 [n] destination global ids. block: sampled for them.
            lists: of an overlay; the ids are those of `overlay.py` then.
        """
        view = EdgeView(base, rows, block.offsets)
        if self._plain:
            return view
        num_edges = block.neighbors.shape[0]
        if self.reads_weight:
            view.weight = np.empty(num_edges, np.float32)
            if lists is not None:
                view.weight = edge_data(self.adjacency.weight, lists.weight, block.positions)
            elif self.sampler.is_stored:
                view.weight = block.columns["weight"][:num_edges]
            elif self.sampler.packed:
                assert self.adjacency.weight is not None
                view.weight[:] = self.adjacency.weight[block.positions]
            else:
                take(self._all_weight, block.positions, view.weight)
        if self.reads_attr:
            assert self.adjacency.attr is not None
            if lists is not None:
                view.attr = edge_data(self.adjacency.attr, lists.attr, block.positions)
            elif self.sampler.is_stored:
                view.attr = block.columns["attr"][:num_edges]
            else:
                view.attr = self.adjacency.attr[block.positions]
        if self.reads_time:
            assert self.adjacency.time is not None
            view.time = self.adjacency.time[block.positions]
        if self.gcn:
            self._normalise(view, nodes, block, as_of, lists)
            return view
        if self.reads_is_self:
            view.is_self = np.empty(num_edges, np.bool_)
            self_loops(block.neighbors, nodes, block.offsets, view.is_self)
        if self.reads_degree:
            view.num_eligible = self._counts(nodes, as_of, lists)
        return view

    def new_columns(self, num_edges: int) -> dict[str, AnyArray]:
        """Arrays for the edge data that the stage reads from a graph store."""
        columns: dict[str, AnyArray] = {}
        for name in self.stored_columns:
            column = self.adjacency.weight if name == "weight" else self.adjacency.attr
            assert column is not None
            columns[name] = np.empty((num_edges, *column.shape[1:]), column.dtype)
        return columns

    def degree_with_loop(self, nodes: IdArray, as_of: int) -> FloatArray:
        """The `gcn` degree of nodes: float32 [n]; see artifact.py.

        Lists with self-loops are scanned, on a snapshot once for each node.
        """
        known = self._known_degrees if as_of == NO_CUT else _NONE_KNOWN
        return self._degrees(nodes, as_of, (*self._sums, known))

    def _counts(self, nodes: IdArray, as_of: int, lists: Lists | None) -> IdArray:
        """In-edges before sampling: int64 [n]."""
        if lists is None:
            return self._degrees(nodes, as_of).astype(np.int64)
        return lists.merged(nodes, as_of, lists.counts, self._degrees).astype(np.int64)

    def _normalise(
        self, view: EdgeView, nodes: IdArray, block: Block, as_of: int, lists: Lists | None
    ) -> None:
        neighbors, offsets, num_nodes = block.neighbors, block.offsets, nodes.shape[0]
        loops, is_weighted = NO_FLOATS, self.add_loops and self.gcn_weighted
        weight = view.weight if self.gcn_weighted else NO_FLOATS
        view.coefficients = out = np.empty(neighbors.shape[0], np.float32)
        view.self_coefficients = out_self = np.empty(num_nodes, np.float32)
        view.is_self = is_self = np.empty(neighbors.shape[0], np.bool_)
        if lists is None:
            view.num_eligible = np.empty(num_nodes, np.int64)
            if is_weighted and self.adjacency.has_self_loops:
                loops = self._loops(nodes, as_of)
            time, known = self._time, _NONE_KNOWN
            if as_of == NO_CUT:
                time, known = _NO_TIMES, self._known_degrees
            how = *self._lists, self._clock.version, time, as_of, *self._sums, known, *_COUNTS[:2]
            edges = nodes, neighbors, offsets, weight, loops
            gcn_edges(*how, *edges, is_self, view.num_eligible, out, out_self)
            return
        view.num_eligible = self._counts(nodes, as_of, lists)
        weights = self.adjacency.weight if self.gcn_weighted else None
        listed, listed_loops = lists.degrees(weights, self.add_loops)
        if is_weighted:
            loops = lists.merged(nodes, as_of, listed_loops, self._loops)
        own = lists.merged(nodes, as_of, listed, self.degree_with_loop)
        others = lists.merged(neighbors, as_of, listed, self.degree_with_loop)
        self_loops(neighbors, nodes, offsets, is_self)
        found = view.num_eligible, loops, out, out_self
        gcn_coefficients(self.add_loops, is_self, offsets, weight, own, others, *found)

    def _degrees(self, nodes: IdArray, as_of: int, how: tuple[Any, ...] = _COUNTS) -> FloatArray:
        """`weighted_degrees`; how: (cumweight, weight, skip_loops, add_loops, known)."""
        out = np.empty(nodes.shape[0], np.float32)
        time = self._time if as_of != NO_CUT else _NO_TIMES
        weighted_degrees(*self._lists, self._clock.version, time, nodes, as_of, *how, out)
        return out

    def _loops(self, nodes: IdArray, as_of: int) -> FloatArray:
        out = np.empty(nodes.shape[0], np.float32)
        time = self._time if as_of != NO_CUT else _NO_TIMES
        loop_weights(*self._lists, self._clock.version, time, nodes, as_of, self._weight, out)
        return out


class Level:
    """One (level, node type) of a model.

    Attributes:
        runner: None where the raw features are the state.
        state_cache: None where rows are not cached.
        source: where the raw rows that are this level's state come from; None where they are computed, or
            lie in the process.
        port: the source of rows for a `features` input, or None.
        relations: edge type key -> relation.
        reads_self: True if the destinations' own previous states are read.
        own_below: the level that computes those states; None means raw features.
        own_slots: maps ids to rows of raw features on a live graph; None on a snapshot, where a
            node's id is its row.
        structure: of the node type, where the stage reads it.
        is_simple: True if the level reads one edge type, of bounded fanout, and reads its own rows (if any)
            from the level that computes that type's sources.
        links: for each relation, where its sources' states come from; None means raw features.
        state: float32 [n, d], rows of the present batch while it is executed. stamps: as in `LevelPlan`.
        num_pending: ids that the present plan is about to intern, with repetitions.
    """

    def __init__(
        self,
        folder: Path,
        spec: ModelSpec,
        graph: Graph | LiveView,
        level: int,
        node_type: str,
        state_cache: StateCache | None,
        threads: int = 1,
        source: RowSource | None = None,
    ) -> None:
        stage = spec.levels[level][node_type]
        self.level = level
        self.node_type = node_type
        self.stage = stage
        self.state_cache = state_cache
        self.interner = Interner()
        self.runner: StageRunner | None = None
        self.source: RowSource | None = None
        self.port: RowSource | None = None
        self.own_below: Level | None = None
        self.own_slots = live_nodes(graph, node_type)
        self.is_simple = False
        self.links: list[tuple[Relation, Level | None]] = []
        self.num_pending = 0
        self.relations: dict[str, Relation] = {}
        self.structure: Structure | None = None
        self._out = np.empty((64, stage.state_dim), np.float32)
        self.state: FloatArray = self._out
        self.stamps = self._stamps = NO_STAMPS
        self._computed = np.empty((64, stage.state_dim), np.float32)
        self._raw = np.empty((0, 0), np.float32)
        self._nodes = graph.nodes[node_type]
        kinds = {entry.kind for entry in stage.inputs}
        self.reads_self = stage.reads_own_state
        if stage.file is None:
            self.source = source
            return
        if stage.reads_features:
            self.port = source
            self._raw = np.empty((64, graph.nodes[node_type].features.shape[1]), np.float32)
        if "structure" in kinds and any(is_in_store(edge) for edge in graph.edges.values()):
            raise ArtifactError(_SCANS.format(", ".join(graph.edges), "whole lists of neighbours"))
        if "structure" in kinds:
            self.structure = Structure(folder / stage.structure, graph)
        keys = {entry.edge_type for entry in stage.inputs if entry.edge_type}
        for key in sorted(keys):
            adjacency = graph.edges[key]
            sources, sampler = live_nodes(graph, adjacency.src), sampler_of(spec, graph, level, key)
            self.relations[key] = Relation(adjacency, sampler, stage, sources)
        widths = {}
        if level > 0:
            below = spec.levels[level - 1]
            widths = {key: below[graph.edges[key].src].state_dim for key in keys}
            if node_type in below:
                widths[""] = below[node_type].state_dim
        self.runner = StageRunner(
            folder, stage, widths, int(graph.nodes[node_type].features.shape[1]), threads
        )

    def link(self, below: dict[str, Level]) -> None:
        """Find the levels that this level reads, among those one level below."""

        def computed(node_type: str) -> Level | None:
            found = below[node_type]
            return None if found.runner is None and found.source is None else found

        self.links = [(relation, computed(relation.adjacency.src)) for relation in self.relations.values()]
        if self.reads_self:
            self.own_below = computed(self.node_type)
        self.is_simple = (
            len(self.links) == 1
            and self.links[0][0].sampler.fanout >= 0
            and (not self.reads_self or self.links[0][1] is self.own_below)
        )

    def bytes_of(self, num_ids: int) -> int:
        """Memory for the states of `num_ids` ids; at most as many are distinct as there are nodes."""
        return 8 * self.stage.state_dim * min(num_ids, self._nodes.num_nodes)

    def shrink(self) -> None:
        """Release memory that only the largest batches need."""
        for relation in self.relations.values():
            relation.buffers.shrink()
        self.interner.shrink()
        self.state = self._out = _shrunk(self._out)
        self._computed = _shrunk(self._computed)
        self._raw = _shrunk(self._raw)
        self.stamps = self._stamps = NO_STAMPS

    def out(self, num_rows: int) -> FloatArray:
        """A reused float32 [num_rows, state_dim] for all requested rows."""
        if num_rows > self._out.shape[0]:
            self._out = np.empty((roomy(num_rows), self.stage.state_dim), np.float32)
        return self._out[:num_rows]

    def stamps_out(self, num_rows: int) -> StampArray:
        """A reused float64 [num_rows] for the stamps of all requested rows."""
        if num_rows > self._stamps.shape[0]:
            self._stamps = np.empty(roomy(num_rows))
        return self._stamps[:num_rows]

    def computed(self, num_rows: int) -> FloatArray:
        """A second reused array, for the rows that are not in the state cache."""
        if num_rows > self._computed.shape[0]:
            self._computed = np.empty((roomy(num_rows), self.stage.state_dim), np.float32)
        return self._computed[:num_rows]

    def raw(self, num_rows: int) -> FloatArray:
        """A reused float32 [num_rows, dim] for the rows of a port."""
        if num_rows > self._raw.shape[0]:
            self._raw = np.empty((roomy(num_rows), self._raw.shape[1]), np.float32)
        return self._raw[:num_rows]


def _shrunk(buffer: FloatArray) -> FloatArray:
    """The buffer, or a small one of the same width if it is large."""
    return np.empty((64, buffer.shape[1]), np.float32) if buffer.size > 2 * KEPT_ROWS else buffer


def sampler_of(spec: ModelSpec, graph: Graph | LiveView, level: int, key: str) -> Sampler:
    """The sampler of an edge type at a level."""
    how = spec.fanout(key, level), spec.sampling, layer_key(spec.salt, level, key), spec.max_degree
    window = spec.window(key, level)
    now = 0 if window is None or isinstance(graph, LiveView) else graph.clock or 0
    return Sampler(graph.edges[key], *how, window, now)


def live_nodes(graph: Graph | LiveView, node_type: str) -> LiveNodes | None:
    """Nodes that can change, None where the graph is a snapshot."""
    return graph.nodes[node_type] if isinstance(graph, LiveView) else None


def _or_empty(array: AnyArray | None, dtype: type) -> AnyArray:
    return np.empty(0, dtype) if array is None else array
