"""The state of models that all members of a fleet share: followed, changed, acknowledged.

Each member follows the newest state that its beats report (`store/fleet.py`). What may be changed is
decided on the newest state, on a thread.

The lease rule: a member that does not know since `LEASE_S` whether it follows the newest state sends no
callers to a rollout's candidate. So a rollback holds everywhere soon, also on a host that is cut off.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeVar

import msgspec

from hopline.answering.unit import Unit
from hopline.config.schema import Config
from hopline.errors import ConfigError, HoplineError, ModelNotFound, StoreUnavailable
from hopline.models.loader import Loader
from hopline.observe.metrics import Metrics
from hopline.rollout import changes
from hopline.rollout.loaded_units import LoadedUnits
from hopline.rollout.rollout import Rollout
from hopline.rollout.state import FirstState, LifecycleState, ModelState, Trial
from hopline.rollout.store.base import LEASE_S
from hopline.rollout.store.fleet import Ack, configured_fleet

log = logging.getLogger(__name__)

#: Seconds between looks for trials whose member died.
_SWEEP_S = 1.0
#: Seconds between comparisons of what the members have loaded.
_COMPARE_S = 5.0
#: Seconds between looks for acknowledgements, and after which a member that does not switch is not waited
#: for.
_LOOK_S, _PATIENCE_S = 0.01, 120.0

ResultT = TypeVar("ResultT")
Change = Callable[[ModelState], ModelState]


class SharedState:
    """The state of all models, shared by the members of a fleet.

    Args:
        config: names the store.
        loader: says what the repository holds.
        ended: is called with each rollout that a change of this member ended.
        metrics: of the server.

    Attributes:
        fleet: the members, over the store that the settings name.
        differing: "model/unit" -> how its content differs from that of other members, for people.
    """

    def __init__(
        self, config: Config, loader: Loader, ended: Callable[[Rollout], object], metrics: Metrics
    ) -> None:
        self._loader = loader
        self._pinned = config.models.pinned
        self._ended = ended
        self.fleet, self._clean_up = configured_fleet(config)
        self.has_others = self.fleet.store.has_others
        #: Identity of the state that this member follows, and when that was the newest for certain.
        self._followed = b""
        self._confirmed_at = float("-inf")
        #: Generation of the state of which all was loaded or could not be, and what could not be.
        self._settled = 0
        self._failed: Mapping[str, str] = {}
        self._first = FirstState({})
        self._joined = False
        #: Trials of changes that this member makes now.
        self._trials: set[str] = set()
        self._swept_at = self._compared_at = 0.0
        self.differing: Mapping[str, str] = {}
        self._was_up = True
        self._up = metrics.gauge(
            "hopline_fleet_store_up",
            "Workers that have an answer of the store that the hosts of a fleet share.",
        )
        self._differs = metrics.gauge(
            "hopline_fleet_version_differs",
            "Whether another host of the fleet has this version with another graph or other files.",
            ("model", "version"),
            merge="max",
        )
        # Its own thread: loads may occupy shared threads for minutes.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hopline-state")
        self._loaded: LoadedUnits | None = None

    @property
    def _followers(self) -> LoadedUnits:
        assert self._loaded is not None, "the state is not open"
        return self._loaded

    async def open(self, loaded: LoadedUnits) -> LifecycleState:
        """Have loaded units follow the state from what it is now; returns what is stored.

        Raises:
            ConfigError: no repository, nothing in it, or a state that cannot be used.
            StoreUnavailable: the store does not answer: what the fleet serves is not known.
        """
        self._loaded = loaded
        saved, self._first = await self._on_thread(self._open)
        loaded.state = self._with_models(saved)
        return saved

    def _open(self) -> tuple[LifecycleState, FirstState]:
        try:
            self.fleet.open()
            saved = self.fleet.update(self._without_lost_trials)
            return self.fleet.first_state(saved, lambda: self._found_first(saved))
        except HoplineError:  # some are an OSError too: what the first state is made of may be unavailable
            raise
        except OSError as error:
            raise ConfigError(
                f"models.state: {self.fleet.store.address} cannot be written: {error}"
            ) from None

    async def join(self) -> None:
        """Become a member that others wait for, at the newest state."""
        self._joined = True
        self.acknowledge()
        await self._on_thread(self.fleet.flush)
        self._follow_newest()  # after it joined: who changed the state before did not wait for it

    async def close(self) -> None:
        """Read and write no more."""
        await self._on_thread(self.fleet.close)
        self._thread.shutdown()
        self._clean_up()

    async def follow(self) -> None:
        """Bring this member in line with the newest state."""
        self._follow_newest()
        now = time.monotonic()
        if now - self._swept_at >= _SWEEP_S:
            self._swept_at = now
            await self._sweep()
        if self.has_others and now - self._compared_at >= _COMPARE_S:
            self._compared_at = now
            await self._compare()

    def _follow_newest(self) -> None:
        newest = self.fleet.newest()
        if newest.stored.identity != self._followed:
            self._followers.adopt(self._with_models(newest.state))
            self._followed = newest.stored.identity
        self._confirmed_at = newest.at

    async def check_up(self) -> None:
        """Check that a change can be made now. Raises: StoreUnavailable."""
        await self._on_thread(self.fleet.check_up)

    def is_confirmed(self) -> bool:
        """True if the state that this member follows was the newest within `LEASE_S`."""
        return time.monotonic() - self._confirmed_at < LEASE_S

    async def publish(
        self,
        model: str,
        change: Change,
        *,
        until: Literal["written", "switched", "loaded"] = "switched",
        adds: bool = False,
    ) -> Mapping[str, str]:
        """Change a model's state everywhere; returns units that a member could not load, and why.

        Args:
            change: gets the newest state, on a thread; see `changes.py`. May be called several times.
            until: every member follows it (has also loaded what is wanted), or only that it is written.
            adds: as for `Fleet.update`.

        Raises:
            HoplineError: what `change` raised; nothing changed.
            StoreUnavailable: the store was not written; the message says what became of the change.
        """
        ended: list[Rollout] = []

        def noting(state: ModelState) -> ModelState:
            after = change(state)
            ended.clear()
            if state.rollout is not None and after.rollout is None:
                ended.append(after.past[-1])
            return after

        state = await self.update(model, noting, adds=adds)
        for rollout in ended:
            self._ended(rollout)
        self._followers.adopt(state)
        if until == "written":
            return {}
        failed: Mapping[str, str] = {}
        if self.has_others:
            failed = await wait_for_acks(
                lambda: self._on_thread(self.fleet.acknowledgements),
                state.generation,
                loaded=until == "loaded",
            )
        return {**failed, **self._failed}

    async def update(self, model: str, change: Change, *, adds: bool = False) -> LifecycleState:
        """Write a change of one model. This member follows it once it is adopted.

        Raises: as `publish`.
        """
        present = self._followers.state.models.get(model) or ModelState()

        def changed(whole: LifecycleState) -> LifecycleState:
            return changes.changed(whole, model, change, present)

        try:
            return self._with_models(await self._on_thread(lambda: self.fleet.update(changed, adds=adds)))
        except StoreUnavailable:
            raise
        except ConfigError as error:  # what another program wrote counts as lost
            raise StoreUnavailable(str(error)) from None
        except OSError as error:
            raise StoreUnavailable(f"nothing was changed: models.state: {error}") from None

    def acknowledge(self) -> None:
        """Tell the other members how far this one is; nothing before it has joined."""
        loaded = self._followers
        generation = loaded.state.generation
        if loaded.is_settled:
            # Kept together: a later generation may try again what failed in this one.
            self._settled = generation
            self._failed = {
                f"{name}/{unit_id}": failure.cause for (name, unit_id), failure in loaded.failed.items()
            }
        if self._joined:
            ack = Ack(generation, self._settled, dict(self._failed), loaded.contents())
            self.fleet.acknowledge(ack)

    async def _compare(self) -> None:
        """Report units that other members have with another graph or artifact, when that changes."""
        try:
            others = await self._on_thread(self.fleet.acknowledgements)
        except StoreUnavailable as error:  # a change is made nevertheless
            log.info("hosts are not compared now: %s", error)
            return
        mine = self._followers.contents()
        contents = differences(mine, others)
        found = failures(mine, others) | contents
        for unit, what in found.items():
            if self.differing.get(unit) != what:
                log.warning("%s is not the same in all workers: %s", unit, what)
        for unit in self.differing.keys() - found.keys():
            log.info("%s is the same in all workers again", unit)
        for unit in self.differing.keys() | contents.keys():
            self._differs(*unit.rsplit("/", 1)).set(int(unit in contents))
        self.differing = found

    def status(self) -> dict[str, Any]:
        """The condition of a store of several hosts, for people; empty for a folder of equal workers."""
        if not (self.fleet.store.spans_hosts or self.differing):
            return {}
        return {**self.fleet.status(), "differing": self.differing}

    def explain_missing(self, saved: LifecycleState) -> None:
        """Add to the errors of versions that serve, and are not in the repository, who wants them."""
        for named, failure in self._followers.unavailable().items():
            if named.rpartition("/")[0] in saved.models and isinstance(failure.error, ModelNotFound):
                failure.error = ModelNotFound(
                    f"{failure.error}. models.state ({self.fleet.store.address}) says that it serves, as it"
                    " was loaded or rolled out: copy it back, or move the state away while no server runs"
                )

    def report_store(self) -> None:
        """Log that the store is lost, and that it is back."""
        store = self.fleet.status()
        if self.fleet.store.spans_hosts:
            self._up().set(int(store["up"]))
        if store["up"] != self._was_up:
            self._was_up = store["up"]
            if store["up"]:
                log.warning("the state of rollouts can be used again: %s", store["address"])
            else:
                log.error(
                    "the state of rollouts cannot be used: %s (%s); requests are served, nothing can be "
                    "changed, and no caller gets a rollout's candidate",
                    store["address"],
                    store["why"],
                )

    # Trials

    def trial(self, unit: Unit) -> Trial:
        """A new trial of this member; it lasts until `end_trial`."""
        trial = Trial(secrets.token_hex(6), unit, self.fleet.store.member)
        self._trials.add(trial.id)
        return trial

    def end_trial(self, trial: Trial) -> None:
        """The change that made a trial is over."""
        self._trials.discard(trial.id)

    async def _sweep(self) -> None:
        """Remove trials that no member makes any more."""
        if any(model.trials for model in self._followers.state.models.values()):
            await self._on_thread(lambda: self.fleet.update(self._without_lost_trials))

    def _without_lost_trials(self, whole: LifecycleState) -> LifecycleState:
        trials = [trial for model in whole.models.values() for trial in model.trials]
        if not trials:
            return whole
        gone = self.fleet.gone({trial.member for trial in trials})

        def is_over(trial: Trial) -> bool:
            mine = trial.member == self.fleet.store.member
            return trial.id not in self._trials if mine else trial.member in gone

        return changes.without_trials(whole, is_over)

    async def _on_thread(self, work: Callable[[], ResultT]) -> ResultT:
        """Use the store: another member may change the state, and disks and networks may be slow."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _with_models(self, state: LifecycleState) -> LifecycleState:
        """The state, and what it does not say: models that were never touched serve as the repository is.

        As it was when the server started: a restarted worker must not find other versions than
        the others have.
        """
        left_out = self._first.left_out
        touched = {name: model for name, model in state.models.items() if left_out.get(name) != model}
        models = self._first.models | self._followers.state.models | touched
        return msgspec.structs.replace(state, models={name: models[name] for name in sorted(models)})

    def _found_first(self, saved: LifecycleState) -> FirstState:
        """Every version of every model, its pinned or newest one serving; models that are not served now.

        Raises: ConfigError: a pin that names nothing of the repository.
        """
        models = {}
        pins = dict(_pin(text) for text in self._pinned)
        for name in self._loader.models():
            units = self._loader.first_units(name)
            pinned = pins.pop(name, units[-1].version)
            serving = next((unit.id for unit in units if unit.version == pinned), None)
            if serving is None:
                there = ", ".join(unit.version for unit in units)
                raise ConfigError(f"models.pinned: {name} has no version {pinned!r}; there are: {there}")
            models[name] = ModelState(units, serving)
            stored = saved.models.get(name)
            if stored is not None and stored.serving not in ("", serving) and pinned != units[-1].version:
                log.warning(
                    "models.pinned: %s/%s is pinned, but %s was loaded or rolled back to since, and serves",
                    name,
                    pinned,
                    stored.serving,
                )
        if pins:
            raise ConfigError(
                f"models.pinned: {', '.join(pins)} is not served; there are: {', '.join(models) or 'none'}"
            )
        left_out = {name: model for name, model in saved.models.items() if name not in models}
        return FirstState(models, left_out)


def _pin(text: str) -> tuple[str, str]:
    """Model and version of a pin. Raises: ConfigError."""
    name, equals, version = text.partition("=")
    if not (name and equals and version):
        raise ConfigError(f"models.pinned: {text!r} is not <model>=<version>, such as risk=7")
    return name, version


async def wait_for_acks(
    read: Callable[[], Awaitable[Mapping[str, Ack]]], generation: int, *, loaded: bool
) -> Mapping[str, str]:
    """Wait until every other member that lives is in line; what any of them could not load, and why.

    Args:
        read: the acknowledgements of the other members that live.
        loaded: wait also until each has loaded what is wanted, however long that takes.

    Raises: StoreUnavailable: the store was lost, and it is not known whether all have loaded.
    """
    failed: dict[str, str] = {}
    done: set[str] = set()
    end = time.monotonic() + _PATIENCE_S
    while True:
        try:
            acks = await read()
        except StoreUnavailable as error:
            if loaded:
                raise
            # A member that does not hear of the change stops sending callers to the candidate.
            log.warning("not known whether every member follows generation %d: %s", generation, error)
            return failed
        for member, ack in acks.items():
            if member in done:
                continue
            if (ack.loaded if loaded else ack.switched) >= generation:
                failed |= ack.failed
                done.add(member)
            elif ack.switched < generation and time.monotonic() > end:
                log.error("member %s did not switch to generation %d of the state", member, generation)
                done.add(member)
        if done >= acks.keys():
            return failed
        await asyncio.sleep(_LOOK_S)


def differences(mine: Mapping[str, str], others: Mapping[str, Ack]) -> dict[str, str]:
    """Units that other members have with another content: "model/unit" -> what differs, for people.

    Args:
        mine: "model/unit" -> content, of this member.
        others: acknowledgements of the other members.
    """
    found: dict[str, str] = {}
    for unit, content in sorted(mine.items()):
        theirs = {
            member: ack.contents[unit]
            for member, ack in sorted(others.items())
            if ack.contents.get(unit, content) != content
        }
        if theirs:
            listed = "; ".join(f"worker {member} has {other}" for member, other in theirs.items())
            found[unit] = f"this worker has {content}; {listed}"
    return found


def failures(mine: Mapping[str, str], others: Mapping[str, Ack]) -> dict[str, str]:
    """Units of this member that another one could not load, and why; as `differences`."""
    return {
        unit: f"worker {member} could not load it: {why}"
        for member, ack in sorted(others.items())
        for unit, why in ack.failed.items()
        if unit in mine
    }
