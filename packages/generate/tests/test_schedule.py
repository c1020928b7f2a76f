from __future__ import annotations

import dataclasses

import pytest

from hopline.errors import Overloaded, RequestTooLarge
from hopline.scheduling.policy import HIGH, LOW, NORMAL
from hopline_generate.engine import EngineInfo
from hopline_generate.schedule import Need, Schedule

INFO = EngineInfo("naive", "1", 512, block_tokens=10, num_blocks=10)


def schedule(max_running: int = 8, max_queue_tokens: int = 1000) -> Schedule:
    return Schedule(INFO, max_running, max_queue_tokens)


def need(number: int, tokens: int = 10, lane: int = NORMAL, deadline: float = 100.0) -> Need:
    return Need(number, tokens, lane, deadline, 0.0)


def started(found: Schedule) -> list[int]:
    return [each.number for each in found.start()]


def test_texts_start_while_blocks_are_free_and_the_next_when_one_ends() -> None:
    found = schedule()
    for number in range(4):
        found.put(need(number, 35))
    assert started(found) == [0, 1]
    assert found.used_blocks == 8
    assert found.queued_tokens == 70
    found.remove(0)
    assert started(found) == [2]


def test_a_large_text_is_not_overtaken_for_ever() -> None:
    found = schedule()
    found.put(need(0, 60))
    assert started(found) == [0]
    found.put(need(1, 80))
    found.put(need(2, 10))
    assert started(found) == []
    found.remove(0)
    assert started(found) == [1, 2]


def test_a_text_that_runs_alone_waits_for_the_others_and_they_for_it() -> None:
    found = schedule()
    found.put(need(0))
    assert started(found) == [0]
    found.put(dataclasses.replace(need(1), alone=True))
    found.put(dataclasses.replace(need(2), alone=True))
    found.put(need(3))
    found.put(need(4))
    assert started(found) == []  # and 3 does not overtake
    found.remove(0)
    assert list(found.start(is_quiet=False)) == []
    assert started(found) == [1]
    assert started(found) == []
    found.remove(1)
    assert started(found) == [2]
    found.put(need(5, lane=HIGH))
    assert started(found) == []
    found.remove(2)
    assert started(found) == [5, 3, 4]
    assert found.queued_tokens == 0


def test_high_goes_before_low() -> None:
    found = schedule(max_running=1)
    found.put(need(0))
    assert started(found) == [0]
    found.put(need(1, lane=LOW))
    found.put(need(2, lane=NORMAL))
    found.put(need(3, lane=HIGH))
    order = []
    running = 0
    for _ in range(3):
        found.remove(running)
        (running,) = started(found)
        order.append(running)
    assert order == [3, 2, 1]


def test_what_never_fits_is_refused_with_the_number() -> None:
    with pytest.raises(RequestTooLarge, match="101 tokens; the KV cache has room for 100"):
        schedule().put(need(0, 101))


def test_a_full_queue_refuses() -> None:
    found = schedule(max_running=1, max_queue_tokens=30)
    for number in range(4):
        found.put(need(number))
        found_now = started(found)
        assert found_now == ([0] if number == 0 else [])
    with pytest.raises(Overloaded, match="texts of 30 tokens wait"):
        found.put(need(9))


def test_expired_texts_leave_the_queue_and_not_the_batch() -> None:
    found = schedule(max_running=1)
    found.put(need(0, deadline=5.0))
    assert started(found) == [0]
    found.put(need(1, deadline=6.0))
    found.put(need(2, deadline=50.0))
    assert [each.number for each in found.expired(10.0)] == [1]
    assert found.num_queued == 1
    assert found.num_running == 1


def test_removing_gives_everything_back() -> None:
    found = schedule(max_running=2)
    for number in range(5):
        found.put(need(number, 20))
    list(found.start())
    for number in range(5):
        found.remove(number)
    assert (found.used_blocks, found.queued_tokens, found.num_running, found.num_queued) == (0, 0, 0, 0)
