"""Background work stays on its CPUs; a serving thread leaves them when it wakes that work."""

import os
import subprocess
import sys
import threading

import pytest

from hopline.process import cpu_affinity

two = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one CPU")


def in_thread(work):
    """Run in a thread of its own, whose allowed CPUs nothing else depends on."""
    found = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def test_one_allowed_cpu_leaves_none_for_background_work():
    assert cpu_affinity.background_cpus({3}) == set()
    assert cpu_affinity.background_cpus({0, 2, 5}) == {5}
    assert cpu_affinity.background_cpus(range(8)) == {4, 5, 6, 7}


@two
def test_background_work_is_pinned_with_all_threads_that_it_starts():
    code = (
        "import os, threading; from hopline.process.cpu_affinity import pin_to_background_cpus;"
        "print(bool(pin_to_background_cpus()), os.sched_getaffinity(0));"
        "t = threading.Thread(target=lambda: print(os.sched_getaffinity(0))); t.start(); t.join()"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    bound = cpu_affinity.background_cpus(os.sched_getaffinity(0))
    assert said.splitlines() == [f"True {bound}", f"{bound}"]


@two
def test_restored_cpus_are_those_of_all_threads():
    code = (
        "import os, threading;"
        "from hopline.process.cpu_affinity import pin_to_background_cpus, restore_cpus;"
        "before = pin_to_background_cpus();"
        "go = threading.Event();"
        "t = threading.Thread(target=lambda: (go.wait(), print(os.sched_getaffinity(0)))); t.start();"
        "restore_cpus(before); print(os.sched_getaffinity(0)); go.set(); t.join()"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == [str(os.sched_getaffinity(0))] * 2


@two
def test_a_serving_thread_leaves_and_keeps_its_allowed_cpus(monkeypatch):
    allowed = os.sched_getaffinity(0)
    current, seen = cpu_affinity._current, []

    def watched():  # the kernel may move the thread at any moment: what counts is the CPU that was read
        seen.append(current())
        return seen[-1]

    monkeypatch.setattr(cpu_affinity, "_current", watched)

    def work():
        found = []
        for _ in range(20):
            os.sched_setaffinity(0, {max(allowed)})
            os.sched_setaffinity(0, allowed)
            moved = cpu_affinity.leave_cpu()
            found.append(
                (seen[-1] in cpu_affinity.background_cpus(allowed), moved, os.sched_getaffinity(0))
            )
        return found

    found = in_thread(work)
    assert any(was_there for was_there, _, _ in found)
    assert all(moved == was_there for was_there, moved, _ in found)
    assert all(now == allowed for _, _, now in found)


def test_a_thread_with_one_allowed_cpu_stays():
    def work():
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        return (
            cpu_affinity.leave_cpu(),
            bool(cpu_affinity.pin_to_background_cpus()),
            len(os.sched_getaffinity(0)),
        )

    assert in_thread(work) == (False, False, 1)
