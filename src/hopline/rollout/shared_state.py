"""The state of models that all workers of a host share: followed, changed, acknowledged.

Each worker looks at the file many times a second. What may be changed is decided on the newest state, under
the file's lock; the file is read and written on a thread.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from hopline.config.schema import Config
from hopline.errors import ConfigError, RuntimeFailure
from hopline.files import temporary_root
from hopline.rollout import changes
from hopline.rollout.acknowledge import Acknowledgements
from hopline.rollout.loaded_units import LoadedUnits
from hopline.rollout.loader import Loader
from hopline.rollout.rollout import Rollout
from hopline.rollout.state import FirstState, Identity, LifecycleState, ModelState, StateFile
from hopline.rollout.unit import Unit

log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")
Change = Callable[[ModelState], ModelState]


class SharedState:
    """The state of all models, shared by the workers of a host.

    Args:
        config: which worker this is, and of how many.
        loader: says what the repository holds.
        ended: is called with each rollout that a change of this worker ended.

    Attributes:
        folder: of the state.
    """

    def __init__(self, config: Config, loader: Loader, ended: Callable[[Rollout], object]) -> None:
        self._config = config
        self._loader = loader
        self._ended = ended
        self._own_folder: str | None = None
        self.folder = self._folder(config)
        self._file = StateFile(self.folder)
        self._acks = Acknowledgements(config, self.folder)
        #: Content of the file that this worker follows.
        self._followed: Identity = None
        #: Generation of the state of which all was loaded or could not be, and what could not be.
        self._settled = 0
        self._failed: Mapping[str, str] = {}
        self._first = FirstState({})
        # Its own thread: loads may occupy shared threads for minutes.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hopline-state")
        self._fleet: LoadedUnits | None = None

    @property
    def _followers(self) -> LoadedUnits:
        assert self._fleet is not None, "the state is not open"
        return self._fleet

    def open(self, fleet: LoadedUnits) -> LifecycleState:
        """Have a fleet follow the state from what it is now; returns what is in the file.

        Raises:
            ConfigError: no repository, nothing in it, or a state file that cannot be used.
        """
        self._fleet = fleet
        self._file.open()
        worker = self._config.worker
        try:
            saved = self._file.update(
                lambda whole: changes.without_trials_of(whole, worker.index, worker.count)
            )
        except OSError as error:
            raise ConfigError(f"models.state: {self.folder} cannot be written: {error}") from None
        self._first = self._acks.first(lambda: self._found_first(saved))
        fleet.state = self._with_models(saved)
        return saved

    def close(self) -> None:
        """Read and write no more."""
        self._thread.shutdown()
        if self._own_folder is not None:
            shutil.rmtree(self._own_folder, ignore_errors=True)

    async def follow(self) -> None:
        """Bring this worker in line with what the file says now."""
        if self._file.identity() == self._followed:
            return
        state, identity = await self._on_thread(self._file.read_identified)
        self._followers.adopt(self._with_models(state))
        self._followed = identity

    async def publish(
        self,
        model: str,
        change: Change,
        *,
        until: Literal["written", "switched", "loaded"] = "switched",
        adds: bool = False,
    ) -> Mapping[str, str]:
        """Change a model's state everywhere; returns units that a worker could not load, and why.

        Args:
            change: gets the newest state, on a thread; see `changes.py`.
            until: every worker follows it (has also loaded what is wanted), or only that it is written.
            adds: as for `StateFile.update`.

        Raises:
            HoplineError: what `change` raised; nothing changed.
            RuntimeFailure: the state cannot be written; nothing changed.
        """
        fleet = self._followers
        ended: list[Rollout] = []

        def noting(state: ModelState) -> ModelState:
            after = change(state)
            if state.rollout is not None and after.rollout is None:
                ended.append(after.past[-1])
            return after

        update = functools.partial(self.update, model, noting, adds=adds)
        try:
            state = await self._on_thread(update)
        except OSError as error:
            raise RuntimeFailure(f"the lifecycle's state cannot be written: {error}") from None
        for rollout in ended:
            self._ended(rollout)
        fleet.adopt(state)
        if until == "written":
            return {}
        return await self._acks.of_all(state.generation, loaded=until == "loaded")

    def update(self, model: str, change: Change, *, adds: bool = False) -> LifecycleState:
        """Write a change of one model; blocks. This worker follows it once it is adopted.

        Raises: OSError, or as `publish`.
        """
        followed = self._followers.state
        present = followed.models.get(model) or ModelState()
        return self._with_models(
            self._file.update(
                lambda whole: changes.changed(whole, model, change, present),
                known=followed.generation,
                adds=adds,
            )
        )

    def acknowledge(self) -> None:
        """Tell the other workers how far this one is."""
        fleet = self._followers
        generation = fleet.state.generation
        if fleet.is_settled:
            # Kept together: a later generation may try again what failed, which is not a success of this
            # one.
            self._settled = generation
            self._failed = {f"{name}/{unit_id}": fleet.why(name, unit_id) for name, unit_id in fleet.failed}
        self._acks.say(generation, self._settled, self._failed)

    async def _on_thread(self, work: Callable[[], ResultT]) -> ResultT:
        """Read or write the state: another worker may have its lock, and disks may be slow."""
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
        """Every version of every model, the newest serving; models that are not served any more."""
        models = {}
        for name in self._loader.models():
            units = tuple(Unit(version) for version in self._loader.available(name))
            models[name] = ModelState(units, units[-1].id)
        left_out = {name: model for name, model in saved.models.items() if name not in models}
        return FirstState(models, left_out)

    def _folder(self, config: Config) -> Path:
        """Where the state lies: as configured, in the models' folder, or in a temporary one."""
        models = config.models
        if models.state is not None:
            return models.state
        local = Path(str(models.repository))
        if "://" not in str(models.repository) and os.access(local, os.W_OK):
            return local / ".hopline"
        log.warning(
            "models.state is not set and %s cannot be written: rollouts will not survive a restart",
            models.repository,
        )
        if config.worker.metrics_dir:
            return Path(config.worker.metrics_dir) / "state"
        self._own_folder = tempfile.mkdtemp(prefix="hopline-state-", dir=temporary_root())
        return Path(self._own_folder)
