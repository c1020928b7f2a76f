"""Units that are loaded in this process, and the one that answers: follows the shared state.

Adopting a state switches and unloads immediately; what is missing is loaded meanwhile, and takes its place
when it is loaded. A load that failed for a reason that may pass, such as a store that does not answer, is
tried again with growing pauses. A unit that is not wanted any more gets no new requests from that moment;
those that it accepted finish, and then all that it holds is released. A unit that is loaded and that no
state wants yet takes no requests at all. All who need a unit, callers and states, wait for the same load of
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

from hopline.answering.served import Scorer, Version
from hopline.answering.unit import Unit
from hopline.errors import GraphError, HoplineError, ModelNotReady
from hopline.models.load import Load
from hopline.models.loader import Loader
from hopline.observe.metrics import Metrics
from hopline.retry import Backoff
from hopline.rollout.judge import RolloutJudge
from hopline.rollout.shared_work import SharedWork
from hopline.rollout.split import Mirror, Split
from hopline.rollout.state import LifecycleState, ModelState

log = logging.getLogger(__name__)

#: Seconds between two loads of a unit whose failure may pass: the first wait, and the longest.
_FIRST_S, _LONGEST_S = 0.5, 30.0


@dataclass(slots=True)
class Failure:
    """The failed loads of a unit that is wanted.

    Attributes:
        error: of the last one.
        attempts: loads that failed in a row.
        next_at: when it is loaded again, on `time.monotonic`; None: only on request.
        waits: between the loads.
        timer: begins the next load.
    """

    error: HoplineError
    attempts: int = 0
    next_at: float | None = None
    waits: Backoff = field(default_factory=lambda: Backoff(_FIRST_S, _LONGEST_S))
    timer: asyncio.TimerHandle | None = None

    @property
    def cause(self) -> str:
        """The last error as "<code>: <message>"."""
        return f"{self.error.code}: {self.error}"

    def retry_after_s(self) -> float:
        """Seconds until the next load, at least 1."""
        return 1.0 if self.next_at is None else max(1.0, self.next_at - time.monotonic())

    def __str__(self) -> str:
        """The cause, and what is done about it."""
        if self.next_at is None:
            return self.cause
        left_s = max(0.0, self.next_at - time.monotonic())
        return f"{self.cause} (attempt {self.attempts} failed; the next one is in {left_s:.1f} s)"


class LoadedUnits:
    """The units that are loaded in this process, and where requests go.

    Attributes:
        state: that is followed.
        serving: model name -> who answers requests that name no version.
        units: model name -> unit id -> loaded and wanted, oldest first.
        failed: (model, unit id) -> why this process could not load it, and when it tries again.
    """

    def __init__(
        self, loader: Loader, judge: RolloutJudge, settled: Callable[[], object], metrics: Metrics
    ) -> None:
        self.state = LifecycleState()
        self.serving: dict[str, Scorer] = {}
        self.units: dict[str, dict[str, Version]] = {}
        self.failed: dict[tuple[str, str], Failure] = {}
        self._unavailable = metrics.gauge(
            "hopline_model_unavailable",
            "Workers that could not load a version which is wanted.",
            ("model", "version"),
        )
        self._failures = metrics.counter(
            "hopline_model_load_failures_total",
            "Failed loads of versions that are wanted; those whose cause may pass are repeated.",
            ("model", "version", "code"),
        )
        self._loader = loader
        self._judge = judge
        self._settled = settled
        #: Everything that is loaded, until it is unloaded.
        self._loaded: dict[tuple[str, str], Load] = {}
        self._loads: SharedWork[tuple[str, str], None] = SharedWork("a load")
        #: Callers that need a unit which the state need not want yet.
        self._needed: Counter[tuple[str, str]] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def model(self, name: str) -> ModelState | None:
        """The state of a model, if there is such a model."""
        return self.state.models.get(name)

    def all(self) -> list[Version]:
        """Every unit that takes requests."""
        return [served for units in self.units.values() for served in units.values()]

    async def close(self) -> None:
        """Release everything; after the last request."""
        self._closing = True
        for failure in self.failed.values():
            if failure.timer is not None:
                failure.timer.cancel()
        await self._loads.join()
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        for load in self._loaded.values():
            await load.give_back()
        self._loaded.clear()

    def index(self) -> list[dict[str, str]]:
        """Every unit that is wanted, and every version in the repository that is not, with its state.

        What is in the repository is as it was at most a few seconds ago: to ask it may take a while.
        """
        rows = []
        for name, state in self.state.models.items():
            for unit in state.units:
                ready = unit.id in self.units.get(name, {})
                why = self.why(name, unit.id)
                word = "READY" if ready else "UNAVAILABLE" if why else "LOADING"
                rows.append({"name": name, "version": unit.id, "state": word, "reason": why})
        known = {(row["name"], row["version"]) for row in rows}
        for name, versions in self._loader.listing().items():
            for version in versions:
                if (name, version) not in known:
                    row = {"name": name, "version": version, "state": "UNAVAILABLE"}
                    rows.append(row | {"reason": "not loaded"})
        return sorted(rows, key=lambda row: row["name"])

    def why(self, name: str, unit_id: str) -> str:
        """Why this process could not load a unit, and when it tries again; "" where it did not fail."""
        failure = self.failed.get((name, unit_id))
        return "" if failure is None else str(failure)

    def contents(self) -> dict[str, str]:
        """Graph and artifact of every unit that takes requests, by "model/unit"."""
        found = {
            f"{name}/{unit_id}": _content_of(served)
            for name, units in self.units.items()
            for unit_id, served in units.items()
        }
        return {unit: content for unit, content in found.items() if content}

    def unavailable(self) -> dict[str, Failure]:
        """Models that cannot serve, as "<model>/<unit>", and why: the unit that serves was not loaded."""
        return {
            f"{name}/{state.serving}": self.failed[name, state.serving]
            for name, state in self.state.models.items()
            if name not in self.serving and (name, state.serving) in self.failed
        }

    def check_enough(self, required: str) -> None:
        """Check that enough models can serve to begin, by `models.required`. Raises: HoplineError."""
        failed = self.unavailable()
        if not failed or required == "none" or (self.serving and required == "any"):
            return
        if len(failed) == 1 and not self.serving:
            raise next(iter(failed.values())).error
        listed = "; ".join(f"{name}: {failure.error}" for name, failure in failed.items())
        all_needed = "models.required = all: not every model can serve"
        raise ModelNotReady(f"{all_needed if self.serving else 'no model can serve'}: {listed}")

    def _fail(self, name: str, unit_id: str, error: HoplineError) -> None:
        """A unit that is wanted could not be loaded: it is unavailable until a further load succeeds."""
        failure = self.failed.setdefault((name, unit_id), Failure(error))
        failure.error, failure.next_at = error, None
        failure.attempts += 1
        self._unavailable(name, unit_id).set(1)
        self._failures(name, unit_id, error.code).inc()
        state = self.model(name)
        # A trial that fails ends its change: only what the fleet has agreed on is tried again.
        is_agreed = state is not None and state.unit(unit_id) is not None
        if error.may_pass and is_agreed and not self._closing:
            wait_s = failure.waits.next()
            failure.next_at = time.monotonic() + wait_s
            if failure.timer is not None:
                failure.timer.cancel()
            loop = asyncio.get_running_loop()
            failure.timer = loop.call_later(wait_s, self._try_again, name, unit_id)
        log.error("cannot load %s/%s, which is unavailable: %s", name, unit_id, failure)

    def follow_files(self) -> None:
        """Let no unit answer whose files are damaged; load those again whose files were written to."""
        for (name, unit_id), load in list(self._loaded.items()):
            if load.files is not None and load.files.damage:
                self._withdraw(name, unit_id, GraphError(load.files.damage))
            elif load.is_suspect and (name, unit_id) not in self._loads:
                log.warning("%s is loaded again: files of its graph were written to, and are right", load)
                self._spawn(self._load_wanted(name, load.unit))

    def _withdraw(self, name: str, unit_id: str, error: HoplineError) -> None:
        """A unit is unavailable until it is loaded again."""
        self._retire(name, unit_id, forget=False)
        self._fail(name, unit_id, error)
        self.route(name)
        self._settled()

    def _try_again(self, name: str, unit_id: str) -> None:
        state = self.model(name)
        unit = None if state is None else state.unit(unit_id)
        if unit is not None and (name, unit_id) in self.failed and not self._closing:
            self._spawn(self._load_wanted(name, unit))

    def _unfail(self, name: str, unit_id: str) -> None:
        failure = self.failed.pop((name, unit_id), None)
        if failure is not None:
            self._unavailable(name, unit_id).set(0)
            if failure.timer is not None:
                failure.timer.cancel()

    def check_wanted(self, model: str, version: str | None) -> None:
        """Raise ModelNotReady where a wanted unit is not loaded in this worker, with the reason."""
        state = self.model(model)
        if state is None:
            return
        unit_id = state.serving if version is None else version
        if unit_id and state.unit(unit_id) is not None and unit_id not in self.units.get(model, {}):
            failure = self.failed.get((model, unit_id))
            if failure is None:
                raise ModelNotReady(f"{model}/{unit_id} is not ready: it is being loaded")
            raise ModelNotReady(f"{model}/{unit_id} is not ready: {failure}", failure.retry_after_s())

    def adopt(self, state: LifecycleState) -> None:
        """Switch and unload immediately; begin to load what is missing."""
        if state.generation <= self.state.generation:
            return  # another task was faster
        before, self.state = self.state.models, state
        for name, model in state.models.items():
            wanted = model.wanted
            again = name in before and before[name].tries != model.tries
            for unit_id in [unit_id for other, unit_id in self.failed if other == name]:
                if again or unit_id not in wanted:
                    self._unfail(name, unit_id)
                if unit_id not in wanted:
                    self._loader.forget(name, unit_id)
            self.route(name)
            for unit_id in [unit_id for other, unit_id in self._loaded if other == name]:
                if unit_id not in wanted and not self._needed[name, unit_id]:
                    self._retire(name, unit_id)
        self.load_missing()
        self._settled()

    def load_missing(self) -> None:
        """Begin to load what the state wants and is neither loaded nor failed."""
        for name, model in self.state.models.items():
            for unit_id, unit in model.wanted.items():
                key = name, unit_id
                if key not in self._loaded and key not in self.failed and key not in self._loads:
                    self._spawn(self._load_wanted(name, unit))

    @property
    def is_settled(self) -> bool:
        """True if all that the state wants is loaded, or could not be."""
        return all(
            (name, unit_id) in self._loaded or (name, unit_id) in self.failed
            for name, model in self.state.models.items()
            for unit_id in model.wanted
        )

    async def _load_wanted(self, name: str, unit: Unit) -> None:
        with contextlib.suppress(HoplineError):  # `why` says it from then on
            await self.load(name, unit)

    def wants(self, name: str, unit_id: str) -> bool:
        """True if the state that is followed has a unit."""
        state = self.model(name)
        return state is not None and unit_id in state.wanted

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @contextlib.contextmanager
    def needed(self, name: str, unit_id: str) -> Iterator[None]:
        """A unit stays loaded meanwhile, also where the state does not want it."""
        self._needed[name, unit_id] += 1
        try:
            yield
        finally:
            self._needed[name, unit_id] -= 1
            self._keep_or_retire(name, unit_id)

    async def load(self, name: str, unit: Unit) -> None:
        """Load a unit, unless it is loaded and not suspect; wait for a running load of it, if there is one.

        A caller that is cancelled stops no load.

        Raises: HoplineError: it cannot be loaded, or it is loaded and its content has changed since.
        """
        load = self._loaded.get((name, unit.id))
        if load is not None and not load.is_suspect:
            await self._loader.check_unchanged(load)
        else:
            await self._loads.result((name, unit.id), lambda: self._load(name, unit))

    async def _load(self, name: str, unit: Unit) -> None:
        began = time.perf_counter()
        try:
            load = await self._loader.load(name, unit)
        except HoplineError as error:
            if (name, unit.id) in self._loaded:
                self._withdraw(name, unit.id, error)
            elif self.wants(name, unit.id):
                self._fail(name, unit.id, error)
            raise
        else:
            if (name, unit.id) in self._loaded:
                self._retire(name, unit.id, forget=False)  # suspect
            self._loaded[name, unit.id] = load
            self._unfail(name, unit.id)
            log.info("loaded %s/%s in %.2f s", name, unit.id, time.perf_counter() - began)
            self._keep_or_retire(name, unit.id)  # the state may have changed by now
        finally:
            self._settled()

    def served(self, name: str, unit_id: str) -> Version:
        """A unit that is loaded, whether or not it takes requests yet."""
        return self._loaded[name, unit_id].served

    def _keep_or_retire(self, name: str, unit_id: str) -> None:
        if self.wants(name, unit_id):
            self.route(name)
        elif (name, unit_id) in self._loaded and not self._needed[name, unit_id]:
            self._retire(name, unit_id)
        if not self._needed[name, unit_id]:
            del self._needed[name, unit_id]

    def _retire(self, name: str, unit_id: str, *, forget: bool = True) -> None:
        load = self._loaded.pop((name, unit_id))
        if forget:
            self._loader.forget(name, unit_id)
        served = load.served
        served.close(f"{name}/{unit_id} was unloaded")

        async def finish() -> None:
            await served.join()
            await load.give_back()
            log.info("unloaded %s/%s", name, unit_id)

        self._spawn(finish())

    def route(self, name: str) -> None:
        """Route requests as the state says; between two requests."""
        before = self.serving.get(name)
        state = self.model(name)
        wanted = () if state is None else state.units
        units = {
            unit.id: self._loaded[name, unit.id].served
            for unit in wanted
            if (name, unit.id) in self._loaded
        }
        self.units[name] = units
        if not units:
            del self.units[name]
        serving = units.get(state.serving) if state is not None else None
        rollout = state.rollout if state is not None else None
        candidate = units.get(rollout.candidate) if rollout is not None else None
        if rollout is None or serving is None or candidate is None:
            self._judge.leave(name)
            after: Scorer | None = serving
        else:
            after = self._judge.between(rollout, serving, candidate)
        if isinstance(before, Split | Mirror) and before is not after:
            before.withdraw()
        if after is None:
            self.serving.pop(name, None)
        else:
            self.serving[name] = after


def _content_of(served: Version) -> str:
    """Graph and artifact of a loaded unit, for people; "" where it has neither, as a pipeline.

    The changes of a live graph are not part of it: hosts may be at different ones for a moment.
    """
    artifact = served.info((served.version,)).properties.get("artifact_hash")
    if not artifact:
        return ""
    graph = served.graph_version.partition("+")[0]
    return f"graph {graph or '–'}, artifact {artifact}"
