"""Loads, switches and unloads versions in one worker, as the shared state requests.

A version that does not load anywhere never takes a request (docs/architecture.md):

    POST …/load ──► this worker loads it ──► state: trials + it ──► all others load it, report it
                    (fails: nothing happened)                      (one fails: state without it)
                                           └► state: units + it, serving = it ──► all switch, between
                                              two requests

A change runs to its end when its caller hangs up. Whether it may be made is decided on the newest state,
under the file's lock (`changes.py`, `shared_state.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping
from typing import Any, TypeVar

import msgspec

from hopline.answering.recent_requests import RecentRequests
from hopline.answering.requested_unit import requested_unit
from hopline.answering.served import CallsModels, Recorder
from hopline.answering.unit import Unit, checked_name
from hopline.config.schema import Config
from hopline.errors import (
    BadRequest,
    Conflict,
    HoplineError,
    ModelNotFound,
    ModelNotReady,
    RepositoryUnavailable,
    StoreUnavailable,
    quoted,
)
from hopline.models.host_snapshots import is_on
from hopline.models.load import LoadLimit
from hopline.models.loader import Loader
from hopline.models.tools import MAX_LOADS
from hopline.observe.metrics import Metrics
from hopline.remote_address import is_address
from hopline.rollout import changes
from hopline.rollout import rollout as steps
from hopline.rollout.judge import RolloutJudge
from hopline.rollout.loaded_units import LoadedUnits
from hopline.rollout.rollout import MAX_REASON, Rollout, RolloutRequest
from hopline.rollout.shared_state import Change, SharedState
from hopline.rollout.shared_work import SharedWork
from hopline.rollout.snapshot_watch import SnapshotWatch
from hopline.rollout.state import LifecycleState, ModelState, Trial

log = logging.getLogger(__name__)

#: Seconds between looks at the state file, and at rollouts under way.
_LOOK_S = 0.05

ResultT = TypeVar("ResultT")


class Lifecycle:
    """Loads, switches and unloads versions in one worker.

    Attributes:
        loaded: the units in this process.
    """

    def __init__(
        self,
        config: Config,
        metrics: Metrics,
        loader: Loader,
        recorders: list[Recorder],
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._config = config
        self._metrics = metrics
        self._loader = loader
        self._task: asyncio.Task[None] | None = None
        self._changes: SharedWork[Hashable, Any] = SharedWork("a change of models")
        self._state = SharedState(config, loader, lambda ended: self._rollouts.forget(ended), metrics)
        fleet = self._state.fleet
        self._clock = clock or fleet.now
        self._rollouts = RolloutJudge(metrics, recorders, fleet, self._state.is_confirmed)
        self._recent = RecentRequests(recorders)
        self.loaded = LoadedUnits(loader, self._rollouts, self._state.acknowledge, metrics)
        self._watch: SnapshotWatch | None = None
        if config.snapshots.poll_s:
            fleet.wants_lead = True
            calls = lambda: self.loaded.state.models, self.begin, self.unload
            self._watch = SnapshotWatch(
                config, *calls, loader.tools.inputs.snapshots, fleet.leads, metrics, self._clock
            )
        self._watching: asyncio.Task[None] | None = None
        self._limit = LoadLimit(MAX_LOADS)

    # Life

    async def start(self) -> None:
        """Load what the state and the repository say; a unit that cannot be loaded harms no other one.

        Raises:
            ConfigError: no repository, nothing in it, or a state file that cannot be used.
            RepositoryUnavailable: a repository behind a network cannot be asked now.
            StoreUnavailable: nor can the store that knows what the fleet serves.
            HoplineError: what all models stand on cannot be opened; or no model can serve, or with
                `models.required` = all not every one, and why.
        """
        saved = await self._state.open(self.loaded)
        state = self.loaded.state
        self._loader.expect(sum(len(model.units) for model in state.models.values()))
        # Pipelines last: their steps are checked against what is loaded.
        for name in sorted(state.models, key=self._loader.nesting):
            for unit in state.models[name].units:
                log.info("loading %s/%s", name, unit.id)
                await self._load_first(name, unit, saved)
            self.loaded.route(name)
        self._state.explain_missing(saved)
        if not self._config.worker.replaces:
            self.loaded.check_enough(self._config.models.required)
        self.loaded.load_missing()  # what other workers try just now
        await self._state.join()
        self._task = asyncio.ensure_future(self._follow())
        if self._watch is not None:
            self._watching = asyncio.ensure_future(self._watch.run())
        if self._config.worker.replaces:
            await self._until_it_can_serve()

    async def close(self) -> None:
        """Stop following; after the last request."""
        self._loader.tools.inputs.snapshots.stop()  # a load that fetches would be waited for
        for task in (self._watching, self._task):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self._changes.close()
        self._rollouts.close()
        await self.loaded.close()
        await self._loader.close()
        await self._state.close()

    # Changes

    async def load(
        self,
        model: str,
        version: str | None = None,
        *,
        graph: str = "",
        groups: tuple[str, ...] = (),
        serve: bool = True,
        force: bool = False,
    ) -> str:
        """Load a version (None: the newest) and let it serve.

        Args:
            serve: True if it gets the requests that name no version.
            force: let it serve though it refuses requests that callers send now.

        Returns: the unit's id.
        Raises:
            ModelNotFound: it is not in the repository.
            Conflict: a rollout of the model is under way, or the version refuses what callers send now.
            HoplineError: it cannot be loaded; nothing changed.
        """
        key = ("load", model, version, graph, groups, serve, force)

        async def load() -> str:
            with self._limit.counted(graph):
                about = model, version, graph, groups, False
                unit = await self._loader.tools.in_waiting_thread(self._unit_of, *about)
                state = self.loaded.model(model) or ModelState()
                changes.check_no_rollout(state, model)  # before a useless load

                async def check() -> None:
                    if serve and not force and state.serving not in ("", unit.id):
                        await self._recent.check(model, state.serving, self.loaded.served(model, unit.id))

                def change(state: ModelState) -> ModelState:
                    return changes.loaded(state, model, unit, serve=serve)

                await self._with_unit(model, unit, change, check, serves=serve)
                return unit.id

        return await self._to_the_end(load, key)

    async def unload(self, model: str, version: str | None = None) -> None:
        """Unload one unit, or all units of a model; accepted requests finish.

        Raises:
            ModelNotFound: it is not loaded.
            Conflict: it serves (and others are loaded), or a rollout is under way.
        """
        await self._to_the_end(lambda: self._unload(model, version))

    async def _unload(self, model: str, version: str | None) -> None:
        loaded = [unit.id for unit in self._model_state(model).units]
        if version is None or loaded == [version]:
            callers = [
                served.name
                for served in self.loaded.all()
                if served.name != model and model in served.info(()).properties.get("models", ())
            ]
            if callers:
                raise Conflict(f"{model} is called by pipeline {', '.join(callers)}; unload that first")
        await self._state.publish(model, lambda state: changes.unloaded(state, model, version))

    async def begin(self, wanted: RolloutRequest) -> Rollout:
        """Load a candidate in addition to the serving version and give it its first share.

        Raises:
            BadRequest: the request makes no sense.
            Conflict: a rollout of the model is under way, or the candidate serves already.
            HoplineError: the candidate cannot be loaded, and why; nothing changed.
        """
        wanted.check()

        async def begin() -> Rollout:
            with self._limit.counted(wanted.graph):
                about = wanted.model, wanted.version, wanted.graph, wanted.groups, wanted.kind == "shadow"
                unit = await self._loader.tools.in_waiting_thread(self._unit_of, *about)
                # before a useless load
                changes.check_candidate(self._model_state(wanted.model), wanted.model, unit.id)
                begun: list[Rollout] = []

                def change(state: ModelState) -> ModelState:
                    after = changes.begun(state, wanted, unit, self._clock())
                    assert after.rollout is not None
                    begun.append(after.rollout)
                    return after

                await self._with_unit(wanted.model, unit, change, serves=True)
                return begun[-1]

        return await self._to_the_end(begin)

    async def decide(self, model: str, verb: str, why: str = "") -> dict[str, Any]:
        """Do what a person says: promote, rollback, pause, resume, advance or end.

        Without a rollout under way, "rollback" returns to the version that served before; once.

        Raises:
            BadRequest: no such verb, or a reason that is too long.
            ModelNotFound: no such model.
            Conflict: nothing that this could be done to.
        """
        if verb not in changes.VERBS:
            raise BadRequest(f"{verb!r} is not one of {', '.join(changes.VERBS)}")
        if len(why) > MAX_REASON:
            raise BadRequest(f"reason: {len(why)} characters; at most {MAX_REASON}")
        return await self._to_the_end(lambda: self._decide(model, verb, why or "asked for"))

    async def _decide(self, model: str, verb: str, why: str) -> dict[str, Any]:
        self._model_state(model)
        now = self._clock()
        await self._state.publish(model, lambda state: changes.decided_on(state, model, verb, why, now))
        return self.describe(model)

    def unit_of_version(self, model: str, version: str) -> str:
        """The unit that answers requests which name a version without a snapshot's mark; "" for none.

        It is the unit that serves, if it is of that version, else the one that was loaded last.
        """
        state = self.loaded.model(model)
        units = () if state is None else state.units
        found = [unit.id for unit in units if unit.version == version and not unit.shadow]
        if state is not None and state.serving in found:
            return state.serving
        return found[-1] if found else ""

    def describe(self, model: str) -> dict[str, Any]:
        """A model's versions and rollouts, for people: {"model", "serving", "units", "rollout", "past"}.

        In a fleet of several hosts also "store": the condition of what they share.

        Raises: ModelNotFound.
        """
        state = self._model_state(model)
        live = None
        if state.rollout is not None:
            live = msgspec.to_builtins(state.rollout) | self._rollouts.seen(state.rollout)
        store = self._state.status()
        return {
            "model": model,
            "serving": state.serving,
            "previous": state.previous,
            "units": [msgspec.to_builtins(unit) | {"id": unit.id} for unit in state.units],
            "rollout": live,
            "past": [msgspec.to_builtins(rollout) for rollout in reversed(state.past)],
        } | ({"store": store} if store else {})

    @property
    def differing(self) -> Mapping[str, str]:
        """Units that other hosts have with another graph or artifact: "model/unit" -> what differs."""
        return self._state.differing

    # Following the state

    async def _follow(self) -> None:
        """Bring this worker in line with the state, for ever."""
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                self._recent.look()
                self.loaded.follow_files()
                self._state.report_store()
                await self._state.follow()
                if self._rollouts.is_busy:
                    await self._judge()
            except StoreUnavailable as error:
                log.info("nothing is followed or decided now: %s", error)
            except Exception:  # the boundary: what fails now is tried again at the next look
                log.exception("the lifecycle's state could not be followed")
                await asyncio.sleep(1.0)

    # Judging

    async def _judge(self) -> None:
        """Carry out what the gates say of rollouts under way."""
        async for rollout, after in self._rollouts.judge(self._clock):

            def change(state: ModelState, rollout: Rollout = rollout, after: Rollout = after) -> ModelState:
                if state.rollout != rollout:
                    return state  # a person was faster
                return changes.settled(state, after)

            # only going back is something to look at
            level = logging.WARNING if after.status == "rolled_back" else logging.INFO
            log.log(level, "rollout of %s to %s: %s", after.model, after.candidate, after.events[-1].text)
            # no worker is waited for: one that still loads must not keep this one from following the state
            await self._state.publish(after.model, change, until="written")

    # The state

    async def _load_first(self, name: str, unit: Unit, state: LifecycleState) -> None:
        """Load a unit at start; one that fails is unavailable, and says why.

        No other version takes the place of one that serves: it would give other answers, unasked. A failure
        that may pass ends no rollout: the candidate is loaded again, and gets no requests until then.
        """
        try:
            await self.loaded.load(name, unit)
        except HoplineError as error:
            is_shared = (
                isinstance(error, RepositoryUnavailable) or error is self._loader.tools.inputs.own_failure
            )
            waits = error.may_pass and self._config.models.required == "none"
            if is_shared and not (waits or self._config.worker.replaces):
                raise
            model = state.models.get(name)
            rollout = model.rollout if model is not None else None
            if rollout is None or unit.id != rollout.candidate or error.may_pass:
                return
            why = f"it could not be loaded: {error}"
            now = self._clock()

            def change(state: ModelState) -> ModelState:
                if state.rollout is None or state.rollout.id != rollout.id:
                    return state
                return changes.settled(state, steps.rolled_back(state.rollout, why, now))

            self.loaded.state = await self._state.update(name, change)

    async def _until_it_can_serve(self) -> None:
        """Follow the state without requests: the other workers have them, and report what failed here."""
        said = ""
        while True:
            try:
                self.loaded.check_enough(self._config.models.required)
                if self.loaded.is_settled:
                    return
            except HoplineError as error:
                if said != str(error):
                    said = str(error)
                    log.error("this worker takes no requests until it can serve: %s", said)
                    self._metrics.flush()
            await asyncio.sleep(_LOOK_S)

    def _unit_of(
        self, model: str, version: str | None, graph: str, groups: tuple[str, ...], shadow: bool
    ) -> Unit:
        """The unit that is meant; an address is replaced by that of one snapshot.

        Raises:
            ModelNotFound: it is not in the repository.
            BadRequest: as `requested_unit`.
        """
        there = self._loader.available(checked_name(model, "model"))
        if not there:
            address = self._loader.repository.address
            raise ModelNotFound(f"no model {model!r} in {address}", self._loader.models())
        version = there[-1] if version is None else version
        if version not in there:
            raise ModelNotFound(changes.no_version(model, version, there))
        snapshots = self._loader.tools.inputs.snapshots
        if snapshots.base and not graph and self._loader.reads_graph(model, version):
            state = self.loaded.model(model)
            serving = None if state is None else state.unit(state.serving)
            graph = serving.graph if serving and is_on(serving, snapshots.base) else snapshots.base
        if is_address(graph):
            graph, own_groups = snapshots.pinned(graph)
            groups = groups or own_groups
        return requested_unit(version, graph, groups, self._config, shadow=shadow)

    async def _to_the_end(
        self, change: Callable[[], Coroutine[Any, Any, ResultT]], key: Hashable = None
    ) -> ResultT:
        """The outcome of a change on the newest state, which continues whether or not its caller waits.

        Args:
            key: callers with an equal key share one change; None for a separate change.

        Raises: StoreUnavailable: no change could be made.
        """

        async def changed() -> ResultT:
            await self._state.check_up()
            await self._state.follow()
            return await change()

        found: ResultT = await self._changes.result(object() if key is None else key, changed)
        return found

    async def _with_unit(
        self,
        model: str,
        unit: Unit,
        change: Change,
        check: Callable[[], Awaitable[None]] | None = None,
        *,
        serves: bool,
    ) -> None:
        """Have every worker load a unit, then make a change with it.

        Args:
            check: is called once this worker has loaded it, and may refuse it.
            serves: True if callers that name no version come to it by that.

        Raises: HoplineError: one cannot load it, or the change is refused; nothing changed.
        """
        trial = self._state.trial(unit)
        with self.loaded.needed(model, unit.id):
            await self.loaded.load(model, unit)
            try:
                if self._state.has_others:
                    await self._try_everywhere(model, trial)
                if serves or model not in self.loaded.serving:
                    self._check_fit(model, unit)
                if check is not None:
                    await check()
                await self._state.publish(
                    model, lambda state: changes.without_trial(change(state), trial.id), adds=True
                )
            except BaseException as error:
                await self._state.publish(
                    model,
                    lambda state: changes.without_trial(state, trial.id),
                    until="switched" if isinstance(error, HoplineError) else "written",
                )
                raise
            finally:
                self._state.end_trial(trial)

    async def _try_everywhere(self, model: str, trial: Trial) -> None:
        """Have every worker load a unit; none gives it requests yet.

        Raises:
            ModelNotReady: one cannot.
            Conflict: a rollout is under way.
        """
        failed = await self._state.publish(
            model, lambda state: changes.tried(state, model, trial), until="loaded", adds=True
        )
        why = failed.get(f"{model}/{trial.unit.id}")
        if why is not None:
            raise ModelNotReady(f"{model}/{trial.unit.id} could not be loaded by every worker: {why}")

    def _check_fit(self, model: str, unit: Unit) -> None:
        """Check that pipelines that call a model can call this unit of it.

        Raises: PipelineInvalid: one cannot, and why.
        """
        info = self.loaded.served(model, unit.id).info((unit.id,))
        for served in self.loaded.all():
            if isinstance(served, CallsModels):
                served.check_model(info)

    def _model_state(self, model: str) -> ModelState:
        state = self.loaded.model(model)
        if state is None:
            raise ModelNotFound(f"no model {quoted(model)}", self.loaded.state.models)
        return state
