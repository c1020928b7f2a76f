"""Who works beside keeps to its processors, who serves is on another one at the moment that counts."""

import os
import subprocess
import sys
import threading

import pytest

from hopline import aside

two = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one processor")


def in_thread(work):
    """Run in a thread of its own, whose processors are nobody else's business."""
    found = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def test_of_one_processor_none_is_aside():
    assert aside.processors_aside({3}) == set()
    assert aside.processors_aside({0, 2, 5}) == {5}
    assert aside.processors_aside(range(8)) == {4, 5, 6, 7}


@two
def test_what_works_beside_is_bound_with_all_that_it_starts():
    code = (
        "import os, threading; from hopline.aside import keep_aside;"
        "print(bool(keep_aside()), os.sched_getaffinity(0));"
        "t = threading.Thread(target=lambda: print(os.sched_getaffinity(0))); t.start(); t.join()"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    bound = aside.processors_aside(os.sched_getaffinity(0))
    assert said.splitlines() == [f"True {bound}", f"{bound}"]


@two
def test_what_was_loaded_comes_back_with_all_its_threads():
    code = (
        "import os, threading; from hopline.aside import come_back, keep_aside; before = keep_aside();"
        "go = threading.Event();"
        "t = threading.Thread(target=lambda: (go.wait(), print(os.sched_getaffinity(0)))); t.start();"
        "come_back(before); print(os.sched_getaffinity(0)); go.set(); t.join()"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == [str(os.sched_getaffinity(0))] * 2


@two
def test_who_serves_moves_away_and_keeps_its_processors():
    allowed = os.sched_getaffinity(0)

    def work():
        found = []
        for _ in range(20):
            os.sched_setaffinity(0, {max(allowed)})
            os.sched_setaffinity(0, allowed)
            was_there = aside._current() in aside.processors_aside(allowed)
            found.append((was_there, aside.make_room(), os.sched_getaffinity(0)))
        return found

    found = in_thread(work)
    assert any(was_there for was_there, _, _ in found)
    assert all(moved == was_there for was_there, moved, _ in found)
    assert all(now == allowed for _, _, now in found)


def test_who_may_use_one_processor_only_stays():
    def work():
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        return aside.make_room(), bool(aside.keep_aside()), len(os.sched_getaffinity(0))

    assert in_thread(work) == (False, False, 1)
