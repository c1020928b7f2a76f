"""Workers' links to one process of a generative model."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import pytest

from hopline.config.schema import Config
from hopline.scheduling.policy import NORMAL
from hopline_generate import wire
from hopline_generate.engine import EngineSettings
from hopline_generate.link import ProcessLink
from hopline_generate.process import Orders
from hopline_generate.request import Prompt, Sampling
from hopline_generate.runner import RunnerSettings
from packages.generate.tests.models import naive


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


@pytest.mark.sample(1)
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
