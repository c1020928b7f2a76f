"""Deviations between intervals are kept while somebody uses them, and follow events and intervals."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from hopline.errors import BadRequest, ModelNotReady
from hopline_mesh.changes import Context
from hopline_mesh.detect import DetectorSettings, MeshDetector
from hopline_mesh.detect.live import Event
from hopline_mesh.out.between import Between
from packages.mesh.tests.detect.meshes import play

_LEARNT = 40


class Judge:
    """A detector that goes on, interval by interval."""

    def __init__(self):
        self._left = list(play(_LEARNT + 60))
        self.detector = MeshDetector(DetectorSettings())
        self.detector.fit(self._left[:_LEARNT], [Context()] * _LEARNT)
        self._left = self._left[_LEARNT:]
        self.newest = None
        self.made = 0

    def step(self):
        self.newest = self._left.pop(0)
        self.detector.step(self.newest, Context())

    def live(self):
        if self.newest is None:
            raise ModelNotReady("not yet")
        self.made += 1
        return self.detector.live(self.newest)


@pytest.fixture
def judge():
    return Judge()


@pytest.fixture
def now():
    return [0.0]


@pytest.fixture
def live(judge, now):
    with ThreadPoolExecutor(1) as thread:
        yield Between(judge.live, thread, asyncio.Lock(), clock=lambda: now[0])


LOUD = Event(service="pay", values={"p99_ms": 900.0, "cpu_cores": 5.0, "request_rate": 1.0})


async def test_nobody_pays_for_what_nobody_uses(judge, live):
    judge.step()
    await live.renew()
    assert (live.now, judge.made) == (None, 0)
    first, second = await asyncio.gather(live.state(), live.state())
    assert first is second is live.now
    assert judge.made == 1
    for _ in range(40):
        judge.step()
        await live.renew()
    assert judge.made == 41
    await live.renew()
    assert (live.now, judge.made) == (None, 41)


async def test_before_the_first_interval_that_is_said(live):
    with pytest.raises(ModelNotReady):
        await live.state()


async def test_an_interval_takes_the_place_of_the_events_before_it_only(judge, live, now):
    judge.step()
    state = await live.state()
    usual = state.deviations("pay")
    now[0] = judge.newest.time_s + 5
    assert live.take(LOUD) == ["pay"]
    assert state.deviations("pay")["p99_ms"] > 5 + usual["p99_ms"]
    with pytest.raises(BadRequest):
        live.take(Event(service="nobody", values={"p99_ms": 1.0}))
    judge.step()
    now[0] = judge.newest.time_s + 1
    live.take(Event(caller="store", callee="pay", values={"client_ms": 30.0}))  # while it was judged
    await live.renew()
    assert live.now is not state
    assert live.now.time_s == judge.newest.time_s
    without = judge.detector.live(judge.newest)
    assert live.now.calls("store") != without.calls("store"), "taken again"
    without.take(Event(caller="store", callee="pay", values={"client_ms": 30.0}))
    assert live.now.calls("store") == without.calls("store")
    assert live.now.deviations("pay") == without.deviations("pay"), "but not the one before"


async def test_a_state_is_not_made_while_the_judge_is_at_work(judge, now):
    judge.step()
    lock = asyncio.Lock()
    with ThreadPoolExecutor(1) as thread:
        live = Between(judge.live, thread, lock, clock=lambda: now[0])
        async with lock:
            waiting = asyncio.ensure_future(live.state())
            await asyncio.sleep(0.05)
            assert (waiting.done(), judge.made) == (False, 0)
        assert (await waiting).time_s == judge.newest.time_s
