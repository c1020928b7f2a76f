"""When an event loop waits awake, and when it does not."""

import itertools

import pytest

from turnserve.http1 import listener as module
from turnserve.http1.listener import Spinner

pytestmark = pytest.mark.asyncio


class Clock:
    """Time that passes by turns of the loop."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(module.time, "monotonic", self._tell)

    def _tell(self):
        self.now += 1.0
        return self.now


@pytest.fixture
def turns(monkeypatch):
    """Counts how often the spinner asks to be called again."""
    Clock(monkeypatch)
    counted = []

    class Loop:
        def call_soon(self, callback, *args):
            counted.append((callback, args))

    monkeypatch.setattr(module.asyncio, "get_running_loop", Loop)
    return counted


def _run(turns, at_most=1000):
    """Turn the loop until nobody asks for another turn."""
    done = 0
    while turns:
        callback, args = turns.pop()
        callback(*args)
        done += 1
        assert done < at_most
    return done


async def test_after_an_answer_it_waits_awake_and_then_sleeps(turns):
    spinner = Spinner(10.0)
    spinner.answered()
    assert 8 <= _run(turns) <= 11


async def test_in_vain_it_tries_ever_more_rarely(turns):
    spinner = Spinner(10.0)
    tries = []
    for number in range(3000):
        spinner.answered()
        if turns:
            tries.append(number)
            _run(turns)
    gaps = [b - a for a, b in itertools.pairwise(tries)]
    assert gaps[:4] == [2, 4, 8, 16]
    assert max(gaps) <= 1024


async def test_a_request_in_time_keeps_it_awake(turns):
    spinner = Spinner(10.0)
    for _ in range(5):
        spinner.answered()
        _run(turns)
    awake = 0
    while not turns:
        spinner.answered()
    for _ in range(50):  # the next one comes while it waits
        callback, args = turns.pop()
        callback(*args)
        spinner.came()
        spinner.answered()
        awake += bool(turns)
    assert awake == 50
    _run(turns)
    spinner.answered()  # one miss only: the next answer but one is followed by a wait again
    spinner.answered()
    assert turns


async def test_it_sleeps_while_others_work(turns):
    spinner = Spinner(10.0)
    spinner.answered()
    spinner.num_pending += 1
    assert _run(turns) <= 1
    spinner.num_pending -= 1
    spinner.answered()
    assert turns


async def test_it_can_be_turned_off():
    assert not Spinner(0.0).is_on
