"""What a load holds is given back once."""

import pytest

from hopline.rollout.load import Load
from hopline.rollout.unit import Unit


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
