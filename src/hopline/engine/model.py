"""A packaged model on a graph, ready to answer: distinct node ids in, output rows out.

Not safe for concurrent calls, because buffers are reused. The service runs one batch per model at a time.
"""

from __future__ import annotations

import copy
import logging
import math
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hopline.artifact import ModelSpec
from hopline.engine import outputs as out_of
from hopline.engine.encoders import encoder_of
from hopline.engine.execute import execute
from hopline.engine.fused_plan import FusedPlan, chain_to
from hopline.engine.guard import Guard
from hopline.engine.lap import LapWatch
from hopline.engine.level import Level
from hopline.engine.narrow_kernels import Matrix, matrix_of
from hopline.engine.overlay import Overlay
from hopline.engine.overlay_states import OverlayStates
from hopline.engine.plan import Plan, complete, do_without, make_plan, share_there
from hopline.engine.schema import fitted
from hopline.engine.source import Ages, FetchedEdgesByType, FetchedRowsByType, RowsAbsent, RowSource
from hopline.engine.state_cache import StateCache
from hopline.engine.student import Student, student_of
from hopline.engine.tasks import outputs_of
from hopline.errors import ArtifactError, BadRequest
from hopline.graph import Graph
from hopline.graph.live.view import NO_HISTORY, Histories, LiveNodes, LiveView
from hopline.graph.store_columns import is_in_store
from hopline.memory.arena import Arena
from hopline.runtimes.onnx import RowStage
from hopline.sampling.keyed import NO_CUT
from hopline.types import AnyArray, FloatArray, IdArray

log = logging.getLogger(__name__)
_NO_IDS: IdArray = np.empty(0, np.int64)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class StateCachePlan:
    """Shares of a memory budget among the state caches of a model.

    Every worker derives the same plan from the same numbers, so all workers use the same layout.

    Args:
        spec, graph: the model and its graph.
        memory_bytes: for all state caches and all workers together; 0 means no state caches.
        num_workers: partitions.
        final: also cache the last level's rows (precomputed serving).
        ages: features come from a store, and expire.
    """

    def __init__(
        self,
        spec: ModelSpec,
        graph: Graph | LiveView,
        memory_bytes: int,
        num_workers: int = 1,
        *,
        final: bool = False,
        ages: bool = False,
    ) -> None:
        self.num_workers = num_workers
        self._ages = ages
        #: (level, node type) -> (num_nodes, dim, slots of each worker)
        self.caches: dict[tuple[int, str], tuple[int, int, int]] = {}
        self._graph = graph if isinstance(graph, LiveView) else None
        self._further = spec.reach - spec.num_layers
        if self._graph is not None and not has_changed_at(spec, self._graph):
            if memory_bytes > 0:
                log.warning(
                    "%s/%s: no rows are cached: %s", spec.name, spec.version, _why(spec, self._graph)
                )
            return
        top = spec.num_layers + 1 if final else spec.num_layers
        kept = [
            (level, node_type, graph.nodes[node_type].capacity, stage.state_dim)
            for level in range(top)
            for node_type, stage in sorted(spec.levels[level].items())
            if stage.file is not None
        ]
        # A row of level 0 is computed from one row of features, those above from many: they come first.
        self._divide(
            [each for each in kept if each[0] == 0],
            self._divide([each for each in kept if each[0] > 0], memory_bytes),
        )

    def _divide(self, kept: list[tuple[int, str, int, int]], memory_bytes: int) -> int:
        """Give all caches of `kept` the same share of their rows; returns the bytes that are left."""
        full = sum(n * StateCache.row_bytes(dim, self._ages) for _, _, n, dim in kept) * self.num_workers
        index = sum(n * 4 for _, _, n, _ in kept)
        if memory_bytes <= index or not full:
            return memory_bytes
        share = min(1.0, (memory_bytes - index) / full)
        for level, node_type, num_nodes, dim in kept:
            slots = int(num_nodes * share)
            if slots:
                self.caches[level, node_type] = (num_nodes, dim, slots)
        return memory_bytes - index - int(share * full)

    @property
    def num_bytes(self) -> int:
        """Bytes of the arena that holds these state caches."""
        of_all = self.num_workers, self._graph is not None, self._ages
        return sum(StateCache.num_bytes(*each, *of_all) for each in self.caches.values())

    def build(self, arena: Arena, worker: int = 0) -> dict[tuple[int, str], StateCache]:
        """Create the state caches in `arena`, for one worker."""
        found, live = {}, self._graph
        for (level, name), (num_nodes, dim, slots) in self.caches.items():
            changes = None
            if live is not None:
                changes = live.nodes[name].changed_at[level + self._further], live.clock
            found[level, name] = StateCache(
                arena, num_nodes, dim, slots, worker, self.num_workers, changes, ages=self._ages
            )
        return found


def has_changed_at(spec: ModelSpec, graph: LiveView) -> bool:
    """True if a live graph records `changed_at` for everything that a model's cached rows depend on."""
    plan = graph.memory.plan
    inputs = [each for stages in spec.levels for stage in stages.values() for each in stage.inputs]
    reads_degrees = any(each.reduce in ("gcn", "gcn_noself") for each in inputs)
    knows = plan.reads_degrees or not reads_degrees
    return knows and spec.reach < plan.num_levels and not spec.reads_times


def _why(spec: ModelSpec, graph: LiveView) -> str:
    """Why a live graph has no `changed_at` for a model."""
    levels = graph.memory.plan.num_levels
    if spec.reads_times:
        return "its answers depend on the latest time of the graph, which changes with it"
    if spec.reach < levels:
        return "it reads degrees of neighbours, which the live graph does not record; set live.degrees"
    return (
        f"it reads {spec.reach} hops, and the live graph records changes over {levels - 1}; set "
        f"live.levels to {spec.reach + 1}, or restart with the model in the repository"
    )


class Model:
    """A loaded model version.

    Args:
        folder: `<repository>/<model>/<version>`.
        spec: its model.json.
        graph: the snapshot or live graph that it reads.
        state_caches: from `StateCachePlan.build`; empty serves without state caches.
        threads: of the runtime.
        sources: node type -> where its raw features come from, for those that the graph does not hold.

    Attributes:
        state_dim: columns of a row of `states` of the head's node type.
        num_hops: message-passing layers.
        offers: outputs of the model by name.
        ages: of the rows of sources that were read since `supply`.
        reads_attr, reads_time: edge types whose attributes, times it reads.
        encoders: convert columns of inline nodes to features; node types without send these.
        encoder: of the nodes that it answers, or None.
        student: answers where most of the teacher's rows are missing; None where the model has no student.
        watch: separates sampling time from compute time.
        guard: limits each batch; the default one has no limits, and may be replaced.
        is_stored: edges lie in a graph store.
        clock: the latest time of a snapshot, which is now for a model that reads times; else 0.
        past: node type -> history, of those that it reads.

    Raises:
        SchemaMismatch: the model was packaged for another graph schema.
        ArtifactError: a file cannot be loaded, or the model reads times that a feature store lacks.
    """

    def __init__(
        self,
        folder: Path,
        spec: ModelSpec,
        graph: Graph | LiveView,
        state_caches: Mapping[tuple[int, str], StateCache] | None = None,
        threads: int = 1,
        sources: Mapping[str, RowSource] | None = None,
    ) -> None:
        self.spec = spec
        types = graph.schema.node_types
        self._moves = spec.reads_times and isinstance(graph, LiveView)
        for name in sources or ():
            if self._moves or types[name].has_time or types[name].history:
                text = f"reads times or rows of then, and a feature store (of {name!r}) has none"
                raise ArtifactError(f"{spec.name}/{spec.version} {text}")
        self.clock = 0 if isinstance(graph, LiveView) or not spec.reads_times else graph.clock or 0
        self.graph = graph = fitted(folder, spec, graph)
        self.state_caches = dict(state_caches or {})
        self.sources = dict(sources or {})
        self._fetched_rows: FetchedRowsByType = {}
        self._fetched_edges: FetchedEdgesByType = {}
        self.is_stored = any(is_in_store(edge) for edge in graph.edges.values())
        self._used: set[str] | None = None
        self._least_share = 0.0
        self.ages = Ages()
        self.student: Student | None = None
        self.watch = LapWatch()
        self.guard = Guard()
        self.features: dict[str, Matrix] = {
            name: matrix_of(nodes.features.array if isinstance(nodes, LiveNodes) else nodes.features)
            for name, nodes in graph.nodes.items()
            if name not in self.sources
        }
        self.past: Histories = {
            name: part.history
            for name, part in graph.nodes.items()
            if part.history is not None and any(name in stages for stages in spec.levels)
        }
        then = {name: matrix_of(each.features) for name, each in self.past.items()}
        self._now, self._then = (self.features, NO_HISTORY), (self.features | then, self.past)
        self.levels: list[dict[str, Level]] = []
        for number, stages in enumerate(spec.levels):
            self.levels.append({})
            for name in stages:
                cache, source = self.state_caches.get((number, name)), self.sources.get(name)
                level = Level(folder, spec, graph, number, name, cache, threads, source)
                self.levels[number][name] = level
        for below, above in pairwise(self.levels):
            for level in above.values():
                level.link(below)
        self.num_hops = spec.num_layers
        self.encoders = {name: encoder_of(folder, spec, name) for name in spec.encoders}
        inputs = [each for stages in spec.levels for stage in stages.values() for each in stage.inputs]
        self.reads_attr = frozenset(each.edge_type for each in inputs if each.reads_attr)
        self.reads_time = frozenset(each.edge_type for each in inputs if each.kind == "edge_time")
        (_, own), *others = spec.by_type.items()
        self._set_head(folder, own, threads)
        self._others: dict[str, Model] = {}  # without itself: a cycle would keep an unloaded model
        for node_type, own in others:
            model = self._others[node_type] = copy.copy(self)
            model.spec, model._others = own, {}
            model._set_head(folder, own, threads)

    @property
    def by_type(self) -> dict[str, Model]:
        """Node type -> the model with the head of this type; all share levels and state caches."""
        return {next(iter(self.spec.by_type)): self} | self._others

    def _set_head(self, folder: Path, spec: ModelSpec, threads: int) -> None:
        """Answer with the only head of `spec`."""
        head, final = spec.head, spec.levels[-1]
        chain = None if self.sources or self.is_stored else chain_to(self.levels[-1][head.node_type])
        self._fused_plan = None if chain is None else FusedPlan(chain, self._now, self._then)
        self.state_dim = final[head.node_type].state_dim
        self.offers = outputs_of(spec)
        self.encoder = self.encoders.get(head.node_type)
        self._head: RowStage | None = None
        if head.file is not None:
            dims, names = [self.state_dim], ["h"]
            if head.kind == "link":
                dims.append(final[head.dst_node_type or head.node_type].state_dim)
                names = ["h_src", "h_dst"]
            if head.edge_type:
                dims.append(self.graph.schema.edge_types[head.edge_type].attr_dim)
                names.append("edge_attr")
            self._head = RowStage(folder / head.file, names, dims, "logits", head.output_dim, threads)

    def supply(
        self,
        fetched_rows: FetchedRowsByType,
        used: set[str] | None = None,
        least_share: float = 0.0,
        fetched_edges: FetchedEdgesByType | None = None,
    ) -> None:
        """Set the fetched rows of the next calls, until this method is called again.

        Args:
            fetched_rows: rows to use in addition to the sources.
            used: None raises `RowsAbsent` where rows are missing. With a set, the model computes without
                the missing rows, and adds the fallbacks that it used to the set.
            least_share: share of the rows that must be available; below it, `RowsAbsent` is raised.
            fetched_edges: edges of a graph store.
        """
        self._fetched_rows = fetched_rows
        self._used = used
        self._least_share = least_share
        self.ages = Ages()
        self._fetched_edges = fetched_edges or {}

    def absent(self, wanted: Mapping[str, IdArray], as_of: int = NO_CUT) -> dict[str, IdArray]:
        """Rows that are missing to compute the final states of distinct ids: node type -> distinct ids.

        Raises: RowsAbsent: edges are missing.
        """
        plan = self._plan(self.spec.num_layers, wanted, as_of)
        return complete(plan, self._fetched_rows)

    def shrink(self) -> None:
        """Release memory that only the largest batches need; earlier answers stay valid."""
        for stages in self.levels:
            for level in stages.values():
                level.shrink()

    def final_states(self, wanted: Mapping[str, IdArray], as_of: int = NO_CUT) -> dict[str, FloatArray]:
        """Final states float32 [n, d] of distinct global ids, node type -> int64 [n].

        Valid until the next call.

        Raises: RowsAbsent: a source lacks rows, and `supply` did not allow computing without them.
        """
        return self._states(self.spec.num_layers, wanted, as_of)

    def overlaid_states(
        self, overlay: Overlay, types: Sequence[str], wanted: Sequence[IdArray], as_of: int
    ) -> list[FloatArray]:
        """Final states of ids of `overlay.py`, int64 [n] for each of `types`: float32 [n, d] each.

        Raises: RowsAbsent: as for `final_states`.
        """

        def states(level: int, node_type: str, ids: IdArray) -> FloatArray:
            if level == self.num_hops:
                return self.final_states({node_type: ids}, as_of)[node_type]
            return self._states(level, {node_type: ids}, as_of)[node_type]

        self.guard.rows += overlay.num_rows
        as_of = self.time_of(as_of) if self._moves else as_of
        rows = self._now if as_of == NO_CUT else self._then
        graph = self.levels, *rows, overlay, as_of
        computed = OverlayStates(*graph, states, self.guard, self.time_of(as_of))
        found = computed.read(types, wanted)
        self.watch.computed()
        return found

    def check_time(self, as_of: int) -> None:
        """Raise BadRequest if rows of its histories are not known of a time."""
        if self.past and any(level.structure for stages in self.levels for level in stages.values()):
            raise BadRequest("as_of: a student reads rows computed from the graph of now; ask its teacher")
        for name, past in self.past.items():
            if past.since is not None and as_of < past.since:
                moment = f"{past.since} {self.graph.schema.time_unit}".rstrip()
                raise BadRequest(f"as_of {as_of}: all rows of {name!r} are known only from {moment} on")

    def time_of(self, as_of: int) -> int:
        """The time that stages read with a time cut."""
        if as_of == NO_CUT and isinstance(self.graph, LiveView):
            return self.graph.latest_time or 0
        return self.clock if as_of == NO_CUT else as_of

    @property
    def edge_columns(self) -> dict[str, tuple[str, ...]]:
        """Edge type -> columns that the model reads of its edges, for a graph store."""
        found: dict[str, set[str]] = {}
        for stages in self.levels:
            for level in stages.values():
                for key, relation in level.relations.items():
                    found.setdefault(key, {"indices"}).update(relation.stored_columns)
        return {key: tuple(sorted(names)) for key, names in found.items()}

    def _plan(self, level: int, wanted: Mapping[str, IdArray], as_of: int) -> Plan:
        since = -math.inf
        for source in self.sources.values():
            since = max(since, source.age_s(0.0) - source.ttl_s)
        return make_plan(self.levels, level, wanted, as_of, self.guard, self._fetched_edges, since)

    def _states(self, level: int, wanted: Mapping[str, IdArray], as_of: int) -> dict[str, FloatArray]:
        as_of = self.time_of(as_of) if self._moves else as_of
        fused, ids, keep = self._fused_plan, wanted.get(self.spec.head.node_type, _NO_IDS), True
        if fused is None or level < self.num_hops or len(wanted) > 1 or not 0 < len(ids) <= fused.max_seeds:
            plan = self._plan(level, wanted, as_of)
        elif fused.executes:
            return {self.spec.head.node_type: fused.run(ids, as_of, self.guard, self.watch)}
        else:
            plan = fused.make(ids, as_of, self.guard)
        plan.seed_time = self.time_of(as_of)
        if plan.reads and (absent := complete(plan, self._fetched_rows)):
            if self._used is not None:
                self._used |= do_without(plan, self._fetched_rows)
            if self._used is None or share_there(plan) < self._least_share:
                self.watch.sampled()
                raise RowsAbsent(absent)
            keep = False  # state caches hold rows that any request would compute
        self.watch.sampled()
        found = execute(plan, *(self._now if as_of == NO_CUT else self._then), keep=keep)
        if plan.since > -math.inf:
            source = next(iter(self.sources.values()))
            for need in plan.needs[0] if plan.needs else ():
                self.ages.add(source, need.stamps)
        self.watch.computed()
        return found

    def logits(self, *states: FloatArray) -> FloatArray:
        """Apply the head to final states: one array [n, d], or for a link model two and rows of edges."""
        if self._head is None:
            if len(states) == 1:
                return states[0]
            product: FloatArray = np.einsum("nd,nd->n", *states)[:, None]
            return product
        n = states[0].shape[0]
        logits = np.empty((n, self.spec.head.output_dim), np.float32)
        for a in range(0, n, self._head.chunk_rows):
            b = min(a + self._head.chunk_rows, n)
            for buffer, state in zip(self._head.inputs, states, strict=True):
                buffer[: b - a] = state[a:b]
            logits[a:b] = self._head.run(b - a)
        return logits

    def outputs(self, names: Sequence[str], *states: FloatArray) -> dict[str, AnyArray]:
        """Named outputs of rows of final states; new arrays, never views of buffers."""
        a, b = self.spec.head.embedding or (0, states[0].shape[1])
        found = out_of.named_outputs(names, self.offers, states[0][:, a:b], lambda: self.logits(*states))
        self.watch.computed()
        return found


def load_model(
    folder: Path,
    spec: ModelSpec,
    graph: Graph | LiveView,
    state_caches: Mapping[tuple[int, str], StateCache] | None = None,
    threads: int = 1,
    sources: Mapping[str, RowSource] | None = None,
) -> Model:
    """Load a model version with its student; see `Model`.

    Raises: SchemaMismatch: see `check_schema`.
    """
    if sources and sources.keys() & spec.embeddings.keys():
        spec.check_plain_features("a server with a feature store")
    model = Model(folder, spec, graph, state_caches, threads, sources)
    model.student = student_of(folder, spec, threads)
    return model
