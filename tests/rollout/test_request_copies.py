"""Copies of requests on their way to another process."""

import asyncio

from hopline.rollout import request_copies as copies_module
from hopline.rollout.request_copies import ProcessCopies
from hopline.types import ScoreRequest, ScoreResult


async def test_what_cannot_be_sent_is_dropped_and_does_not_hold_up_the_rest(monkeypatch):
    """More turns of it than messages may be under way."""
    monkeypatch.setattr(copies_module, "_DISTANT_PAUSE_S", 0.005)
    sent, dropped = [], []

    class Target:
        def compare(self, copies, tolerance, told):
            sent.append(len(copies))

    copies = ProcessCopies(Target(), 0.1, lambda tally: None, lambda: dropped.append(1))
    good = ScoreResult("m", "1", "g", {})
    for turn in range(6):
        copies.offer(ScoreRequest("m", attributes={"what": object()}), good)
        await asyncio.sleep(0.02)
        assert len(dropped) == turn + 1
    copies.offer(ScoreRequest("m"), good)
    await asyncio.sleep(0.05)
    assert sent == [1]
    copies.close()
