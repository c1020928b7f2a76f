"""The transport-neutral API: what HTTP, gRPC and queues translate to.

Knows models and versions by name; knows no status codes and no sockets. Which versions are loaded and which
of them answers is `rollout/lifecycle.py`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hopline.answering.served import Recorder, Scorer, SupportsPreflight, Version
from hopline.config.schema import Config
from hopline.config.urls import shown
from hopline.errors import (
    ArtifactError,
    BadRequest,
    ConfigError,
    FeatureGroupNotFound,
    FeatureSchemaMismatch,
    GraphError,
    HoplineError,
    ModelNotFound,
    ModelNotReady,
    PermissionDenied,
    SnapshotError,
    Unavailable,
)
from hopline.features.prefetcher import Prefetcher, open_prefetcher
from hopline.graph import Graph
from hopline.graph.live.version import read_version
from hopline.graph.live.view import LiveView
from hopline.models.loader import Loader
from hopline.observe.metrics import Metrics
from hopline.records.recorders import DriftRecorder, Recorders
from hopline.rollout.lifecycle import Lifecycle
from hopline.rollout.rollout import Rollout, RolloutRequest
from hopline.scheduling.work import Work
from hopline.types import Deliver, ModelInfo, OnPart, ScoreRequest, ScoreResult, Ticket

if TYPE_CHECKING:
    from hopline.answering.sources import Sources
    from hopline.live.updates import LiveUpdates
    from hopline.live.version_wait import VersionWait
    from hopline.scheduling.token_rate import TokenRates

log = logging.getLogger(__name__)

#: Preflights of one version.
_EXAMPLES = 24


class Service:
    """All models of one server process.

    Args:
        config: the resolved settings; `models.repository` is needed by `start`, and `graph.path` for
            models that read a graph.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.metrics = Metrics(config.worker.metrics_dir or None, config.worker.index)
        self._records = Recorders(config, self.metrics)
        #: Get every finished request; set before versions are loaded.
        self.recorders: list[Recorder] = list(self._records.all)
        self._lifecycle: Lifecycle | None = None
        self._loader: Loader | None = None
        #: model name -> who answers; the lifecycle's own.
        self._serving: dict[str, Scorer] = {}
        self._link: Prefetcher | None = None
        #: Takes changes to the graph; None where that is a snapshot.
        self.graph_updates: LiveUpdates | None = None
        #: Holds requests that need a later version of the live graph.
        self._version_wait: VersionWait | None = None
        self._ready = False
        self._draining = False

    async def start(self) -> None:
        """Open the graph, load every model and warm it up.

        Raises:
            ConfigError: a path that is needed is not set or not there.
            GraphError, ArtifactError: what cannot be opened, and why.
        """
        began = time.perf_counter()
        self._loader = Loader(self.config, self.metrics, self.recorders, self._resolve)
        self._loader.tools.inputs.on_sources = self._connect_prefetcher
        self._lifecycle = Lifecycle(self.config, self.metrics, self._loader, self.recorders)
        self._serving = self._lifecycle.loaded.serving
        self._records.start()
        if self.config.graph.path is not None:
            log.info("opening graph %s", shown(str(self.config.graph.path)))
        elif self.config.graph.store:
            log.info("opening the graph of %s", self.config.graph.store.rpartition("@")[2])
        await self._lifecycle.start()
        self.metrics.before_reading(
            lambda: [each.statistics() for each in self._all()]
        )  # counts kept apart
        if self.config.worker.live_memory and self.config.live.enabled:  # a replay changes the graph itself
            self._follow_graph()
        self._ready = True
        names = "; ".join(
            f"{name}: version {self._serving[name].version} answers, loaded are {', '.join(units)}"
            for name, units in self._lifecycle.loaded.units.items()
            if name in self._serving
        )
        if unavailable := self.unavailable():
            names += f" (unavailable: {', '.join(unavailable)})"
        own = self._loader.tools.inputs.own
        graph = "no graph"
        if own is not None:
            graph = f"graph {own.graph.version} ({own.graph.num_nodes} nodes, {own.graph.num_edges} edges)"
        log.info("started in %.2f s on %s; %s", time.perf_counter() - began, graph, names)

    @property
    def token_rates(self) -> TokenRates:
        """Tokens of generative models that clients may use. Only after `start`."""
        assert self._loader is not None
        return self._loader.tools.token_rates

    @property
    def drift(self) -> DriftRecorder | None:
        """Compares requests and answers with a reference; None where that is off."""
        return self._records.drift

    @property
    def log_id(self) -> str:
        """Identity of the prediction log (`records/names.py`); "" for none."""
        return self._records.log_id

    @property
    def sources(self) -> Sources | None:
        """Source of features that are not in the server's own graph."""
        own = None if self._loader is None else self._loader.tools.inputs.own
        return None if own is None else own.sources

    @contextlib.contextmanager
    def preflight(self) -> Iterator[list[ScoreRequest]]:
        """Requests to preflight with; requests meanwhile are neither counted nor recorded."""
        with contextlib.ExitStack() as stack:
            requests: list[ScoreRequest] = []
            for served in self._all():
                if isinstance(served, SupportsPreflight) and (examples := served.examples(_EXAMPLES)):
                    stack.enter_context(served.preflight())
                    requests += examples
            yield requests

    def begin_drain(self) -> None:
        """Refuse new requests; those admitted finish."""
        self._draining = True  # models stay open to the pipelines that are under way
        for served in self._all():
            if served.info((served.version,)).kind == "pipeline":
                served.close("the server is shutting down")

    async def drain(self, timeout_s: float) -> bool:
        """Wait for admitted requests; whether all finished in time."""
        try:
            async with asyncio.timeout(timeout_s):
                for served in self._all():
                    await served.join()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Close threads, stores and processes; after `drain`."""
        self._ready = False
        if self._link is not None:
            await self._link.close()
        if self._version_wait is not None:
            await self._version_wait.close()
        if self.graph_updates is not None:
            await self.graph_updates.close()
        await self._records.close()  # they still ask versions about themselves
        if self._lifecycle is not None:
            await self._lifecycle.close()

    # Scoring

    def submit(self, request: ScoreRequest, deliver: Deliver) -> Ticket:
        """Hand a request in; `deliver` is called with its outcome from the event loop.

        Raises: HoplineError: it was refused immediately; nothing is delivered.
        """
        work = Work(request, deliver)
        if request.keep:
            self._submit_kept(work)
        elif request.min_version:
            self._submit_at(work)
        else:
            self._accept(work)
        return work

    def stream(self, request: ScoreRequest, deliver: Deliver, on_part: OnPart) -> Ticket:
        """As `submit`; `on_part` gets parts of the outcome before, such as text as it is generated."""
        if request.keep:
            return self.submit(request, deliver)  # refused: parts are of texts
        work = Work(request, deliver, on_part=on_part)
        self._accept(work)
        return work

    def _accept(self, work: Work) -> None:
        request = work.request
        if request.version is None and not self._draining:
            served = self._serving.get(request.model)
            if served is not None:
                served.accept(work)
                return
        if self._draining:
            raise Unavailable("the server is shutting down")
        self._resolve(request.model, request.version).accept(work)

    def _submit_kept(self, work: Work) -> None:
        """Hand in a request whose inline nodes become nodes of the live graph."""
        request = work.request
        if self.graph_updates is None:
            raise BadRequest("keep: this server's graph is read-only; serve it with live.enabled (--live)")
        if self.config.authenticates and not request.client:
            raise PermissionDenied("keep changes the graph, and this request has no client that may do so")
        if self._draining:
            raise Unavailable("the server is shutting down")
        self.check_version(request)
        served = self._resolve(request.model, request.version)
        served.reject_early()
        self.graph_updates.keep(work, served.info(()), self._accept)

    def _submit_at(self, work: Work) -> None:
        """Hand in a request that needs a version of the graph, or a later one."""
        from hopline.live.version_wait import checked

        wanted = read_version(work.request.min_version, "min_version")
        work.deliver = checked(work.deliver, wanted)
        if self._version_wait is not None and not self._draining:
            self._version_wait.submit(work, wanted)
        else:
            self._accept(work)

    def reject_early(self, model: str) -> None:
        """Refuse a request that names no version unread, where nothing it says could change that.

        A flood is then refused for a part of what reading it would take.

        Raises: HoplineError: as `submit` would.
        """
        if not self._draining and (served := self._serving.get(model)) is not None:
            served.reject_early()

    def is_pressed(self) -> bool:
        """True if a queue has something to run on this loop, and has not had its turn yet."""
        return self._loader is not None and bool(self._loader.tools.turnstile.waiting)

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Answer one request; cancelling withdraws it.

        Raises: HoplineError: of any kind; see errors.py.
        """
        future: asyncio.Future[ScoreResult] = asyncio.get_running_loop().create_future()

        def deliver(outcome: ScoreResult | HoplineError) -> None:
            if future.done():  # cancelled, and this coroutine has not run since
                return
            if isinstance(outcome, HoplineError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        ticket = self.submit(request, deliver)
        try:
            return await future
        finally:
            ticket.cancel()  # nothing once it is answered

    def check_version(self, request: ScoreRequest) -> None:
        """Check, without waiting, that the live graph has the request's `min_version`.

        Raises: GraphBehind: not yet. BadRequest: `min_version` is no version.
        """
        if request.min_version and self._version_wait is not None:
            self._version_wait.check(read_version(request.min_version, "min_version"))

    # What there is

    def live(self) -> bool:
        """True if the process works at all."""
        return True

    def ready(self) -> bool:
        """True if requests are accepted, and at least one model can answer them."""
        is_current = self.graph_updates is None or self.graph_updates.is_current
        return self._ready and not self._draining and is_current and bool(self._serving)

    def model_names(self) -> tuple[str, ...]:
        """Names of the models that are served."""
        return tuple(self._serving)

    def describe(self, name: str, version: str | None = None) -> ModelInfo:
        """One model version; None means the one that serves.

        Raises:
            ModelNotFound: naming what there is.
            ModelNotReady: it is wanted, and could not be loaded.
        """
        return self._resolve(name, version).info(tuple(self._units(name)))

    def unavailable(self) -> dict[str, str]:
        """Models that cannot serve, though the others do: name -> why."""
        if self._lifecycle is None:
            return {}
        failed = self._lifecycle.loaded.unavailable()
        return {named.rpartition("/")[0]: str(failure) for named, failure in failed.items()}

    def differing(self) -> dict[str, str]:
        """Versions that other hosts have with another graph or files: "model/unit" -> what differs."""
        return {} if self._lifecycle is None else dict(self._lifecycle.differing)

    def index(self) -> list[dict[str, str]]:
        """Every version of every model in the repository with its state, as the protocol's index has it."""
        assert self._lifecycle is not None
        return self._lifecycle.loaded.index()

    def statistics(self, name: str) -> list[dict[str, Any]]:
        """Counters of each version, in the form of the protocol's ModelStatistics."""
        self._resolve(name, None)
        return [served.statistics() for served in self._units(name).values()]

    # Lifecycle

    async def load(
        self,
        name: str,
        version: str | None = None,
        *,
        graph: str = "",
        groups: tuple[str, ...] = (),
        serve: bool = True,
        force: bool = False,
    ) -> str:
        """Load a version and let it serve; see `Lifecycle.load`."""
        with _caller_faults():
            return await self._changing().load(
                name, version, graph=graph, groups=groups, serve=serve, force=force
            )

    async def unload(self, name: str, version: str | None = None) -> None:
        """Unload a version or a whole model; see `Lifecycle.unload`."""
        await self._changing().unload(name, version)

    async def begin_rollout(self, wanted: RolloutRequest) -> Rollout:
        """Begin a rollout; see `Lifecycle.begin`."""
        with _caller_faults():
            return await self._changing().begin(wanted)

    async def decide_rollout(self, name: str, verb: str, why: str = "") -> dict[str, Any]:
        """Promote, roll back, pause, resume, advance or end; see `Lifecycle.decide`."""
        return await self._changing().decide(name, verb, why)

    def describe_rollout(self, name: str) -> dict[str, Any]:
        """A model's versions and rollouts; see `Lifecycle.describe`."""
        assert self._lifecycle is not None
        return self._lifecycle.describe(name)

    def _changing(self) -> Lifecycle:
        if self._draining or self._lifecycle is None:
            raise Unavailable("the server is shutting down")
        return self._lifecycle

    def _resolve(self, name: str, version: str | None) -> Scorer:
        served: Scorer | None = (
            self._serving.get(name) if version is None else self._units(name).get(version)
        )
        if served is not None:
            return served
        assert self._lifecycle is not None
        if version is not None:
            served = self._units(name).get(self._lifecycle.unit_of_version(name, version))
            if served is not None:
                return served
        self._lifecycle.loaded.check_wanted(name, version)
        units = self._units(name)
        if not units:
            raise ModelNotFound(f"no model {name!r}", self._serving)
        if version is None:
            raise ModelNotReady(
                f"model {name!r} has no version that serves; loaded are: {', '.join(units)}"
            )
        raise ModelNotFound(f"model {name!r} has no version {version!r}; there are: {', '.join(units)}")

    def _units(self, name: str) -> dict[str, Version]:
        assert self._lifecycle is not None
        return self._lifecycle.loaded.units.get(name, {})

    def _all(self) -> list[Version]:
        return [] if self._lifecycle is None else self._lifecycle.loaded.all()

    def _follow_graph(self) -> None:
        from hopline.answering.live_graph import open_live_graph
        from hopline.config.folders import live_socket
        from hopline.live.updates import LiveUpdates
        from hopline.live.version_wait import VersionWait

        assert self._loader is not None
        own = self._loader.tools.inputs.own
        graph = own.graph.another() if own is not None and isinstance(own.graph, LiveView) else None
        self.graph_updates = LiveUpdates(
            graph or open_live_graph(self.config),
            live_socket(self.config),
            self.config.worker.index,
            self.metrics,
            self.config,
        )
        self.graph_updates.start()
        wait_s = self.config.live.min_version_wait_ms / 1e3
        memory = self.graph_updates.memory
        self._version_wait = VersionWait(memory, self._accept, wait_s, self.metrics)

    def _connect_prefetcher(self, sources: Sources, graph: Graph) -> None:
        path, shared = self.config.features.prefetcher, sources.shared
        if path is None or shared is None:
            return
        self._link = open_prefetcher(path, graph.version, shared.identity, self.config, self.metrics)
        sources.prefetcher = self._link


@contextlib.contextmanager
def _caller_faults() -> Iterator[None]:
    """Errors of what a caller asked to be loaded are the caller's, not this server's.

    Raises:
        BadRequest: an address or a setting in the request cannot be used.
        ArtifactError: the graph or the features that it names cannot be used.
    """
    try:
        yield
    except SnapshotError:
        raise
    except ConfigError as error:
        raise BadRequest(str(error)) from error
    except (GraphError, FeatureGroupNotFound, FeatureSchemaMismatch) as error:
        raise ArtifactError(str(error)) from error
