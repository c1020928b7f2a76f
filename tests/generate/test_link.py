"""Workers' links to one process of a generative model."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hopline.config.schema import Config
from hopline.generate import wire
from hopline.generate.engine import EngineSettings
from hopline.generate.link import Activity, ProcessLink, Silence, activity_of
from hopline.generate.process import Orders
from hopline.generate.request import Prompt, Sampling
from hopline.generate.runner import RunnerSettings
from hopline.scheduling.policy import NORMAL
from tests.generate.models import naive


def link_to(folder: Path, replaced: list[str], hang_s: float) -> ProcessLink:
    config = Config().replace(generate__socket_folder=folder)
    orders = Orders(
        name="echo/1",
        socket="",
        engine="naive",
        model=str(naive(folder)),
        settings=EngineSettings(),
        limits=RunnerSettings(),
        config=config.to_json(),
        ready=0,
    )
    return ProcessLink(orders, config, hang_s, replaced.append)


async def text_of(link: ProcessLink, prompt: str) -> str:
    parts: list[wire.Part] = []
    ended = asyncio.Event()

    def take(part: wire.Part) -> None:
        parts.append(part)
        if part.finish or part.error:
            ended.set()

    link.begin(Prompt(prompt, "", Sampling(max_tokens=50)), NORMAL, 30.0, take)
    await asyncio.wait_for(ended.wait(), 20)
    assert parts[-1].error is None, msgspec.to_builtins(parts[-1].error)
    return "".join(part.text for part in parts)


@pytest.mark.parametrize("is_first_patient", [True, False])
async def test_a_worker_that_meets_a_process_that_hangs_gets_another_one(
    tmp_path: Path, is_first_patient: bool
) -> None:
    """Also if no other worker notices, or the one that started it is gone."""
    replaced: list[str] = []
    first = link_to(tmp_path, [], 1000.0 if is_first_patient else 1.0)
    await first.start()
    os.kill(first.pid, signal.SIGSTOP)
    second = link_to(tmp_path, replaced, 1.0)
    await second.start()
    assert second.pid != first.pid or not is_first_patient
    assert await text_of(second, "answered") == "answered"
    async with asyncio.timeout(20):
        while first.reason:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert first.pid == second.pid
    assert await text_of(first, "again") == "again"
    await asyncio.gather(first.close(), second.close())


HANG_S = 8.0


class Fake:
    """A process whose activity the test sets."""

    def __init__(self) -> None:
        self.activity = Activity(0, False)
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
        fake.silence.heard()
        assert not fake.silence.is_long


@pytest.mark.parametrize("is_starved", [False, True])
def test_a_process_that_computes_does_not_hang_before_a_deadline_has_passed(is_starved: bool) -> None:
    fake = Fake()
    deadlines = (fake.now + 60.0, fake.now + 70.0)
    hung_at = 0.0
    for second in range(100):
        fake.activity = Activity(0 if is_starved else second, is_starved)
        # the text is cancelled at its deadline
        if fake.looks(1.0, tuple(each for each in deadlines if each > fake.now)):
            hung_at = hung_at or fake.now
    assert hung_at == pytest.approx(100.0 + 60.0 + HANG_S, abs=1.5)


def test_a_process_without_texts_that_computes_does_not_hang() -> None:
    fake = Fake()
    for second in range(100):
        fake.activity = Activity(second, False)
        assert not fake.looks(1.0)


def test_time_in_which_nobody_looked_does_not_count() -> None:
    fake = Fake()
    assert not fake.looks(2.0)
    fake.now += 1000.0
    assert not fake.looks(2.0)


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
    assert all(each.is_working for each in seen)
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    stopped = activity_of(process.pid)
    assert not stopped.is_working
    assert stopped.ticks >= max(each.ticks for each in seen)
    assert activity_of(process.pid) == stopped
    process.kill()
    process.wait()
    assert activity_of(process.pid).is_working
