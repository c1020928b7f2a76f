"""Workers with the real lifecycle and state file, and units that are nothing but their names."""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from hopline.answering.unit import Unit
from hopline.config.reader import load_config
from hopline.errors import ArtifactCorrupted, RuntimeFailure
from hopline.models.load import Load
from hopline.observe.metrics import Metrics
from hopline.rollout.lifecycle import Lifecycle
from hopline.rollout.store.fleet import Fleet
from hopline.scheduling.work import Work
from hopline.types import ModelInfo, ScoreRequest, ScoreResult
from tests.fake_version import hand_in

MODEL = "m"
_owner: contextvars.ContextVar[Any] = contextvars.ContextVar("owner", default=None)


class Host:
    """What workers share: a folder, a repository, and what each of them holds.

    Attributes:
        state: where they keep their state: a folder, or the URL of a Redis.
        versions: in the repository. broken: version -> workers that cannot load it.
        held: (worker, unit) -> how often it is held. graph: version of the graph.
    """

    def __init__(self, folder: Path, versions: list[str], state: str = "") -> None:
        self.folder = folder
        self.state = state or folder / "state"
        self.versions = versions
        self.broken: dict[str, set[int]] = {}
        self.held: Counter[tuple[int, str]] = Counter()
        self.graph = "g"
        self.turns = 1  # of the loop, that a load takes
        self._tasks: weakref.WeakKeyDictionary[asyncio.Task[Any], Any] = weakref.WeakKeyDictionary()

    def make_task(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        """A task factory that knows whose tasks they are."""
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
        self._tasks[task] = _owner.get()
        return task

    def tasks_of(self, worker: Worker) -> list[asyncio.Task[Any]]:
        return [task for task, owner in list(self._tasks.items()) if owner is worker and not task.done()]


class Answers:
    """A unit that answers with its name."""

    def __init__(self, unit_id: str, graph: str = "") -> None:
        self.name, self.version = MODEL, unit_id
        self.graph_version = graph
        self.queued_rows = 0

    def accept(self, work: Work) -> None:
        work.finish(ScoreResult(MODEL, self.version, "", {"label": np.zeros(1)}))

    def reject_early(self) -> None:
        pass

    def info(self, versions: tuple[str, ...]) -> ModelInfo:
        return ModelInfo(
            MODEL,
            versions,
            self.version,
            "READY",
            "",
            "node",
            "int",
            (),
            (),
            (),
            "",
            {"artifact_hash": "a"},
        )

    def close(self, why: str) -> None:
        pass

    async def join(self) -> None:
        await asyncio.sleep(0)

    async def release(self) -> None:
        pass


class StubLoader:
    def __init__(self, host: Host, index: int) -> None:
        self._host = host
        self._index = index
        self.repository = SimpleNamespace(address=str(host.folder))
        snapshots = SimpleNamespace(base="", stop=lambda: None)
        inputs = SimpleNamespace(own_failure=None, snapshots=snapshots)
        self.tools = SimpleNamespace(inputs=inputs, in_waiting_thread=asyncio.to_thread)

    def available(self, model: str) -> list[str]:
        return list(self._host.versions) if model == MODEL else []

    def first_units(self, model: str) -> tuple[Unit, ...]:
        return tuple(Unit(version) for version in self.available(model))

    def models(self) -> list[str]:
        return [MODEL]

    def listing(self) -> dict[str, list[str]]:
        return {}

    def nesting(self, model: str) -> int:
        return 0

    def expect(self, num_units: int) -> None:
        pass

    async def load(self, model: str, unit: Any) -> Load:
        host, key = self._host, (self._index, unit.id)
        load = Load(model, unit)
        host.held[key] += 1
        load.hold(lambda: host.held.subtract([key]))
        for _ in range(host.turns):
            await asyncio.sleep(0)
        if self._index in host.broken.get(unit.version, ()):
            await load.give_back()
            raise ArtifactCorrupted(f"{unit.id} is broken here")
        load.served = Answers(unit.id, host.graph)
        return load

    async def check_unchanged(self, load: Load) -> None:
        pass

    def forget(self, model: str, unit_id: str) -> None:
        pass

    async def close(self) -> None:
        pass


class Worker:
    """One worker; `crash` leaves everything as a killed process would."""

    def __init__(self, host: Host, index: int, count: int) -> None:
        self.index = index
        self._host = host
        config = load_config(
            overrides={"models.repository": host.folder, "models.state": host.state}
        ).replace(worker__count=count, worker__index=index, worker__metrics_dir=str(host.folder))
        self.metrics = Metrics()
        self.lifecycle = Lifecycle(config, self.metrics, StubLoader(host, index), [])  # type: ignore[arg-type]

    async def run(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Do something as this worker: all that comes of it is the worker's."""
        token = _owner.set(self)
        try:
            return await asyncio.ensure_future(work())
        finally:
            _owner.reset(token)

    async def crash(self) -> None:
        state = self.lifecycle._state

        def dead(*_: Any, **__: Any) -> Any:
            raise RuntimeFailure("this process is dead")

        fleet = state.fleet
        fleet.update = fleet.acknowledge = dead  # type: ignore[method-assign]
        tasks = self._host.tasks_of(self)
        for _ in range(3):  # what one of them awaits in its end is cut off as well
            for task in tasks:
                task.cancel()
            await asyncio.sleep(0)
            tasks = self._host.tasks_of(self)
        await asyncio.gather(*tasks, return_exceptions=True)
        state._thread.shutdown()
        self.lifecycle._rollouts.close()
        await asyncio.to_thread(silence, fleet)
        if not fleet.store.spans_hosts:
            fleet.store.close()  # a dead process has no locks; a Redis must find out that it is dead
        for key in list(self._host.held):
            if key[0] == self.index:
                del self._host.held[key]

    def answers(self, count: int = 1) -> set[str]:
        """Versions that answer requests which name none; "" where nothing does."""
        scorer = self.lifecycle.loaded.serving.get(MODEL)
        if scorer is None:
            return {""}
        found: set[str] = set()
        for _ in range(count):
            hand_in(scorer, ScoreRequest(MODEL, nodes=[1]), lambda result: found.add(result.version))
        return found

    def view(self) -> dict[str, Any]:
        described = self.lifecycle.describe(MODEL)
        rollout = described["rollout"]
        return {
            "loaded": frozenset(unit["id"] for unit in described["units"]),
            "serving": described["serving"],
            "before": described["previous"],
            "canary": "" if rollout is None else rollout["candidate"],
        }

    def has_read_newest(self) -> bool:
        """Whether the state file has not changed since this worker read it."""
        state = self.lifecycle._state
        return state._followed == state.fleet.store.read().identity

    def ready(self) -> frozenset[str]:
        return frozenset(self.lifecycle.loaded.units.get(MODEL, {}))


def silence(fleet: Fleet) -> None:
    """Have a member say nothing any more, as one that was killed."""
    fleet._closing = True
    fleet._wake.set()
    fleet._thread.join()


def quick_redis(patch: Any) -> None:
    """As `quick`, of a store in a Redis."""
    patch("hopline_stores.redis.state.RedisStateStore.beat_s", 0.01)
    patch("hopline_stores.redis.state._LIFETIME_S", 0.4)
    patch("hopline.rollout.store.fleet._RESTORE_S", 0.03)
    patch("hopline.rollout.store.fleet._JUDGE_READ_S", 0.0)
    patch("hopline.rollout.store.fleet._READ_S", 0.0)
    patch("hopline.rollout.shared_state._SWEEP_S", 0.02)


def quick(patch: Any) -> None:
    """Look at files often: a test waits for that many times."""
    patch("hopline.rollout.lifecycle._LOOK_S", 0.001)
    patch("hopline.rollout.shared_state._LOOK_S", 0.0005)
    patch("hopline.rollout.store.folder.FolderStore.beat_s", 0.002)
    patch("hopline.files.os.fsync", lambda fd: None)
