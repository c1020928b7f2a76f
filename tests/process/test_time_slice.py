"""A thread that asks for short slices is not kept waiting by those that compute."""

import os
import subprocess
import sys
import threading

import pytest

from hopline.process import time_slice
from scripts import house

TELL = """
import ctypes, os, sys
from hopline.process.time_slice import _SCHED_SETATTR, want_slices
import platform

def slice_ns():
    attributes = (ctypes.c_uint64 * 7)()
    number = _SCHED_SETATTR[platform.machine()] + 1  # sched_getattr
    ctypes.CDLL(None).syscall(number, 0, ctypes.byref(attributes), 56, 0)
    return attributes[3]

os.nice(3)
usual = slice_ns()
took = want_slices(1e-4)
print(took, usual, slice_ns(), os.getpriority(os.PRIO_PROCESS, 0))
print(want_slices(0.0), slice_ns())
"""

CHILD = """
want_slices(1e-4)
sys.stdout.flush()
if not os.fork():
    inherited = slice_ns()
    from hopline.process.time_slice import lower_priority
    lower_priority(2)
    print(usual, inherited, slice_ns(), os.getpriority(os.PRIO_PROCESS, 0))
    sys.exit()
os.wait()
"""


def test_the_wish_reaches_the_system_and_can_be_withdrawn():
    done = subprocess.run([sys.executable, "-c", TELL], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    took, usual, short, nice = first.split()
    if took == "False":
        pytest.skip("this system takes no wishes")
    assert int(nice) == os.getpriority(os.PRIO_PROCESS, 0) + 3
    if int(usual):  # a kernel that tells slices at all
        assert int(short) == 100_000
        assert second == f"True {usual}"


def test_a_process_that_computes_does_not_inherit_the_slices_of_the_server():
    done = subprocess.run([sys.executable, "-c", TELL + CHILD], capture_output=True, text=True, check=True)
    usual, inherited, left, nice = done.stdout.split()[-4:]
    if inherited == usual:
        pytest.skip("this system takes no wishes, or does not tell slices")
    assert (inherited, left) == ("100000", usual)
    assert int(nice) == os.getpriority(os.PRIO_PROCESS, 0) + 3 + 2


def test_every_process_that_lowers_its_priority_also_gives_its_slices_back():
    """By `lower_priority`; the mesh watch has no server to inherit from."""
    found = {
        "/".join(file.parts[-2:])
        for package in house.DISTRIBUTIONS.values()
        for file in package.rglob("*.py")
        if "os.nice(" in file.read_text()
    }
    assert found == {"process/time_slice.py", "watch/child.py"}


def test_other_scheduling_classes_are_left_alone():
    said = []

    def idle():
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        said.append(time_slice.want_slices(1e-4))
        said.append(os.sched_getscheduler(0))

    thread = threading.Thread(target=idle)
    thread.start()
    thread.join()
    assert said == [False, os.SCHED_IDLE]


def test_a_machine_that_is_not_known_says_no(monkeypatch):
    monkeypatch.setattr(time_slice.platform, "machine", lambda: "riscv64")
    assert not time_slice.want_slices(1e-4)
