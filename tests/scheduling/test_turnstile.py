"""Queues of one loop take turns: who has used least goes first, and a flood delays only itself."""

import random

from hopline.scheduling.turnstile import Turnstile


def run_all(turns, seconds, cost_s):
    """Turns that always have something, one after the other as a loop would; who ran, in order."""
    order, now, at = [], 0.0, 0
    for turn in turns:
        turn.wait()
    while now < seconds:
        turn = turns[at % len(turns)]
        at += 1
        if turn.must_wait():
            continue
        turn.begin(now)
        now += cost_s(turn)
        turn.wait()
        turn.end(cost_s(turn))
        order.append(turn)
    return order


def test_equal_queues_share_the_loop_evenly_whatever_a_batch_of_theirs_takes():
    gate = Turnstile()
    cheap, dear = gate.enter(), gate.enter()
    run_all([cheap, dear], 10.0, lambda turn: 0.001 if turn is cheap else 0.01)
    assert abs(cheap.used - dear.used) <= 0.02


def test_shares_are_kept():
    gate = Turnstile()
    high, normal, low = gate.enter(4.0), gate.enter(1.0), gate.enter(0.25)
    order = run_all([high, normal, low], 50.0, lambda turn: 0.01)
    counts = [order.count(turn) for turn in (high, normal, low)]
    assert abs(counts[0] / counts[1] - 4) < 0.1
    assert abs(counts[1] / counts[2] - 4) < 0.1


def test_who_comes_to_a_flooded_loop_goes_next():
    gate = Turnstile()
    flood, quiet = gate.enter(), gate.enter()
    now = 0.0
    for _ in range(1000):
        flood.wait()
        flood.begin(now)
        flood.end(0.001)
        now += 0.001
    for _ in range(20):  # again and again
        flood.wait()
        quiet.wait()
        assert flood.must_wait()
        assert not quiet.must_wait()
        quiet.begin(now)
        quiet.end(0.0001)
        assert not flood.must_wait()
        flood.begin(now)
        flood.end(0.001)
        now += 0.0011


def test_idleness_saves_nothing_up():
    gate = Turnstile()
    busy, idle = gate.enter(), gate.enter()
    run_all([busy], 100.0, lambda turn: 0.01)
    idle.wait()
    order = run_all([busy, idle], 1.0, lambda turn: 0.01)
    assert 40 <= order.count(idle) <= 60  # not all of it


def test_a_slice_is_requested_only_while_others_are_there():
    gate = Turnstile()
    one, other = gate.enter(), gate.enter()
    assert [one.begin(at / 10) for at in range(3)] == [False] * 3
    assert other.begin(0.4)
    assert one.begin(0.5)
    assert [one.begin(now) for now in (1.0, 1.4, 1.6, 2.5)] == [True, True, False, False]
    assert not other.begin(10.0)  # the first one went long ago


def test_somebody_may_always_go():
    rng = random.Random(3)
    gate = Turnstile()
    turns = [gate.enter(rng.choice([4.0, 1.0, 0.25])) for _ in range(10)]
    waiting = set()
    for step in range(5000):
        for turn in turns:
            if turn not in waiting and rng.random() < 0.3:
                turn.wait()
                waiting.add(turn)
        ready = [turn for turn in waiting if not turn.must_wait()]
        assert ready or not waiting
        if ready:
            ready[0].begin(step / 1000)
            ready[0].end(rng.random() / 100)
            waiting.discard(ready[0])
