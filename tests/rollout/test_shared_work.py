"""Work that several callers wait for: whoever hangs up, it goes on."""

import asyncio
import logging

import pytest

from hopline.errors import Conflict, Unavailable
from hopline.rollout.shared_work import SharedWork


class Work:
    def __init__(self):
        self.begun = 0
        self.ended = asyncio.Event()

    async def __call__(self):
        self.begun += 1
        await self.ended.wait()
        return self.begun


async def begun(work):
    while not work.begun:  # noqa: ASYNC110 - a turn of the loop
        await asyncio.sleep(0)


async def test_callers_of_the_same_work_wait_for_one_of_it():
    shared, work = SharedWork("work"), Work()
    callers = [asyncio.ensure_future(shared.result("key", work)) for _ in range(5)]
    await begun(work)
    assert "key" in shared
    work.ended.set()
    assert await asyncio.gather(*callers) == [1] * 5
    assert "key" not in shared
    assert await shared.result("key", work) == 2  # what is over is begun anew


async def test_a_caller_that_hangs_up_stops_neither_the_work_nor_the_others():
    shared, work = SharedWork("work"), Work()
    impatient = asyncio.ensure_future(shared.result("key", work))
    patient = asyncio.ensure_future(shared.result("key", work))
    await begun(work)
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    work.ended.set()
    assert await patient == 1
    assert work.begun == 1


async def test_work_that_every_caller_left_goes_on_and_its_failure_is_logged(caplog):
    shared, entered, allowed = SharedWork("a load"), asyncio.Event(), asyncio.Event()

    async def fails():
        entered.set()
        await allowed.wait()
        raise Conflict("no memory left")

    caller = asyncio.ensure_future(shared.result("key", fails))
    await entered.wait()
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    with caplog.at_level(logging.ERROR):
        allowed.set()
        await shared.join()
    assert "a load, which no caller waits for any more, failed: no memory left" in caplog.text


async def test_a_failure_reaches_every_caller():
    shared = SharedWork("work")

    async def fails():
        await asyncio.sleep(0)
        raise Conflict("no")

    outcomes = await asyncio.gather(
        *[shared.result("key", fails) for _ in range(3)], return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [Conflict] * 3


async def test_callers_are_notified_when_the_server_ends():
    shared, work = SharedWork("work"), Work()
    caller = asyncio.ensure_future(shared.result("key", work))
    await begun(work)
    await shared.close()
    with pytest.raises(Unavailable, match="shutting down"):
        await caller
