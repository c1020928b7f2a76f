"""One loaded model version behind its queue: checks requests, predicts their cost, answers them."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from hopline.config import Config
from hopline.engine.answer import Answerer, Supply
from hopline.engine.ego import EgoModel
from hopline.engine.model import Model
from hopline.engine.outputs import default_outputs
from hopline.engine.source import Absent, Overlay
from hopline.errors import BadRequest, DeadlineExceeded, HoplineError, RequestTooLarge
from hopline.observe.metrics import ModelMetrics
from hopline.rollout.sidecar import Wanted
from hopline.sampling.keyed import NO_CUT
from hopline.scheduling.batcher import Batcher
from hopline.scheduling.policy import BatchPolicy, CostModel
from hopline.types import Deliver, IdArray, ModelInfo, ScoreRequest, ScoreResult, TensorInfo

if TYPE_CHECKING:
    from hopline.rollout.sources import Sources
    from hopline.rollout.supplier import Supplier

#: Batches whose figures wait to be brought into the metrics.
_RAN_TOGETHER = 64


_NOTHING_YET = Supply()


class QueuedRequest(msgspec.Struct, eq=False, gc=False):
    """A request in a version's queue; see `scheduling.batcher.Item`. To its sender, a `Ticket`.

    Attributes:
        supply, absent: feature rows that were fetched for it, and those that it lacked when it was last
            tried.
        patient_until: when it goes on without them; 0 while it has not waited.
    """

    request: ScoreRequest
    deliver: Deliver
    batcher: Batcher[Any, ScoreResult]
    rows: int
    num_bytes: int
    deadline: float
    enqueued: float = 0.0
    ended: bool = False
    supply: Supply = _NOTHING_YET
    absent: Absent | None = None
    patient_until: float = 0.0

    def cancel(self) -> None:
        """Withdraw the request; nothing is delivered any more."""
        self.batcher.withdraw(self)


class ServedVersion:
    """A model version that takes requests.

    Args:
        model: loaded, used by nobody else.
        config: limits, batching and compute settings.
        metrics: of this model version.
        executor: runs dear batches.
        sources: of its features, where they do not lie in the graph.
    """

    def __init__(
        self,
        model: Model | EgoModel,
        config: Config,
        metrics: ModelMetrics,
        executor: Executor,
        sources: Sources | None = None,
    ) -> None:
        self.model = model
        self.name = model.spec.name
        self.version = model.spec.version
        self._limits = config.limits
        self._max_nodes = config.limits.max_nodes_per_request
        self._default_timeout_s = config.limits.default_timeout_ms / 1e3
        self._is_link = model.spec.head.kind == "link"
        self._metrics = metrics
        task = model.spec.task
        self.output_names = model.output_names
        self.default_outputs = default_outputs(task)
        self._answerer = Answerer(model, self.default_outputs, config.limits.max_inline_neighbors)
        self._has_times = any(model.graph.edges[key].time is not None for key in model.spec.fanouts)
        self._rows_per_seed = _rows_per_seed(model)
        self._row_bytes = 4 * max(
            stage.state_dim for level in model.spec.levels for stage in level.values()
        )
        batching = config.batching
        self.batcher: Batcher[QueuedRequest, ScoreResult] = Batcher(
            self._run,
            BatchPolicy(
                max_rows=batching.max_rows,
                max_bytes=batching.max_bytes,
                queue_delay_s=batching.queue_delay_ms / 1e3,
                max_queue_rows=batching.max_queue_rows,
                inline_cost_us=config.compute.inline_cost_us,
            ),
            CostModel(),
            executor,
            self,
        )
        self._supplier: Supplier | None = None
        if sources is not None and sources.near:
            from hopline.rollout.supplier import Supplier

            self._supplier = Supplier(sources.near, config.features.fetch_timeout_ms / 1e3, sources.sidecar)
            self._feature_metrics = sources.metrics
            self._fetched_rows = sources.fetched_rows(self.name, self.version)
        self._ran: list[tuple[int, Sequence[float], float, float]] = []
        self.num_ok = self.num_failed = self.num_batches = 0
        self.success_s = self.queue_s = 0.0
        self.last_inference_ms = 0

    def warm_up(self) -> None:
        """Answer a few requests, so that the first real one finds kernels and sessions ready."""
        head = self.model.spec.head
        nodes = self.model.graph.nodes[head.node_type]
        for count in (1, min(33, nodes.num_nodes)):
            ids = nodes.ids.external(np.arange(count))
            if head.kind == "link":
                other = self.model.graph.nodes[head.dst_node_type or head.node_type]
                # the two sides may differ in size
                targets = other.ids.external(np.zeros(count, np.int64))
                request = ScoreRequest(self.name, pairs=(ids, targets), outputs=self.output_names)
            else:
                request = ScoreRequest(self.name, nodes=ids, outputs=self.output_names)
            # with what there is: the store's rows come with the first requests
            for outcome in self._answerer.answer_supplied([request], [Supply(is_last=True)]):
                if isinstance(outcome, HoplineError):
                    raise outcome

    def submit(self, request: ScoreRequest, deliver: Deliver) -> QueuedRequest:
        """Check a request and queue it; `deliver` is called with its outcome.

        Raises:
            BadRequest, RequestTooLarge: it can never be answered; nothing was queued.
            DeadlineExceeded, Overloaded, Unavailable: it cannot be answered now.
        """
        try:
            if request.inline or request.outputs or request.as_of is not None or self._is_link:
                num_seeds = self._check(request)
            else:  # the usual request, without a detour
                num_seeds = len(request.nodes)
                if not 0 < num_seeds <= self._max_nodes or request.pairs is not None:
                    self._check(request)
            now = time.monotonic()
            deadline = request.deadline
            if deadline is None:
                deadline = now + self._default_timeout_s
            elif deadline <= now:
                raise DeadlineExceeded("the request's deadline had passed when it arrived")
            else:
                deadline = min(deadline, now + self._limits.max_timeout_ms / 1e3)
            rows = int(num_seeds * self._rows_per_seed)
            item = QueuedRequest(request, deliver, self.batcher, rows, rows * self._row_bytes, deadline)
            self.batcher.submit(item)
        except HoplineError as error:
            self.outcome(error.code)
            raise
        return item

    async def bring(
        self, absent: Absent, overlays: dict[str, list[Overlay]], timeout_s: float
    ) -> dict[str, int]:
        """Fetch rows and add them to `overlays`; how many did not come, by reason."""
        assert self._supplier is not None
        return await self._supplier.fetch(absent, overlays, timeout_s)

    def _check(self, request: ScoreRequest) -> int:
        """Number of seeds of a request that is well-formed."""
        for name in request.outputs:
            if name not in self.output_names:
                raise BadRequest(
                    f"output {name!r} is unknown; model {self.name!r} has {', '.join(self.output_names)}"
                )
        if request.as_of is not None and not self._has_times:
            raise BadRequest(
                f"as_of: no edge type that model {self.name!r} reads has times in graph "
                f"{self.model.graph.version}; leave as_of out"
            )
        if self.model.spec.head.kind == "link":
            return self._check_pairs(request)
        if request.pairs is not None:
            raise BadRequest(f"model {self.name!r} scores nodes; ask with nodes or inline, not with pairs")
        num_seeds = len(request.nodes) + len(request.inline)
        self._check_count(num_seeds, "nodes")
        if request.inline:
            # A described neighbour costs what one of a seed's own sampled neighbours costs.
            num_seeds += sum(len(ids) for node in request.inline for ids in node.neighbors.values())
        return num_seeds

    def _check_pairs(self, request: ScoreRequest) -> int:
        if len(request.nodes) or request.inline or request.pairs is None:
            raise BadRequest(f"model {self.name!r} scores links; ask with pairs, not with nodes")
        sources, targets = request.pairs
        if len(sources) != len(targets):
            raise BadRequest(f"pairs: {len(sources)} sources but {len(targets)} destinations")
        self._check_count(len(sources), "pairs")
        return 2 * len(sources)

    def _check_count(self, count: int, what: str) -> None:
        if count == 0:
            raise BadRequest(f"the request names no {what}; at least one is needed")
        if count > self._limits.max_nodes_per_request:
            raise RequestTooLarge(
                f"{count} {what} in one request; at most {self._limits.max_nodes_per_request} are allowed "
                "(limits.max_nodes_per_request)"
            )

    def _run(self, batch: list[QueuedRequest]) -> Sequence[ScoreResult | HoplineError | None]:
        if self._supplier is None:
            return self._answerer.answer([item.request for item in batch])
        outcomes = self._answerer.answer_supplied(
            [item.request for item in batch], [item.supply for item in batch]
        )
        results: list[ScoreResult | HoplineError | None] = []
        for item, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Absent):
                item.absent = outcome
                results.append(None)
            else:
                results.append(outcome)
                if isinstance(outcome, ScoreResult) and outcome.degraded:
                    self._feature_metrics.degraded(self.name, outcome.degraded)
        return results

    def postponed(self, item: QueuedRequest) -> None:
        """Fetch the feature rows that a request lacks, and put it back."""

        def resume(supply: Supply, until: float) -> None:
            item.supply, item.patient_until, item.absent = supply, until, None
            self.batcher.resume(item)

        assert self._supplier is not None
        assert item.absent is not None
        self._fetched_rows.observe(sum(ids.shape[0] for ids in item.absent.absent.values()))
        self._supplier.begin(
            item.absent, item.supply, item.patient_until, resume, lambda: self._wanted(item.request)
        )

    def _wanted(self, request: ScoreRequest) -> Wanted | None:
        """What a request is about; None where inline nodes are part of it."""
        if request.inline:
            return None
        head = self.model.spec.head
        sides = (request.nodes,) if request.pairs is None else request.pairs
        types = (head.node_type, head.dst_node_type or head.node_type)
        seeds: dict[str, IdArray] = {}
        for node_type, external in zip(types, sides, strict=False):
            ids = self.model.graph.nodes[node_type].ids.lookup(external)
            ids = ids[ids >= 0]
            seeds[node_type] = np.concatenate([seeds[node_type], ids]) if node_type in seeds else ids
        as_of = NO_CUT if request.as_of is None else request.as_of
        return Wanted(self.name, self.version, as_of, seeds)

    def batch(self, num_items: int, rows: int, queue_s: Sequence[float], compute_s: float) -> None:
        """Take note of a batch that ran."""
        self._ran.append((num_items, queue_s, compute_s, time.time()))
        if len(self._ran) >= _RAN_TOGETHER:
            self.record()

    def record(self) -> None:
        """Bring the batches that ran since into the metrics: together they cost a third of one by one."""
        if not self._ran:
            return
        ran, self._ran = self._ran, []
        metrics = self._metrics
        for num_items, queue_s, compute_s, _ in ran:
            metrics.compute.observe(compute_s)
            metrics.batch_rows.observe(num_items)
            metrics.queue.observe_all(queue_s)
            metrics.total.observe_all([waited + compute_s for waited in queue_s])
            self.queue_s += sum(queue_s)
            self.success_s += num_items * compute_s
        self.num_batches += len(ran)
        self.last_inference_ms = int(ran[-1][3] * 1e3)
        for table in self.model.tables.values():
            metrics.table_hits.inc(table.num_hits)
            metrics.table_misses.inc(table.num_misses)
            table.num_hits = table.num_misses = 0

    def outcome(self, code: str, count: int = 1) -> None:
        """Count ended requests."""
        if code == "ok":
            self.num_ok += count
        else:
            self.num_failed += count
        if count:
            self._metrics.outcome(code, count)

    def info(self, versions: tuple[str, ...]) -> ModelInfo:
        """What transports tell about this version."""
        spec = self.model.spec
        head = spec.head
        index = self.model.graph.nodes[head.node_type].ids
        id_type = "BYTES" if index.kind == "string" else "INT64"
        if head.kind == "link":
            inputs: tuple[TensorInfo, ...] = (
                TensorInfo("src_ids", id_type, (-1,)),
                TensorInfo("dst_ids", id_type, (-1,)),
            )
        else:
            dim = int(self.model.graph.nodes[head.node_type].features.shape[1])
            inputs = (
                TensorInfo("node_ids", id_type, (-1,), optional=True),
                TensorInfo("features", "FP32", (-1, dim), optional=True),
                TensorInfo("neighbors", id_type, (-1,), optional=True),
                TensorInfo("neighbor_counts", "INT64", (-1,), optional=True),
            )
        inputs += (TensorInfo("as_of", "INT64", (1,), optional=True),)
        a, b = head.embedding or (0, self.model.state_dim)
        shapes: dict[str, tuple[str, tuple[int, ...]]] = {
            "embedding": ("FP32", (-1, b - a)),
            "logits": ("FP32", (-1, head.output_dim)),
            "probabilities": ("FP32", (-1,) if spec.task == "binary" else (-1, head.output_dim)),
            "label": ("INT64", (-1, head.output_dim) if spec.task == "multilabel" else (-1,)),
        }
        return ModelInfo(
            name=self.name,
            versions=versions,
            version=self.version,
            state="READY",
            reason="",
            kind=head.kind,
            id_kind="string" if index.kind == "string" else "int",
            inputs=inputs,
            outputs=tuple(TensorInfo(name, *shapes[name]) for name in self.output_names),
            default_outputs=self.default_outputs,
            graph_version=self.model.graph.version,
            properties={
                "task": spec.task,
                "runtime": spec.runtime,
                "num_layers": spec.num_layers,
                "fanouts": {key: list(value) for key, value in spec.fanouts.items()},
                "sampling": spec.sampling,
                "max_degree": spec.max_degree,
                "classes": list(spec.classes),
                "parity": spec.parity,
                "why_whole": spec.why_whole,
            },
        )

    def statistics(self) -> dict[str, Any]:
        """Counters in the form of the protocol's ModelStatistics."""
        self.record()
        success = {"count": self.num_ok, "ns": int(self.success_s * 1e9)}
        queue = {"count": self.num_ok, "ns": int(self.queue_s * 1e9)}
        return {
            "name": self.name,
            "version": self.version,
            "last_inference": self.last_inference_ms,
            "inference_count": self.num_ok,
            "execution_count": self.num_batches,
            "inference_stats": {
                "success": success,
                "fail": {"count": self.num_failed, "ns": 0},
                "queue": queue,
                "compute_input": {"count": 0, "ns": 0},
                "compute_infer": success,
                "compute_output": {"count": 0, "ns": 0},
            },
        }


def _rows_per_seed(model: Model | EgoModel) -> float:
    """Predicted rows for each seed: sampled neighbours of all hops, by fanout or mean degree."""
    spec = model.spec
    total = width = 1.0
    for hop in range(model.num_hops):
        widest = 0.0
        for key, fanouts in spec.fanouts.items():
            adjacency = model.graph.edges[key]
            fanout = float(fanouts[hop]) if fanouts[hop] >= 0 else math.inf
            if spec.max_degree is not None:
                fanout = min(fanout, spec.max_degree)
            # A neighbour is popular more often than not: its own list is longer than the mean one.
            num_destinations = max(1, model.graph.nodes[adjacency.dst].num_nodes)
            mean = adjacency.num_edges / num_destinations
            widest += min(fanout, max(1.0, 2.0 * mean))
        width *= widest
        total += width
    return total
