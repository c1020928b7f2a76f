"""What a load holds is given back once."""

import contextlib

import pytest

from hopline.answering.unit import Unit
from hopline.errors import Overloaded
from hopline.models.load import Load, LoadLimit


class Answers:
    def __init__(self, given_back, *, fails=False):
        self._given_back = given_back
        self._fails = fails

    async def release(self):
        self._given_back.append("answers")
        if self._fails:
            raise OSError("the process is gone")


async def test_all_is_given_back_once_the_last_taken_first():
    given_back = []

    async def close():
        given_back.append("store")

    load = Load("sage", Unit("2"))
    load.hold_async(close)
    load.hold(lambda: given_back.append("region"))
    load.served = Answers(given_back)
    await load.give_back()
    assert given_back == ["answers", "region", "store"]
    await load.give_back()
    assert given_back == ["answers", "region", "store"]


async def test_what_a_load_that_failed_had_taken_is_given_back():
    given_back = []
    load = Load("sage", Unit("2"))
    load.hold(lambda: given_back.append("region"))
    await load.give_back()
    assert given_back == ["region"]


async def test_one_that_cannot_be_given_back_keeps_none_of_the_others():
    given_back = []
    load = Load("sage", Unit("2"))
    load.hold(lambda: given_back.append("region"))
    load.served = Answers(given_back, fails=True)
    with pytest.raises(OSError, match="gone"):
        await load.give_back()
    assert given_back == ["answers", "region"]


def test_loads_under_way_are_bounded_and_addresses_leave_room_for_the_others():
    limit = LoadLimit(4)
    with contextlib.ExitStack() as stack:
        for number in range(2):
            stack.enter_context(limit.counted(f"https://snapshots.example/{number}"))
        with pytest.raises(Overloaded, match="2 loads from an address are under way"):
            stack.enter_context(limit.counted("s3://snapshots/new"))
        stack.enter_context(limit.counted(""))
        stack.enter_context(limit.counted("/data/graph"))
        with pytest.raises(Overloaded, match="2 loads from this host"):
            stack.enter_context(limit.counted("/data/graph"))
    with limit.counted("s3://snapshots/new"), limit.counted(""):
        pass
