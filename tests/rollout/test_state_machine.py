"""Versions and rollouts of one model on two workers, against a model of what they should do.

Whatever is asked, of whichever worker, at once or one after the other, and whoever crashes meanwhile: all
workers come to one state, which the model allows; no caller is answered by what was rolled back or
unloaded; a model that served goes on serving unless it is unloaded; nothing is held that is not loaded.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hopline.errors import HoplineError
from hopline.rollout.gates import Gates
from hopline.rollout.rollout import RolloutRequest
from tests.redis_servers import RedisProcess, redis_process
from tests.rollout import state_model as model
from tests.rollout.state_model import Believed
from tests.rollout.stub_workers import MODEL, Host, Worker, quick, quick_redis
from tests.thorough import thorough

COUNT = 2
FIRST = ["1", "2"]
#: "4" cannot be loaded anywhere, "5" not by worker 1.
VERSIONS = [*FIRST, "3", "4", "5"]
BROKEN = {"4": {0, 1}, "5": {1}}
PATIENCE_S = 20.0
LOOSE = Gates(min_requests=10**6, max_disagreement=1, max_psi=1e6, max_p99_ratio=1e6, max_p50_ratio=1e6)

workers = st.integers(0, COUNT - 1)
versions = st.sampled_from(VERSIONS)
asked = st.one_of(
    st.tuples(st.just("load"), versions),
    st.tuples(st.just("load beside"), st.sampled_from(["1", "2", "3", "4"])),
    st.tuples(st.just("unload"), versions),
    st.tuples(st.just("unload all"), st.just("")),
    st.tuples(st.just("begin"), versions),
    st.tuples(st.sampled_from(["rollback", "promote"]), st.just("")),
)


def expected(worker: int, verb: str, version: str) -> model.Operation:
    broken = BROKEN.get(version, set())
    breaks = "here" if worker in broken else "there" if broken else ""
    match verb:
        case "load":
            return model.load(version, breaks)
        case "load beside":
            return model.load(version, breaks, serve=False)
        case "unload":
            return model.unload(version)
        case "unload all":
            return model.unload(None)
        case "begin":
            return model.begin(version, breaks)
        case "rollback":
            return model.rollback
        case _:
            return model.promote


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._patches = pytest.MonkeyPatch()
        quick(self._patches.setattr)
        self._folder = tempfile.TemporaryDirectory()
        self.host = Host(Path(self._folder.name), list(FIRST), self.state())
        self.host.broken = BROKEN
        self.loop = asyncio.new_event_loop()
        self.loop.set_task_factory(self.host.make_task)
        self.workers: list[Worker] = []
        #: by the documentation, the newest version serves and all are loaded
        self.now = Believed(frozenset(FIRST), "2")

    def state(self) -> str:
        """Where the workers keep their state; "" for a folder."""
        return ""

    @initialize(turns=st.integers(0, 6))
    def start(self, turns: int) -> None:
        self.host.turns = turns
        for index in range(COUNT):
            self.workers.append(self.begun(index))
        self.host.versions = VERSIONS

    def begun(self, index: int) -> Worker:
        worker = Worker(self.host, index, COUNT)
        self.loop.run_until_complete(worker.run(worker.lifecycle.start))
        return worker

    # Operations

    def ask(self, worker: int, verb: str, version: str) -> Any:
        lifecycle = self.workers[worker].lifecycle
        match verb:
            case "load" | "load beside":
                work: Any = partial(lifecycle.load, MODEL, version, serve=verb == "load")
            case "unload" | "unload all":
                work = partial(lifecycle.unload, MODEL, version or None)
            case "begin":
                request = RolloutRequest(
                    MODEL, version, steps=(50.0, 100.0), min_step_s=1e6, preflight=0, gates=LOOSE
                )
                work = partial(lifecycle.begin, request)
            case _:
                work = partial(lifecycle.decide, MODEL, verb)
        return self.workers[worker].run(work)

    async def result(self, worker: int, verb: str, version: str) -> str:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self.ask(worker, verb, version)
        except HoplineError:
            return "refused"
        self.check_at_once(verb, version)
        return "ok"

    def check_at_once(self, verb: str, version: str) -> None:
        """All workers have switched before a call returns; asked of one at a time only."""
        if not self._alone:
            return
        for worker in self.workers:
            if verb == "rollback":
                assert worker.answers(64) <= self._after, f"worker {worker.index} answers otherwise"
            elif verb == "unload":
                assert version not in worker.answers(64)

    async def watched(self, *calls: Any) -> list[str]:
        """Results of calls, while every worker is asked all the time."""
        gaps = []

        async def look() -> None:
            while True:
                gaps.extend(worker.index for worker in self.workers if worker.answers() == {""})
                await asyncio.sleep(0.0005)

        looking = asyncio.ensure_future(look())
        try:
            results = await asyncio.gather(*calls)
        finally:
            looking.cancel()
        self.gaps = gaps
        return results

    @rule(worker=workers, what=asked)
    def one(self, worker: int, what: tuple[str, str]) -> None:
        allowed = model.outcomes(self.now, [expected(worker, *what)])
        ((_, after),) = allowed
        self._alone, self._after = True, after.answering or {""}
        results = self.loop.run_until_complete(self.watched(self.result(worker, *what)))
        if self.now.serving and after.serving:
            assert not self.gaps, f"workers {set(self.gaps)} did not answer meanwhile"
        self.come_to(allowed, results)

    @rule(calls=st.lists(st.tuples(workers, asked), min_size=2, max_size=3))
    def at_once(self, calls: list[tuple[int, tuple[str, str]]]) -> None:
        allowed = model.outcomes(self.now, [expected(worker, *what) for worker, what in calls])
        self._alone = False
        results = self.loop.run_until_complete(
            self.watched(*[self.result(worker, *what) for worker, what in calls])
        )
        if self.now.serving and not any(what[0].startswith("unload") for _, what in calls):
            assert not self.gaps
        self.come_to(allowed, results, calls)

    @rule(worker=workers, what=asked, pause=st.integers(0, 40))
    def crash_during(self, worker: int, what: tuple[str, str], pause: int) -> None:
        allowed = model.prefixes(self.now, expected(worker, *what))

        async def fall() -> None:
            call = asyncio.ensure_future(self.ask(worker, *what))
            for _ in range(pause + 1):
                await asyncio.sleep(0.0001)
            await self.workers[worker].crash()
            await asyncio.gather(call, return_exceptions=True)

        self.loop.run_until_complete(fall())
        self.workers[worker] = self.begun(worker)
        self.come_to({(("",), state) for state in allowed}, [""])

    @rule(worker=workers)
    def crash(self, worker: int) -> None:
        self.loop.run_until_complete(self.workers[worker].crash())
        self.workers[worker] = self.begun(worker)

    @rule(worker=workers, what=asked, pause=st.integers(0, 40))
    def hang_up(self, worker: int, what: tuple[str, str], pause: int) -> None:
        """The caller goes; the operation does not."""
        allowed = model.outcomes(self.now, [expected(worker, *what)])

        async def leave() -> None:
            lifecycle = self.workers[worker].lifecycle
            call = asyncio.ensure_future(self.ask(worker, *what))
            for _ in range(pause + 1):
                await asyncio.sleep(0.0001)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            async with asyncio.timeout(PATIENCE_S):
                await lifecycle._changes.join()

        self.loop.run_until_complete(leave())
        states = {state for _, state in allowed} | ({self.now} if pause < 20 else set())
        self.come_to({(("",), state) for state in states}, [""])

    # What holds

    def come_to(self, allowed: set[model.Outcome], results: list[str], calls: object = ()) -> None:
        """All workers come to one state that is allowed; the model goes on from it."""
        states = {state for found, state in allowed if list(found) == results}
        assert states, (
            f"{calls} in {self.now}: {results} is none of {sorted(found for found, _ in allowed)}"
        )
        seen: list[Any] = []

        async def settle() -> Believed:
            # Before a worker has read the newest file it shows the state before, which may be allowed too.
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    found = next((state for state in states if self.fits(state, seen)), None)
                    if found is not None and all(worker.has_read_newest() for worker in self.workers):
                        return found
                    await asyncio.sleep(0.001)

        try:
            self.now = self.loop.run_until_complete(settle())
        except TimeoutError:
            raise AssertionError(f"{seen} is none of {states}") from None

    def fits(self, state: Believed, seen: list[Any]) -> bool:
        views = [worker.view() for worker in self.workers]
        seen[:] = views, [worker.ready() for worker in self.workers], +self.host.held
        return all(
            view == {name: getattr(state, name) for name in view}
            and worker.ready() == state.loaded
            and worker.answers(64) == (state.answering or {""})
            for view, worker in zip(views, self.workers, strict=True)
        ) and +self.host.held == {(index, unit_id): 1 for index in range(COUNT) for unit_id in state.loaded}

    @invariant()
    def workers_agree(self) -> None:
        if self.workers:
            self.come_to({(("",), self.now)}, [""])

    @invariant()
    def whatever_is_loaded_serves(self) -> None:
        assert bool(self.now.serving) == bool(self.now.loaded)

    def teardown(self) -> None:
        async def end() -> None:
            for worker in self.workers:
                await worker.lifecycle.close()

        try:
            self.loop.run_until_complete(end())
            assert not +self.host.held, "held at the end"
        finally:
            self.loop.close()
            self._folder.cleanup()
            self._patches.undo()


Machine.TestCase.settings = settings(
    max_examples=thorough(6, 25),
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestMachine = Machine.TestCase


class RedisMachine(Machine):
    """Each worker is one on a host of its own, and all share a Redis."""

    server: RedisProcess
    fleets = itertools.count()

    def state(self) -> str:
        quick_redis(self._patches.setattr)
        return f"{self.server.url}/0?prefix=fleet-{next(self.fleets)}:"


RedisMachine.TestCase.settings = settings(Machine.TestCase.settings, max_examples=thorough(3, 8))


@pytest.mark.usefixtures("redis_of_machine")
class TestRedisMachine(RedisMachine.TestCase):  # type: ignore[name-defined,misc]
    pass


@pytest.fixture(scope="module")
def redis_of_machine() -> Iterator[None]:
    with redis_process() as RedisMachine.server:
        yield
