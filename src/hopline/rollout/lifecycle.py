"""Which versions are loaded and which of them answers: what was asked for, and how it comes about.

What was asked for is in the state file, which all workers of a host share (`state.py`). Each worker looks
at it many times a second and brings itself in line: loads what is missing, switches, lets go of what is not
wanted. Who is asked for a change makes it in two steps: first every worker loads, then every worker
switches; so a version that does not load anywhere never takes a request.

    POST …/load ──► this worker loads it ──► state: units + it ──► all others load it, say so
                    (fails: nothing happened)                     (one fails: state without it)
                                           └► state: serving = it ──► all switch, between two requests
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from hopline.config import Config
from hopline.errors import (
    BadRequest,
    Conflict,
    HoplineError,
    ModelNotFound,
    ModelNotReady,
    RepositoryUnavailable,
    RuntimeFailure,
)
from hopline.observe.metrics import Metrics
from hopline.rollout import rollout as steps
from hopline.rollout.acknowledge import Acknowledgements
from hopline.rollout.changes import VERBS, changed, decided, settled, without
from hopline.rollout.fleet import Fleet
from hopline.rollout.loader import Loader
from hopline.rollout.referee import Referee
from hopline.rollout.rollout import Rollout, RolloutRequest
from hopline.rollout.served import AsksModels, Recorder
from hopline.rollout.state import LifecycleState, ModelState, StateFile
from hopline.rollout.unit import Unit, checked_name

log = logging.getLogger(__name__)

#: Seconds between looks at the state file, and at rollouts under way.
_LOOK_S = 0.05


class Lifecycle:
    """Args:
    config: resolved.
    metrics: of the server.
    loader: makes units.
    recorders: the list that versions tell of their answers; watches are added while they are needed.
    clock: seconds since the epoch.

    Attributes:
        fleet: what is loaded in this process.
    """

    def __init__(
        self,
        config: Config,
        metrics: Metrics,
        loader: Loader,
        recorders: list[Recorder],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._loader = loader
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._own_folder: str | None = None
        self._file = StateFile(self._state_folder())
        self._acks = Acknowledgements(config, self._file.folder)
        self._referee = Referee(metrics, recorders, self._file.folder)
        self.fleet = self._fleet = Fleet(loader, self._referee, self._acknowledge, metrics)

    # Life

    async def start(self) -> None:
        """Load what the state and the repository say; a unit that cannot be loaded harms no other one.

        Raises:
            ConfigError: no repository, nothing in it, or a state file that cannot be used.
            RepositoryUnavailable: a repository behind a network cannot be asked now.
            HoplineError: what all models stand on cannot be opened; or no model can serve, or with
                `models.require_all` not every one, and why.
        """
        self._file.open()
        saved = self._file.read()
        self._fleet.state = state = self._with_models(saved, first=True)
        self._loader.expect(sum(len(model.units) for model in state.models.values()))
        # Pipelines last: their steps are checked against what is loaded.
        for name in sorted(state.models, key=self._loader.nesting):
            for unit in state.models[name].units:
                await self._load_first(name, unit, saved)
            self._fleet.route(name)
        self._check_start()
        self._acknowledge()
        self._fleet.is_live = True
        self._task = asyncio.ensure_future(self._follow())

    async def close(self) -> None:
        """Stop following; after the last request."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._referee.close()
        await self._fleet.close()
        await self._loader.close()
        if self._own_folder is not None:
            shutil.rmtree(self._own_folder, ignore_errors=True)

    # Changes

    async def load(
        self,
        model: str,
        version: str | None = None,
        *,
        graph: str = "",
        groups: tuple[str, ...] = (),
        serve: bool = True,
    ) -> str:
        """Load a version and let it serve.

        Args:
            model: name.
            version: folder in the repository; None is the newest.
            graph, groups: see `Unit`.
            serve: whether it gets the requests that name no version.

        Returns: the unit's id.
        Raises:
            ModelNotFound: it is not in the repository.
            Conflict: a rollout of the model is under way.
            HoplineError: it cannot be loaded; nothing changed.
        """
        unit = await self._found(model, version, graph, groups)
        self._no_rollout(model)
        await self._bring(model, unit)
        if serve or model not in self._fleet.serving:
            await self._check_fit(model, unit)
            await self._switch(model, unit.id)
        return unit.id

    async def unload(self, model: str, version: str | None = None) -> None:
        """Let go of one unit, or of all of a model; requests that it took finish.

        Raises:
            ModelNotFound: it is not loaded.
            Conflict: it serves (and others are loaded), or a rollout is under way.
        """
        state = self._model_state(model)
        self._no_rollout(model)
        if version is None:
            gone = {unit.id for unit in state.units}
        else:
            if state.unit(version) is None:
                raise ModelNotFound(_no_version(model, version, [unit.id for unit in state.units]))
            gone = {version}
        if state.serving in gone and len(gone) < len(state.units):
            raise Conflict(
                f"{model}/{state.serving} serves; let another serve first, or unload the whole model"
            )

        if len(gone) == len(state.units):
            asking = [
                served.name
                for served in self._fleet.all()
                if served.name != model and model in served.info(()).properties.get("models", ())
            ]
            if asking:
                raise Conflict(f"{model} is asked by pipeline {', '.join(asking)}; unload that first")
        await self._publish(model, lambda state: without(state, gone))

    async def begin(self, asked: RolloutRequest) -> Rollout:
        """Load a candidate beside the version that serves and give it its first share.

        Raises:
            BadRequest: what is asked makes no sense.
            Conflict: a rollout of the model is under way, or the candidate serves already.
            HoplineError: the candidate cannot be loaded, and why; nothing changed.
        """
        asked.check()
        shadow = asked.kind == "shadow"
        unit = await self._found(asked.model, asked.version, asked.graph, asked.groups, shadow=shadow)
        self._no_rollout(asked.model)
        current = self._model_state(asked.model).serving
        if not current:
            raise Conflict(f"model {asked.model!r} has no version that serves; load one")
        if unit.id == current:
            raise Conflict(f"{asked.model}/{unit.id} serves already")
        await self._bring(asked.model, unit)
        await self._check_fit(asked.model, unit)
        rollout = steps.begin(asked, current, unit.id, self._clock())

        def change(state: ModelState) -> ModelState:
            if state.rollout is not None:
                raise Conflict(f"a rollout of {asked.model} to {state.rollout.candidate} is under way")
            if state.unit(unit.id) is None or state.serving != current:
                raise Conflict(f"{asked.model} was changed meanwhile; look and begin anew")
            return msgspec.structs.replace(state, rollout=rollout)

        await self._publish(asked.model, change)
        return rollout

    async def decide(self, model: str, verb: str, why: str = "") -> dict[str, Any]:
        """Do what a person says: promote, rollback, pause, resume, advance or end.

        Without a rollout under way, "rollback" returns to the version that served before.

        Raises:
            BadRequest: no such verb.
            ModelNotFound: no such model.
            Conflict: nothing that this could be done to.
        """
        if verb not in VERBS:
            raise BadRequest(f"{verb!r} is not one of {', '.join(VERBS)}")
        state = self._model_state(model)
        if state.rollout is None:
            if verb != "rollback":
                raise Conflict(f"no rollout of {model} is under way")
            if not state.previous or state.unit(state.previous) is None:
                raise Conflict(f"no version of {model} served before {state.serving}, or it is not loaded")
            await self._switch(model, state.previous)
            return self.describe(model)
        why = why or "asked for"

        def change(state: ModelState) -> ModelState:
            if state.rollout is None:
                raise Conflict(f"no rollout of {model} is under way any more")
            return settled(state, decided(state.rollout, verb, why, self._clock()))

        await self._publish(model, change)
        return self.describe(model)

    def describe(self, model: str) -> dict[str, Any]:
        """A model's versions and rollouts, for people: {"model", "serving", "units", "rollout", "past"}.

        Raises: ModelNotFound.
        """
        state = self._model_state(model)
        live = None
        if state.rollout is not None:
            live = msgspec.to_builtins(state.rollout) | self._referee.seen(state.rollout)
        return {
            "model": model,
            "serving": state.serving,
            "previous": state.previous,
            "units": [msgspec.to_builtins(unit) | {"id": unit.id} for unit in state.units],
            "rollout": live,
            "past": [msgspec.to_builtins(rollout) for rollout in reversed(state.past)],
        }

    # Following the state

    async def _follow(self) -> None:
        """Bring this worker in line with the state, for ever."""
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                if self._file.changed():
                    self._fleet.adopt(self._with_models(self._file.read()))
                if self._referee.is_busy:
                    await self._judge()
            except Exception:  # the boundary: what fails now is tried again at the next look
                log.exception("the lifecycle's state could not be followed")
                await asyncio.sleep(1.0)

    # Judging

    async def _judge(self) -> None:
        """Carry out what the gates say of rollouts under way."""
        async for rollout, after in self._referee.judge(self._clock):

            def change(state: ModelState, rollout: Rollout = rollout, after: Rollout = after) -> ModelState:
                if state.rollout != rollout:
                    return state  # a person was faster
                return settled(state, after)

            log.warning("rollout of %s to %s: %s", after.model, after.candidate, after.events[-1].text)
            await self._publish(after.model, change)

    # The state

    def _with_models(self, state: LifecycleState, *, first: bool = False) -> LifecycleState:
        """The state, and what it does not say: models that were never touched serve as the repository is.

        As it was when the server started: a worker that starts anew must not find other versions than
        the others have.
        """
        untouched = self._fleet.state.models
        if first:
            untouched = self._acks.first(self._whole_repository)
        known = untouched.keys() | state.models.keys() if not first else set(untouched)
        models = {name: state.models.get(name) or untouched[name] for name in sorted(known)}
        return msgspec.structs.replace(state, models=models)

    def _whole_repository(self) -> dict[str, ModelState]:
        """Every version of every model, the newest serving."""
        models = {}
        for name in self._loader.models():
            units = tuple(Unit(version) for version in self._loader.available(name))
            models[name] = ModelState(units, units[-1].id)
        return models

    async def _load_first(self, name: str, unit: Unit, state: LifecycleState) -> None:
        """Load a unit at start; one that fails is unavailable, and says why.

        No other version takes the place of one that serves: it would give other answers, unasked.
        """
        try:
            await self._fleet.load(name, unit)
        except RepositoryUnavailable:  # worth another try, of the whole start
            raise
        except HoplineError as error:
            if error is self._loader.own_failure:
                raise
            self._fleet.fail(name, unit.id, error)
            model = state.models.get(name)
            rollout = model.rollout if model is not None else None
            if rollout is None or unit.id != rollout.candidate:
                return
            why = f"it could not be loaded: {error}"
            now = self._clock()

            def change(state: ModelState) -> ModelState:
                if state.rollout is None or state.rollout.id != rollout.id:
                    return state
                return settled(state, steps.rolled_back(state.rollout, why, now))

            self._fleet.state = self._with_models(
                self._file.update(lambda whole: changed(whole, name, change, model or ModelState()))
            )

    def _check_start(self) -> None:
        """Whether enough can serve to begin.

        Raises: HoplineError: see `start`.
        """
        failed = self._fleet.unavailable()
        if not failed or (self._fleet.serving and not self._config.models.require_all):
            return
        first = next(iter(failed.values()))
        if len(failed) == 1 and not self._fleet.serving:
            raise first
        listed = "; ".join(f"{name}: {error}" for name, error in failed.items())
        if self._fleet.serving:
            raise ModelNotReady(f"models.require_all: not every model can serve: {listed}")
        raise ModelNotReady(f"no model can serve: {listed}")

    async def _found(
        self, model: str, version: str | None, graph: str, groups: tuple[str, ...], *, shadow: bool = False
    ) -> Unit:
        """The unit that is meant.

        Raises: ModelNotFound: it is not in the repository.
        """
        checked_name(model, "model")
        there = await asyncio.to_thread(self._loader.available, model)
        if not there:
            known = ", ".join(await asyncio.to_thread(self._loader.models)) or "none"
            raise ModelNotFound(
                f"no model {model!r} in {self._loader.repository.address}; there are: {known}"
            )
        version = there[-1] if version is None else version
        if version not in there:
            raise ModelNotFound(_no_version(model, version, there))
        return Unit(version, str(Path(graph).resolve()) if graph else "", groups, shadow)

    async def _bring(self, model: str, unit: Unit) -> None:
        """Have every worker load a unit.

        Raises: HoplineError: one cannot; then none has it.
        """
        if unit.id in self._fleet.units.get(model, {}) and self._config.worker.count == 1:
            return
        present = self._fleet.model(model)
        is_new = present is None or present.unit(unit.id) is None
        if unit.id not in self._fleet.units.get(model, {}):
            try:
                await self._fleet.load(model, unit)
            except HoplineError as error:
                if not is_new:
                    self._fleet.fail(model, unit.id, error)
                raise

        def add(state: ModelState) -> ModelState:
            if state.unit(unit.id) is not None:  # workers that could not load it try again
                return msgspec.structs.replace(state, tries=state.tries + 1)
            return msgspec.structs.replace(state, units=(*state.units, unit))

        failed = await self._publish(model, add)
        why = failed.get(f"{model}/{unit.id}")
        if why is not None:
            if is_new:
                await self._publish(model, lambda state: without(state, {unit.id}))
            raise ModelNotReady(f"{model}/{unit.id} could not be loaded by every worker: {why}")

    async def _check_fit(self, model: str, unit: Unit) -> None:
        """Whether pipelines that ask a model can ask this unit of it.

        Raises: PipelineInvalid: one cannot, and why; the unit is let go of if nothing needs it.
        """
        info = self._fleet.units[model][unit.id].info((unit.id,))
        try:
            for served in self._fleet.all():
                if isinstance(served, AsksModels):
                    served.check_model(info)
        except HoplineError:
            state = self._model_state(model)
            if unit.id not in (state.serving, state.previous):
                await self._publish(model, lambda state: without(state, {unit.id}))
            raise

    async def _switch(self, model: str, unit_id: str) -> None:
        def change(state: ModelState) -> ModelState:
            if state.serving == unit_id:
                return state
            if state.unit(unit_id) is None:
                raise Conflict(f"{model}/{unit_id} was unloaded meanwhile")
            return msgspec.structs.replace(state, serving=unit_id, previous=state.serving)

        await self._publish(model, change)

    async def _publish(self, model: str, change: Callable[[ModelState], ModelState]) -> Mapping[str, str]:
        """Change a model's state everywhere; returns units that a worker could not load, and why.

        Raises:
            RuntimeFailure: the state cannot be written; nothing changed.
        """
        present = self._fleet.model(model) or ModelState()
        try:
            state = self._file.update(lambda whole: changed(whole, model, change, present))
        except OSError as error:
            raise RuntimeFailure(f"the lifecycle's state cannot be written: {error}") from None
        self._count_ended(model, state)
        self._fleet.adopt(self._with_models(state))
        return await self._acks.of_all(state.generation)

    def _count_ended(self, model: str, state: LifecycleState) -> None:
        before = self._fleet.model(model)
        after = state.models.get(model)
        if before is None or before.rollout is None or after is None or after.rollout is not None:
            return
        done = after.past[-1]
        self._referee.forget(done)

    def _no_rollout(self, model: str) -> None:
        state = self._fleet.model(model)
        if state is not None and state.rollout is not None:
            raise Conflict(
                f"a rollout of {model} to {state.rollout.candidate} is under way; promote it or roll it "
                "back first"
            )

    def _model_state(self, model: str) -> ModelState:
        state = self._fleet.model(model)
        if state is None:
            known = ", ".join(self._fleet.state.models) or "none"
            raise ModelNotFound(f"no model {model!r}; there are: {known}")
        return state

    def _acknowledge(self) -> None:
        failed = {
            f"{name}/{unit_id}": self._fleet.why(name, unit_id) for name, unit_id in self._fleet.failed
        }
        self._acks.say(self._fleet.state.generation, failed)

    def _state_folder(self) -> Path:
        """Where the state lies: as configured, beside the models, or nowhere that lasts."""
        models = self._config.models
        if models.state is not None:
            return models.state
        local = Path(str(models.repository))
        if "://" not in str(models.repository) and os.access(local, os.W_OK):
            return local / ".hopline"
        log.warning(
            "models.state is not set and %s cannot be written: rollouts will not survive a restart",
            models.repository,
        )
        if self._config.worker.metrics_dir:
            return Path(self._config.worker.metrics_dir) / "state"
        self._own_folder = tempfile.mkdtemp(prefix="hopline-state-")
        return Path(self._own_folder)


def _no_version(model: str, version: str, there: list[str]) -> str:
    return f"model {model!r} has no version {version!r}; there are: {', '.join(there)}"
