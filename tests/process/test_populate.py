"""The thread that populates memory ahead of its first use."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading

import numpy as np

from hopline.process import populate
from hopline.process.populate import LOOK_BYTES, STEP_BYTES, Populator
from tests.containers import limited

PLENTY = 1 << 50


def region(num_bytes: int) -> mmap.mmap:
    return mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def resident(mapping: mmap.mmap) -> int:
    """Bytes of a mapping that the kernel has backed with memory, by its own account."""
    address = np.frombuffer(mapping, np.uint8).ctypes.data
    pages = -(-len(mapping) // mmap.PAGESIZE)
    with open("/proc/self/pagemap", "rb") as file:
        file.seek(address // mmap.PAGESIZE * 8)
        entries = np.frombuffer(file.read(8 * pages), np.uint64)
    return int((entries >> np.uint64(63)).sum()) * mmap.PAGESIZE


def test_every_page_of_a_region_is_backed_and_its_content_stays():
    mapping = region(3 * STEP_BYTES + 4096)
    mapping[5] = 7
    assert resident(mapping) < len(mapping)
    populator = Populator(lambda: PLENTY)
    populator.add(mapping)
    populator.join()
    assert resident(mapping) == len(mapping)
    assert mapping[5] == 7
    assert not any(mapping[6:4096])


def test_nothing_is_populated_beyond_the_room():
    mapping = region(2 * LOOK_BYTES)
    free = LOOK_BYTES + STEP_BYTES
    populator = Populator(lambda: free - resident(mapping))
    populator.add(mapping)
    populator.join()
    assert LOOK_BYTES < resident(mapping) <= free


def test_a_small_region_needs_no_more_room_than_its_size():
    mapping = region(STEP_BYTES)
    populator = Populator(lambda: STEP_BYTES)
    populator.add(mapping)
    populator.join()
    assert resident(mapping) == len(mapping)


def test_the_room_is_the_available_memory_without_a_reserve(monkeypatch):
    monkeypatch.setattr(populate, "available_bytes", lambda: 500)
    monkeypatch.setattr(populate, "memory_bytes", lambda: 800)
    assert populate.room_left() == 400


def test_the_thread_that_populates_has_the_lowest_priority():
    mapping = region(LOOK_BYTES + STEP_BYTES)
    seen: list[int] = []

    def room() -> int:
        if resident(mapping):  # a step was done, so the thread is at work, or has ended just now
            threads = [each for each in threading.enumerate() if each.name == "hopline-populate-step"]
            seen.extend(os.getpriority(os.PRIO_PROCESS, each.native_id) for each in threads)
        return PLENTY

    populator = Populator(room)
    populator.add(mapping)
    populator.join()
    assert seen
    assert set(seen) == {19}


def test_a_removed_region_is_not_touched_again():
    mapping, other = region(2 * LOOK_BYTES), region(4096)
    done: list[int] = []

    def room() -> int:
        if resident(mapping) and not done:
            populator.remove(mapping)
            done.append(resident(mapping))
        return PLENTY

    populator = Populator(room)
    populator.add(mapping)
    populator.add(other)
    populator.join()
    assert done == [resident(mapping)]
    assert done[0] < len(mapping)
    assert resident(other) == len(other)


def test_a_region_that_is_removed_before_its_turn_is_never_touched():
    first, second = region(LOOK_BYTES), region(STEP_BYTES)

    def room() -> int:
        populator.remove(second)
        return PLENTY

    populator = Populator(room)
    populator.add(first)
    populator.add(second)
    populator.join()
    assert resident(first) == len(first)
    assert not resident(second)


def test_close_ends_the_threads_and_a_later_region_starts_new_ones():
    populator = Populator(lambda: PLENTY)
    first, second = region(4 * LOOK_BYTES), region(STEP_BYTES)
    populator.add(first)
    populator.close()
    assert not any(each.name.startswith("hopline-populate") for each in threading.enumerate())
    assert resident(first) < len(first)
    populator.add(second)
    populator.join()
    assert resident(second) == len(second)


def test_memory_that_the_kernel_refuses_to_populate_ends_the_work():
    mapping = mmap.mmap(-1, 4 * STEP_BYTES, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE)
    populator = Populator(lambda: PLENTY)
    populator.add(mapping)
    populator.join()
    assert not resident(mapping)


CONFINED = """
import mmap, sys
for path in sys.argv[1:]:
    open(path, "w").write("0")
import hopline.process.populate as populate
from hopline.process.cgroup import memory_bytes
mapping = mmap.mmap(-1, 600 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
populator = populate.Populator()
populator.add(mapping)
populator.join()
print(populate.room_left(), memory_bytes())
"""


def test_a_real_group_is_not_filled_beyond_its_reserve():
    """Without the limit, the kernel would end the process."""
    with limited(memory_bytes=400 << 20) as files:
        done = subprocess.run(
            [sys.executable, "-c", CONFINED, *map(str, files)], capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr
    left, memory = map(int, done.stdout.split())
    if files:  # tests may make groups here
        assert memory == 400 << 20
        assert -(16 << 20) < left < 16 << 20
