"""One timer tells of everything in its time."""

import asyncio

import pytest

from hopline.features.overdue import Overdue
from tests.features.virtual_time import now, virtual_time


@virtual_time
async def test_each_thing_is_reported_when_its_own_time_is_over():
    told, began = {}, now()
    overdue = Overdue(0.02, lambda thing: told.setdefault(thing, now() - began))
    for thing in range(10):
        overdue.add(thing, asyncio.get_running_loop())
        await asyncio.sleep(0.003)
    await asyncio.sleep(0.1)
    assert told == {thing: pytest.approx(0.003 * thing + 0.02) for thing in range(10)}


@virtual_time
async def test_a_thing_may_be_added_while_another_is_reported():
    told, loop = [], asyncio.get_running_loop()

    def tell(thing):
        told.append((thing, round(now() - began, 6)))
        if thing < 3:
            overdue.add(thing + 1, loop)

    began = now()
    overdue = Overdue(0.01, tell)
    overdue.add(1, loop)
    await asyncio.sleep(0.1)
    assert told == [(1, 0.01), (2, 0.02), (3, 0.03)]


@virtual_time
async def test_nothing_is_reported_after_clear_but_what_comes_later():
    told, loop = [], asyncio.get_running_loop()
    overdue = Overdue(0.01, told.append)
    overdue.add("a", loop)
    overdue.clear()
    await asyncio.sleep(0.1)
    assert told == []
    overdue.add("b", loop)
    await asyncio.sleep(0.1)
    assert told == ["b"]
