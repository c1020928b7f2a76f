"""What is loaded in this process, and who answers: follows a state that others decide on.

Adopting a state switches and lets go at once; what is missing is loaded meanwhile, and takes its place when
it is there. A unit that is not wanted any more gets no new requests from that moment; those that it took
finish, and then its memory is given back.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from hopline.errors import HoplineError, ModelNotReady
from hopline.observe.metrics import Metrics
from hopline.rollout.loader import Loader
from hopline.rollout.referee import Referee
from hopline.rollout.served import Scorer, Served
from hopline.rollout.split import Mirror, Split
from hopline.rollout.state import LifecycleState, ModelState
from hopline.rollout.unit import Unit

log = logging.getLogger(__name__)


class Fleet:
    """Args:
    loader: makes units.
    referee: says who takes requests while a rollout is under way.
    settled: is called when this process is in line with the state, or has tried.
    metrics: of the server.

    Attributes:
        state: that is followed.
        serving: model name -> who answers requests that name no version.
        units: model name -> unit id -> loaded, oldest first.
        failed: (model, unit id) -> why this process could not load it.
    """

    def __init__(
        self, loader: Loader, referee: Referee, settled: Callable[[], object], metrics: Metrics
    ) -> None:
        self.state = LifecycleState()
        self.serving: dict[str, Scorer] = {}
        self.units: dict[str, dict[str, Served]] = {}
        self.failed: dict[tuple[str, str], HoplineError] = {}
        self._unavailable = metrics.gauge(
            "hopline_model_unavailable",
            "Workers that could not load a version which is wanted.",
            ("model", "version"),
        )
        self._loader = loader
        self._referee = referee
        self._settled = settled
        self._known: dict[tuple[str, str], Unit] = {}
        self._loading: set[tuple[str, str]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        #: Whether requests are served while units are loaded.
        self.is_live = False

    def model(self, name: str) -> ModelState | None:
        """The state of a model, if there is such a model."""
        return self.state.models.get(name)

    def all(self) -> list[Served]:
        """Every unit that is loaded."""
        return [served for units in self.units.values() for served in units.values()]

    async def close(self) -> None:
        """Let go of everything; after the last request."""
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        for served in self.all():
            await served.release()

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
                    reason = "not loaded"
                    rows.append(
                        {"name": name, "version": version, "state": "UNAVAILABLE", "reason": reason}
                    )
        return sorted(rows, key=lambda row: row["name"])

    def why(self, name: str, unit_id: str) -> str:
        """Why this process could not load a unit, as "<code>: <message>"; "" where it did not fail."""
        error = self.failed.get((name, unit_id))
        return "" if error is None else f"{error.code}: {error}"

    def unavailable(self) -> dict[str, HoplineError]:
        """Models that cannot serve, as "<model>/<unit>", and why: the unit that serves was not loaded."""
        return {
            f"{name}/{state.serving}": self.failed[name, state.serving]
            for name, state in self.state.models.items()
            if name not in self.serving and (name, state.serving) in self.failed
        }

    def fail(self, name: str, unit_id: str, error: HoplineError) -> None:
        """A unit that is wanted could not be loaded: it is unavailable until it is asked for again."""
        self.failed[name, unit_id] = error
        self._unavailable(name, unit_id).set(1)
        log.error("cannot load %s/%s, which is unavailable: %s", name, unit_id, error)

    def _unfail(self, name: str, unit_id: str) -> None:
        if self.failed.pop((name, unit_id), None) is not None:
            self._unavailable(name, unit_id).set(0)

    def check_wanted(self, model: str, version: str | None) -> None:
        """Raises: ModelNotReady: the unit is wanted, but this worker does not have it (says why)."""
        state = self.model(model)
        if state is None:
            return
        unit_id = state.serving if version is None else version
        if unit_id and state.unit(unit_id) is not None and unit_id not in self.units.get(model, {}):
            why = self.why(model, unit_id)
            raise ModelNotReady(f"{model}/{unit_id} is not ready: {why or 'it is being loaded'}")

    def adopt(self, state: LifecycleState) -> None:
        """Switch and let go at once; begin to load what is missing."""
        if state.generation < self.state.generation:
            return  # another task was faster
        before, self.state = self.state.models, state
        for name, model in state.models.items():
            self.route(name)
            wanted = {unit.id: unit for unit in model.units}
            for unit_id in [each for each in self.units.get(name, {}) if each not in wanted]:
                self._retire(name, unit_id)
            again = name in before and before[name].tries != model.tries
            for unit_id in [unit_id for other, unit_id in self.failed if other == name]:
                if again or unit_id not in wanted:
                    self._unfail(name, unit_id)
            for unit in model.units:
                key = name, unit.id
                if unit.id not in self.units.get(name, {}) and not {key} & (
                    self._loading | set(self.failed)
                ):
                    # before the task begins: who is asked meanwhile must not say that it is in line
                    self._loading.add(key)
                    self._spawn(self._load_wanted(name, unit))
        self._tell()

    def _tell(self) -> None:
        if not self._loading:
            self._settled()

    async def _load_wanted(self, name: str, unit: Unit) -> None:
        """Load what the state wants; it may have changed by the time that it is loaded."""
        key = name, unit.id
        try:
            await self.load(name, unit)
        except HoplineError as error:
            self.fail(name, unit.id, error)
        finally:
            self._loading.discard(key)
        if unit.id in self.units.get(name, {}):
            state = self.model(name)
            if state is None or state.unit(unit.id) is None:
                self._retire(name, unit.id)
            else:
                self.route(name)
        self._tell()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def load(self, name: str, unit: Unit) -> None:
        """Load a unit, unless it is there.

        Raises: HoplineError: it cannot be loaded.
        """
        began = time.perf_counter()
        served = await self._loader.load(name, unit)
        if unit.id in self.units.get(name, {}):  # two asked for it at once
            await self._loader.drop(name, unit, served)
            return
        self.units.setdefault(name, {})[unit.id] = served
        self._known[name, unit.id] = unit
        self._unfail(name, unit.id)
        if self.is_live:
            gc.freeze()  # as at start: what was loaded need not be looked at by every full collection
        log.info("loaded %s/%s in %.2f s", name, unit.id, time.perf_counter() - began)

    def _retire(self, name: str, unit_id: str) -> None:
        served = self.units[name].pop(unit_id)
        if not self.units[name]:
            del self.units[name]
        unit = self._known.pop((name, unit_id))
        served.close(f"{name}/{unit_id} was unloaded")

        async def finish() -> None:
            await served.join()
            await self._loader.drop(name, unit, served)
            log.info("unloaded %s/%s", name, unit_id)

        self._spawn(finish())

    def route(self, name: str) -> None:
        """Let requests that name no version go where the state says; between two requests."""
        before = self.serving.get(name)
        state = self.model(name)
        units = self.units.get(name, {})
        serving = units.get(state.serving) if state is not None else None
        rollout = state.rollout if state is not None else None
        candidate = units.get(rollout.candidate) if rollout is not None else None
        if rollout is None or serving is None or candidate is None:
            self._referee.leave(name)
            after: Scorer | None = serving
        else:
            after = self._referee.between(rollout, serving, candidate)
        if isinstance(before, Split | Mirror) and before is not after:
            before.withdraw()
        if after is None:
            self.serving.pop(name, None)
        else:
            self.serving[name] = after
