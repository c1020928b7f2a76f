"""A loaded graph model as a computer: checks requests, predicts their cost, answers them.

This file is long because rows of stores and edges of stores are fetched for one batch.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from hopline.answering.computer import Computer, Fetch
from hopline.answering.hashes import graph_model_hashes
from hopline.answering.predicted import MEASURED, PredictedRows, first_costs
from hopline.answering.seed_tensors import seed_tensors
from hopline.config.schema import Config
from hopline.engine.answer import Answerer, cut_of
from hopline.engine.guard import Guard
from hopline.engine.inline_features import INLINE_ROWS
from hopline.engine.model import Model
from hopline.engine.request_ids import sides_of
from hopline.engine.scored_edges import BY_ID, edges_between
from hopline.engine.source import Absent, FetchedInputs
from hopline.engine.tasks import default_outputs, outputs_of
from hopline.errors import BadRequest, HoplineError, RequestTooLarge
from hopline.features.prefetcher import Wanted
from hopline.graph.edge_times import rough_range, time_cut
from hopline.graph.live.view import LiveView
from hopline.graph.store_columns import FetchedEdges
from hopline.observe.metrics import ModelMetrics
from hopline.sampling.keyed import KEPT_ROWS, TIMES_IN_STORE
from hopline.scheduling.work import MANY_ROWS, Work
from hopline.types import (
    AnyArray,
    ContextNode,
    EdgeEdit,
    Edit,
    IdArray,
    InlineNode,
    ModelInfo,
    ScoreRequest,
    ScoreResult,
    TensorInfo,
)

if TYPE_CHECKING:
    from hopline.answering.edge_fetcher import EdgeFetcher
    from hopline.answering.feature_fetcher import FeatureFetcher, FetchesRows
    from hopline.answering.sources import Sources
    from hopline.scheduling.batcher import Batcher

_NOTHING_YET = FetchedInputs()
#: Rows of a batch that is over before a deadline could be looked at: some 100 µs.
_FEW_ROWS = 256


def _supply_of(work: Work) -> FetchedInputs:
    """Rows that were fetched for a request."""
    fetch: Fetch | None = work.fetch
    return _NOTHING_YET if fetch is None or fetch.supply is None else fetch.supply


def _dropped(outcome: object) -> None:
    """Takes the outcome of a request that no caller sent."""


class GraphComputer(Computer):
    """Answers requests about nodes or links with a graph model.

    Args:
        model: loaded, used by nothing else.
        config: limits and feature settings.
        sources: of its features, where they do not lie in the graph.
        version: what it is served as, where that is not the artifact's own version.
        edges: reads edges that lie in a graph store; None where they lie in the graph.

    Attributes:
        fetcher: of rows and edges that lie in a store; None where there are none.
    """

    def __init__(
        self,
        model: Model,
        config: Config,
        sources: Sources | None = None,
        version: str | None = None,
        edges: EdgeFetcher | None = None,
    ) -> None:
        spec = model.spec
        widest = max((stage.state_dim for level in spec.levels for stage in level.values()), default=0)
        super().__init__(spec.name, version or spec.version, model.graph.version, row_bytes=4 * widest)
        self._rows = PredictedRows(model.spec, model.graph, model.num_hops)
        self.rows_per_seed = self._rows.direct + self._rows.below
        self.predicts = self._rows.differs
        self.model = model
        self.excludes = bool(spec.head.exclude_seed_edges)
        self._live = model.graph if isinstance(model.graph, LiveView) else None
        self._max_nodes = config.limits.max_nodes_per_request
        self._max_bytes = config.limits.max_request_bytes
        self._is_link = model.spec.head.kind == "link"
        #: Node types that a request must name one of; none where it need not.
        self._types = tuple(model.by_type) if len(model.by_type) > 1 else ()
        self.output_names = tuple(model.offers)
        self.default_outputs = default_outputs(model.spec)
        self.answerer = Answerer(
            model, self.default_outputs, config.limits.max_inline_neighbors, self.version
        )
        self._has_times = any(model.graph.edges[key].time is not None for key in model.spec.fanouts)
        self._has_times |= bool(model.past)
        #: The first and the last of those times; None until a request asks for a cut.
        self._times: tuple[int, int] | None = None
        self._seed_rows = {} if sources is None else sources.l1_rows
        self._l1_rows: Mapping[str, FetchesRows] = self._seed_rows
        rows_timeout_s = config.features.fetch_timeout_ms / 1e3
        if edges is not None and edges.rows:
            self._l1_rows, rows_timeout_s = edges.rows, edges.timeout_s
        self.fetcher: FeatureFetcher | None = None
        self._feature_metrics = None if sources is None else sources.metrics
        self._fetched_rows = None if sources is None else sources.fetched_rows(self.name, self.version)
        self.reads_store = edges is not None
        if self._l1_rows or edges is not None:
            from hopline.answering.feature_fetcher import FeatureFetcher

            self.fetches = True
            self.fetcher = FeatureFetcher(
                self._l1_rows, rows_timeout_s, None if sources is None else sources.prefetcher, edges
            )

    def attach(self, queue: Batcher) -> None:
        """As `Computer.attach`: the queue splits batches that read far more rows than predicted."""
        self._queue = queue
        self._some_rows = queue.policy.max_rows
        self._guard = Guard(self._max_bytes, self._some_rows, queue.larger, few_rows=_FEW_ROWS)
        for each in self.model.by_type.values():
            each.guard = self._guard

    def warm_up(self) -> None:
        """Answer a few requests, so that the first real one finds kernels and sessions ready."""
        for name, model in reversed(self.model.by_type.items()):
            num_nodes = model.graph.nodes[name].ids.num_nodes
            for count in (1, min(33, num_nodes)):
                self._preflight(np.arange(count), model)
            encoder = model.encoder
            zeros = np.zeros(model.graph.schema.node_types[name].feature_dim, np.float32)
            sent: dict[str, Any] = {"columns": encoder.example} if encoder else {"features": zeros}
            others = {"exclude_seed_edges": model.spec.head.exclude_seed_edges} if self.excludes else {}
            row = Edit(set=ContextNode(id=self._first_id(name), type=name, **sent))
            edits: tuple[Any, ...] = {"edits": (row,)}, {"edits": self._added_edges(name)}
            inline = {"nodes": (), "inline": [InlineNode(**sent)]}
            for fields in ({"as_of": 0}, inline, others, BY_ID, *edits):
                with contextlib.suppress(HoplineError):  # not every model takes them
                    self._preflight(np.arange(1), model, **fields)
        self._measure(num_nodes)
        self.model.shrink()

    def _first_id(self, node_type: str) -> Any:
        """The external id of the first node of a type; None if there are no nodes."""
        ids = self.model.graph.nodes[node_type].ids
        rows = ids.nth(np.zeros(min(1, ids.num_nodes), np.int64))
        return next(iter(np.asarray(ids.external(rows), object).tolist()), None)

    def _added_edges(self, node_type: str) -> tuple[Edit, ...]:
        """Edits that add an edge between the first nodes, of each type that leads to a node type."""
        schema, found = self.model.graph.schema.edge_types, []
        leading = [each.reverse_of or key for key, each in schema.items() if each.dst == node_type]
        for name in dict.fromkeys(leading):
            each, encoder = schema[name], self.model.encoders.get(name)
            attr = [0.0] * each.attr_dim or None if encoder is None else encoder.example
            src, dst = self._first_id(each.src), self._first_id(each.dst)
            weight, moment = 1.0 if each.has_weight else None, 0 if each.has_time else None
            if src is not None and dst is not None:
                found.append(Edit(add_edge=EdgeEdit(src, dst, name, moment, weight, attr)))
        return tuple(found)

    def _measure(self, num_nodes: int) -> None:
        """Begin predicting with what a few nodes from all over the graph cost, alone and together."""
        if num_nodes <= MEASURED or self.fetcher is not None:
            return
        preflight = partial(self._preflight, model=self.model)
        nodes, rows, elapsed_us = first_costs(preflight, self._guard, num_nodes)
        self._queue.cost.begin(rows, elapsed_us)
        request, num_seeds = self._request(nodes, self.model), MEASURED * (1 + self._is_link)
        work = Work(request, _dropped, num_seeds=num_seeds)
        self.predict(work)
        self.rows_per_seed = self._rows.learn([work], rows[-1], is_first=True)

    async def warm_up_reading(self) -> None:
        """Answer a few requests out of the graph store, so that it is known to work.

        Raises: HoplineError: edges cannot be read; this version must not take traffic.
        """
        assert self.fetcher is not None
        num_nodes = self.model.graph.nodes[self.model.spec.head.node_type].ids.num_nodes
        for count in (1, min(33, num_nodes)):
            request = self._request(np.arange(count), self.model, self.output_names)
            fetched_edges: dict[str, list[FetchedEdges]] = {}
            while True:
                inputs = FetchedInputs(is_last=True, fetched_edges=fetched_edges)
                (outcome,) = self.answerer.answer_supplied([request], [inputs])
                if isinstance(outcome, HoplineError):
                    raise outcome
                if not isinstance(outcome, Absent):
                    break
                failed = await self.fetcher.fetch_edges(outcome, fetched_edges)
                if failed is not None:
                    raise failed

    def examples(self, count: int) -> list[ScoreRequest]:
        """Requests about single nodes (or pairs) from all over the graph.

        None where rows would have to be fetched from a store.
        """
        if self.fetcher is not None:
            return []
        models, found = [*self.model.by_type.values()], []
        for at, share in enumerate(np.linspace(0.0, 1.0, count)):
            model = models[at % len(models)]
            num_nodes = model.graph.nodes[model.spec.head.node_type].ids.num_nodes
            found.append(self._request(np.array([int(share * (num_nodes - 1))]), model))
        return found

    def _request(self, places: IdArray, model: Model, outputs: tuple[str, ...] = ()) -> ScoreRequest:
        """A request about nodes by their places among those that exist."""
        head = model.spec.head
        index = self.model.graph.nodes[head.node_type].ids
        ids = index.external(index.nth(np.minimum(places, index.num_nodes - 1)))
        if head.kind != "link":
            node_type = head.node_type if self._types else ""
            return ScoreRequest(
                self.name, nodes=ids, outputs=outputs, version=self.version, node_type=node_type
            )
        other = self.model.graph.nodes[head.dst_node_type or head.node_type]
        # the two sides may differ in size
        targets = other.ids.external(other.ids.nth(np.zeros(places.shape[0], np.int64)))
        if head.edge_type:
            made_up = edges_between(model, ids, targets)
            return ScoreRequest(self.name, edges=made_up, outputs=outputs, version=self.version)
        return ScoreRequest(self.name, pairs=(ids, targets), outputs=outputs, version=self.version)

    def _preflight(self, places: IdArray, model: Model, **fields: Any) -> None:
        with self._live or contextlib.nullcontext():  # the nodes of the request exist when it is answered
            request = msgspec.structs.replace(self._request(places, model, tuple(model.offers)), **fields)
            if fields:
                self._check(request)
            # with what there is: the store's rows come with the first requests
            for outcome in self.answerer.answer_supplied([request], [FetchedInputs(is_last=True)]):
                if isinstance(outcome, HoplineError):
                    raise outcome

    def num_seeds(self, request: ScoreRequest) -> int:
        """As `Computer.num_seeds`."""
        options = request.inline or request.outputs or request.node_type or request.edges or request.edits
        others = request.exclude_seed_edges or request.as_of is not None
        if not (options or others or self._is_link or self._types):
            num_seeds = len(request.nodes)  # the usual request, without a detour
            if 0 < num_seeds <= self._max_nodes and request.pairs is None and request.columns is None:
                return num_seeds
        return self._check(request)

    def resolved(self, request: ScoreRequest) -> ScoreRequest:
        """As `Computer.resolved`: with `as_of` in the unit of the edge times."""
        if self.excludes and not request.exclude_seed_edges:
            how = self.model.spec.head.exclude_seed_edges
            request = msgspec.structs.replace(request, exclude_seed_edges=how)
        as_of = request.as_of
        if as_of is None or not self._has_times or self.reads_store:
            return request
        graph = self.model.graph
        unit = graph.schema.time_unit
        if self._times is None:
            self._times = self._find_times()
        try:
            cut = time_cut(as_of, unit, self._times)
        except BadRequest:
            if self._live is None:
                raise
            self._times = self._find_times()  # edges may have come
            cut = time_cut(as_of, unit, self._times)
        return request if cut is as_of else msgspec.structs.replace(request, as_of=cut)

    def _find_times(self) -> tuple[int, int] | None:
        if self._live is None:
            return rough_range(self.model.graph, self.model.spec.fanouts)
        with self._live.beside("times") as graph:
            return rough_range(graph, self.model.spec.fanouts)

    def _check(self, request: ScoreRequest) -> int:
        """Number of seeds of a request that is well-formed."""
        model = self.model.by_type.get(request.node_type or self.model.spec.head.node_type)
        if (
            model is None
            or (self._types and not request.node_type)
            or (self._is_link and request.node_type)
        ):
            takes = (
                "pairs of nodes" if self._is_link else f"nodes of type {' or '.join(self.model.by_type)}"
            )
            named = request.node_type or "is missing"
            raise BadRequest(f"node_type {named}: model {self.name!r} takes {takes}")
        if request.columns is not None:
            takes = "pairs of nodes" if self._is_link else "nodes"
            named = ", ".join(map(repr, request.columns)) or "rows"
            hint = "; those of a new node are in `inline`" if model.encoder else ""
            hint = "; ids are in `node_ids`" if "nodes" in request.columns else hint
            takes += f", not columns{hint}"
            raise BadRequest(f"unexpected input {named}: model {self.name!r} takes {takes}")
        for name in request.outputs:
            if name not in model.offers:
                raise BadRequest(
                    f"output {name!r} is unknown; model {self.name!r} has {', '.join(model.offers)}"
                )
        if request.as_of is not None and not (self._has_times or model.spec.reads_times):
            raise BadRequest(
                f"as_of: nothing that model {self.name!r} reads has times in graph "
                f"{self.model.graph.version}; leave as_of out"
            )
        if request.as_of is not None and self.reads_store:
            raise BadRequest(TIMES_IN_STORE)
        if request.edits:
            self._check_count(len(request.edits), "edits")
        if request.context and not (request.inline or request.edges):
            raise BadRequest("context describes nodes for inline nodes and edges, and the request has none")
        if self.model.spec.head.kind == "link":
            return self._check_pairs(request)
        if request.ends is not None:
            named = "edges" if request.edges else "pairs"
            raise BadRequest(
                f"model {self.name!r} scores nodes; ask with nodes or inline, not with {named}"
            )
        if request.exclude_seed_edges:
            raise BadRequest(f"exclude_seed_edges: model {self.name!r} scores nodes, and not pairs")
        if request.context:
            self._check_count(len(request.context), "context nodes")
        return self._check_count(len(request.nodes) + len(request.inline), "nodes")

    def _check_pairs(self, request: ScoreRequest) -> int:
        edge_type = self.model.spec.head.edge_type
        takes, what = ("edges", f"edges of {edge_type!r}") if edge_type else ("pairs", "links")
        sent = {"nodes": request.nodes, "inline": request.inline, "edges": request.edges}
        others = [name for name, given in sent.items() if name != takes and len(given)]
        others += ["pairs"] if edge_type and request.pairs is not None else []
        if others or request.ends is None:
            named = f", not with {' and '.join(others)}" if others else ": the request has none"
            raise BadRequest(f"model {self.name!r} scores {what}; ask with {takes}{named}")
        sources, targets = request.ends
        if len(sources) != len(targets):
            raise BadRequest(f"pairs: {len(sources)} sources but {len(targets)} destinations")
        self._check_count(len(request.context) or 1, "context nodes")
        return 2 * self._check_count(len(sources), takes)

    def _check_count(self, count: int, what: str) -> int:
        if count == 0:
            raise BadRequest(f"the request names no {what}; at least one is needed")
        if count > self._max_nodes:
            raise RequestTooLarge(
                f"{count} {what} in one request; at most {self._max_nodes} are allowed "
                "(limits.max_nodes_per_request)"
            )
        return count

    def stages(self) -> dict[str, float]:
        """As `Computer.stages`."""
        watch = self.model.watch
        return {"sample": watch.sample_s, "compute": watch.compute_s}

    def release(self) -> None:
        """As `Computer.release`: read the live graph no more."""
        if self._live is not None:
            self._live.close()

    def predict(self, work: Work) -> None:
        """As `Computer.predict`."""
        predicted = self._rows
        direct, below = predicted.of(work.request, work.num_seeds)
        work.direct, work.below = direct, below
        work.rows = rows = int(direct + predicted.share * below)
        work.num_bytes = rows * self.row_bytes
        work.needs_thread = (
            INLINE_ROWS * (len(work.request.inline) + len(work.request.context)) >= MANY_ROWS
        )

    def larger(self, work: Work) -> None:
        """Remember what a request is about that was larger than predicted."""
        self._rows.remember(work.request, work.rows, self._some_rows)
        self.predicts = self._rows.differs

    def rows_of(self, batch: Sequence[Work]) -> int:
        """As `Computer.rows_of`, counted."""
        rows = self._guard.rows
        if not self._queue.is_counted(batch[0]):
            self.rows_per_seed = self._rows.learn(batch, rows)
        return rows

    def run(self, batch: list[Work]) -> Sequence[ScoreResult | HoplineError | None]:
        """As `Computer.run`."""
        guard = self._guard
        guard.batch = batch
        guard.rows = 0
        self.model.watch.start()
        try:
            if self._live is None and self.fetcher is None:
                return self.answerer.answer([work.request for work in batch])
            return self._answer(batch)
        finally:
            guard.batch = ()
            if guard.rows > self._some_rows or self._rows.large:
                self._look_back(batch, guard.rows)

    def _look_back(self, batch: list[Work], rows: int) -> None:
        """Give memory back after a large batch, and see whether one that was large still is."""
        if rows > KEPT_ROWS:
            self.model.shrink()
        if len(batch) == 1 and self._rows.knows(batch[0].request):
            self._rows.remember(batch[0].request, rows, self._some_rows)

    def _answer(self, batch: list[Work]) -> Sequence[ScoreResult | HoplineError | None]:
        """The same about a live graph, or with rows of a store."""
        if self._live is None:
            return self._answer_supplied(batch)
        with self._live:  # one version for the whole batch
            self.graph_version = self._live.version
            if self.fetcher is not None:
                return self._answer_supplied(batch)
            return self.answerer.answer([work.request for work in batch])

    def _answer_supplied(self, batch: list[Work]) -> Sequence[ScoreResult | HoplineError | None]:
        outcomes = self.answerer.answer_supplied(
            [work.request for work in batch], [_supply_of(work) for work in batch]
        )
        for work, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Absent):
                if work.fetch is None:
                    work.fetch = Fetch()
                work.fetch.absent = outcome
        return [None if isinstance(outcome, Absent) else outcome for outcome in outcomes]

    def fetch(self, work: Work, resume: Callable[[Work], object]) -> None:
        """As `Computer.fetch`."""
        fetch: Fetch = work.fetch

        def arrived(supply: FetchedInputs, until: float) -> None:
            fetch.supply, fetch.patient_until, fetch.absent = supply, until, None
            resume(work)

        def is_over() -> bool:
            return work.ended or work.deadline <= time.monotonic()

        assert self.fetcher is not None
        assert fetch.absent is not None
        if self._fetched_rows is not None and not fetch.absent.edges:
            self._fetched_rows.observe(sum(ids.shape[0] for ids in fetch.absent.absent.values()))
        wanted = partial(self._wanted, work.request)
        self.fetcher.begin(fetch.absent, _supply_of(work), fetch.patient_until, arrived, wanted, is_over)

    def _wanted(self, request: ScoreRequest) -> Wanted | None:
        """The nodes of a request; None where it describes nodes, or names edges."""
        if request.inline or request.context or request.names_edges:
            return None
        seeds: dict[str, IdArray] = {}
        for node_type, external in sides_of(self.model.spec, request):
            ids = self.model.graph.nodes[node_type].ids.lookup(external)
            ids = ids[ids >= 0]
            seeds[node_type] = np.concatenate([seeds[node_type], ids]) if node_type in seeds else ids
        return Wanted(self.name, self.version, cut_of(request), seeds)

    def graph_model(self) -> Model | None:
        """As `Computer.graph_model`; of one with several heads, none knows which a request is about."""
        return None if self._types else self.model

    def flush(self, metrics: ModelMetrics) -> None:
        """As `Computer.flush`: hits and misses of the state cache."""
        for cache in self.model.state_caches.values():
            metrics.state_cache_hits.inc(cache.num_hits)
            metrics.state_cache_misses.inc(cache.num_misses)
            cache.num_hits = cache.num_misses = 0

    def preprocessed(self, request: ScoreRequest) -> dict[str, AnyArray]:
        """As `Preprocessing.preprocessed`: feature rows and degrees of the request's own nodes."""
        if self._live is None:
            return seed_tensors(self.model, self.model.graph, self._seed_rows, request)
        with self._live.beside("records") as graph:
            return seed_tensors(self.model, graph, self._seed_rows, request)

    def info(self, versions: tuple[str, ...]) -> ModelInfo:
        """Description of this version for transports."""
        spec = self.model.spec
        head = spec.head
        named = [each for one in (head, *spec.heads) for each in one.outputs]
        ends = (head.dst_node_type or head.node_type,) if head.kind == "link" else ()
        ids = {name: self.model.graph.nodes[name].ids.kind for name in (*self.model.by_type, *ends)}
        datatypes = {name: "BYTES" if kind == "string" else "INT64" for name, kind in ids.items()}
        id_type, inputs = datatypes[head.node_type], tuple[TensorInfo, ...]()  # edges are a parameter
        if ends and not head.edge_type:
            inputs = (
                TensorInfo("src_ids", id_type, (-1,)),
                TensorInfo("dst_ids", datatypes[ends[0]], (-1,)),
            )
        elif not ends:
            dim = int(self.model.graph.nodes[head.node_type].features.shape[1])
            features = (TensorInfo("features", "FP32", (-1, dim), optional=True),)
            inputs = (
                TensorInfo("node_ids", id_type, (-1,), optional=True),
                *(self.model.encoder.inputs if self.model.encoder else features),
                TensorInfo("neighbors", id_type, (-1,), optional=True),
                TensorInfo("neighbor_counts", "INT64", (-1,), optional=True),
            )
        inputs += (TensorInfo("as_of", "INT64", (1,), optional=True),)
        return ModelInfo(
            name=self.name,
            versions=versions,
            version=self.version,
            state="READY",
            reason="",
            kind=head.kind,
            id_kind="string" if id_type == "BYTES" else "int",
            inputs=inputs,
            outputs=tuple(output.tensor for output in outputs_of(spec).values()),
            default_outputs=self.default_outputs,
            graph_version=self.model.graph.version,
            properties={
                "task": {each.name: each.task for each in named} or spec.task,
                "node_types": {name: "string" if kind == "string" else "int" for name, kind in ids.items()},
                "edge_type": head.edge_type,
                "exclude_seed_edges": head.exclude_seed_edges,
                "num_layers": spec.num_layers,
                "fanouts": {key: list(value) for key, value in spec.fanouts.items()},
                "sampling": spec.sampling,
                "max_degree": spec.max_degree,
                "classes": {each.name: each.classes for each in named} or list(spec.classes),
                "parity": spec.parity,
                "columns": [] if self.model.encoder is None else self.model.encoder.columns,
                "edge_columns": {k: e.columns for k, e in self.model.encoders.items() if "__" in k},
                **graph_model_hashes(spec),
            },
        )
