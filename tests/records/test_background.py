"""Records that never make anybody wait: what there is no room for is counted, what is pending gets done."""

import asyncio
import threading

from hopline.observe.metrics import Counter
from hopline.records.background import BackgroundQueue


async def test_what_was_put_is_worked_on_in_order_before_the_end():
    seen, dropped = [], Counter()
    queue = BackgroundQueue("test", seen.extend, 100, dropped)
    for number in range(50):
        queue.put(number)
    await queue.close()
    assert seen == list(range(50))
    assert dropped.value == 0


async def test_what_there_is_no_room_for_is_counted_and_room_comes_back():
    seen, dropped = [], Counter()
    gate, began = threading.Event(), threading.Event()

    def work(items):
        for item in items:
            began.set()
            assert gate.wait(5)
            seen.append(item)

    queue = BackgroundQueue("test", work, 10, dropped)
    queue.put("a", 8)
    assert began.wait(5)
    queue.put("b", 3)  # what is being worked on still counts
    queue.put("c", 2)
    assert dropped.value == 3
    gate.set()
    while queue._num_taken < 10:  # noqa: ASYNC110 - a thread tells
        await asyncio.sleep(0.01)
    queue.put("d", 10)
    await queue.close()
    assert seen == ["a", "c", "d"]
    assert dropped.value == 3


async def test_a_piece_of_work_that_fails_does_not_end_the_thread(caplog):
    seen = []

    def work(items):
        for item in items:
            if item == 13:
                raise ValueError("bad luck")
            seen.append(item)

    queue = BackgroundQueue("test", work, 100, Counter())
    queue.put(13)
    while not caplog.records:  # noqa: ASYNC110 - a thread tells
        await asyncio.sleep(0.01)
    queue.put(14)
    await queue.close()
    assert seen == [14]
    assert "records are lost" in caplog.text
