"""The one rule for processes that hang: by messages, by progress and by what the kernel says of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from hopline.process.silence import Silence, activity_of

HANG_S = 8.0


class Fake:
    """A process whose activity the test sets."""

    def __init__(self) -> None:
        self.activity = (0, False)
        self.silence = Silence(1, HANG_S, lambda pid: self.activity)
        self.now = 100.0

    def looks(self, seconds: float, deadlines: tuple[float, ...] = ()) -> bool:
        """Look for so long; whether it hung at any time."""
        hung = False
        for _ in range(round(seconds / self.silence.period_s)):
            self.now += self.silence.period_s
            hung = self.silence.look(deadlines, self.now) or hung
        return hung


def test_a_process_that_does_nothing_hangs() -> None:
    fake = Fake()
    assert not fake.looks(HANG_S)
    assert fake.looks(2.0)


def test_a_message_begins_the_count_again() -> None:
    fake = Fake()
    for _ in range(5):
        assert not fake.looks(HANG_S)
        assert fake.silence.is_long
        fake.silence.reset()
        assert not fake.silence.is_long


@pytest.mark.parametrize("is_starved", [False, True])
def test_a_process_that_computes_does_not_hang_before_a_deadline_has_passed(is_starved: bool) -> None:
    fake = Fake()
    deadlines = (fake.now + 60.0, fake.now + 70.0)
    hung_at = 0.0
    for second in range(100):
        fake.activity = (0 if is_starved else second, is_starved)
        # the text is cancelled at its deadline
        if fake.looks(1.0, tuple(each for each in deadlines if each > fake.now)):
            hung_at = hung_at or fake.now
    assert hung_at == pytest.approx(100.0 + 60.0 + HANG_S, abs=1.5)


def test_a_process_without_texts_that_computes_does_not_hang() -> None:
    fake = Fake()
    for second in range(100):
        fake.activity = (second, False)
        assert not fake.looks(1.0)


def test_time_in_which_nobody_looked_does_not_count() -> None:
    fake = Fake()
    assert not fake.looks(2.0)
    fake.now += 1000.0
    assert not fake.looks(2.0)


def test_a_process_that_reports_and_ends_nothing_hangs_after_the_first_deadline_has_passed() -> None:
    """Its event loop turns, and the thread that computes is stuck; later work has later deadlines."""
    fake = Fake()
    fake.activity = (0, True)
    first, hung_at = fake.now + 2.0, 0.0
    for _ in range(30):
        hung_at = hung_at or (fake.now if fake.looks(1.0, (max(first, fake.now + 1.0),)) else 0.0)
        fake.silence.reset(is_progress=False)
    assert hung_at == pytest.approx(first + HANG_S, abs=1.5)


def test_a_slow_process_that_ends_some_work_does_not_hang() -> None:
    fake = Fake()
    for second in range(100):
        assert not fake.looks(1.0, (100.0,))
        fake.silence.reset(is_progress=second % 6 == 0)


def test_a_process_that_reports_and_has_nothing_to_do_does_not_hang() -> None:
    """Also if a deadline passed before."""
    fake = Fake()
    fake.looks(1.0, (fake.now + 0.5,))
    for _ in range(100):
        fake.silence.reset(is_progress=False)
        assert not fake.looks(0.5)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.readline()
    with child:
        yield child
        child.kill()


def test_activity_is_that_of_the_kernel(process: Any) -> None:
    seen = {activity_of(process.pid) for _ in range(2000)}
    assert all(is_working for _, is_working in seen)
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    stopped = activity_of(process.pid)
    assert not stopped[1]
    assert stopped[0] >= max(ticks for ticks, _ in seen)
    assert activity_of(process.pid) == stopped
    process.kill()
    process.wait()
    assert activity_of(process.pid)[1]
