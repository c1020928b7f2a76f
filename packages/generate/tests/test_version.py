"""Generative models behind the service: the naive engine in a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hopline.config.schema import Config
from hopline.errors import DeadlineExceeded, HoplineError, ModelNotReady, RequestTooLarge, Unavailable
from hopline.rollout.rollout import RolloutRequest
from hopline.service import Service
from hopline.types import ScoreRequest, ScoreResult
from hopline_generate.version import GenerativeVersion
from hopline_generate.wire import Part
from packages.generate.tests.models import naive_version

PIPELINE = """
[inputs.columns]
amount = "FP64"
[[step]]
id = "decision"
kind = "rules"
default = "ok"
rules = [{ when = "input.amount > 100", then = "check" }]
[[step]]
id = "why"
kind = "generate"
model = "echo"
prompt = "amount {input.amount:.1f}: {decision.decision} {{x}}"
max_tokens = 40
timeout_ms = 2000
fallback = "no sentence"
[outputs]
decision = "decision.decision"
sentence = "why.text"
"""


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    repository = tmp_path / "repository"
    naive_version(repository)
    naive_version(repository, "slow", answer="0123456789" * 20, step_s=0.01)
    naive_version(repository, "slow", "2", answer="new", step_s=0.01)
    naive_version(repository, "slow", "3", answer="bad", fail_after=3)
    (repository / "explained" / "1").mkdir(parents=True)
    (repository / "explained" / "1" / "pipeline.toml").write_text(PIPELINE)
    config = Config().replace(
        models__repository=repository,
        generate__socket_folder=tmp_path,
        models__state=tmp_path / "state",
    )
    service = Service(config)
    await service.start()
    yield service
    service.begin_drain()
    await service.drain(10)
    await service.close()


async def test_a_prompt_that_cannot_fit_is_refused_by_the_worker(service: Service) -> None:
    """The process reads prompts between the steps of others: it gets none that is certain to be refused."""
    with pytest.raises(RequestTooLarge, match="600 characters, more than 512 tokens"):
        service.submit(
            ScoreRequest("echo", columns={"prompt": ["x" * 600] * 32}),
            lambda outcome: pytest.fail(str(outcome)),
        )


class Stream:
    """One text that comes in parts."""

    def __init__(self, service: Service, model: str, prompt: str, **columns: Sequence[object]) -> None:
        self.parts: list[Part] = []
        self.begun = asyncio.Event()
        self.outcome: asyncio.Future[ScoreResult | HoplineError] = (
            asyncio.get_running_loop().create_future()
        )
        request = ScoreRequest(model, columns={"prompt": [prompt], **columns})
        self.ticket = service.stream(request, self.outcome.set_result, self._take)

    def _take(self, row: int, part: Part) -> None:
        assert row == 0
        self.parts.append(part)
        self.begun.set()

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts)

    async def result(self) -> ScoreResult:
        outcome = await asyncio.wait_for(self.outcome, 20)
        assert isinstance(outcome, ScoreResult), outcome
        return outcome


def version_of(service: Service, model: str) -> GenerativeVersion:
    found: Any = service._resolve(model, None)
    assert isinstance(found, GenerativeVersion)
    return found


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not check():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_rows_are_texts_and_parts_are_the_text(service: Service) -> None:
    result = await service.score(
        ScoreRequest("echo", columns={"prompt": ["a ☃", "b"], "max_tokens": [9, 9]})
    )
    assert result.outputs["text"].tolist() == ["a ☃", "b"]
    assert result.outputs["completion_tokens"].tolist() == [5, 1]
    stream = Stream(service, "echo", "a ☃")
    assert (await stream.result()).outputs["text"].tolist() == ["a ☃"]
    assert stream.text == "a ☃"
    assert stream.parts[-1].finish == "stop"


async def test_deadline_ends_a_text_and_frees_its_place(service: Service) -> None:
    request = ScoreRequest(
        "slow", version="1", columns={"prompt": ["x"]}, deadline=asyncio.get_running_loop().time() + 0.3
    )
    with pytest.raises(DeadlineExceeded):
        await service.score(request)


@pytest.mark.release
async def test_pipeline_writes_a_sentence_and_falls_back(service: Service) -> None:
    rows = {"amount": [20.0, 250.0]}
    result = await service.score(ScoreRequest("explained", columns=rows))
    assert result.outputs["decision"].tolist() == ["ok", "check"]
    assert result.outputs["sentence"].tolist() == ["amount 20.0: ok {x}", "amount 250.0: check {x}"]
    assert result.degraded == ()
    process = version_of(service, "echo").generator
    os.kill(process.pid, signal.SIGSTOP)  # type: ignore[attr-defined]
    try:
        late = await service.score(ScoreRequest("explained", columns=rows))
    finally:
        os.kill(process.pid, signal.SIGCONT)  # type: ignore[attr-defined]
    assert late.outputs["sentence"].tolist() == ["no sentence"] * 2
    assert late.outputs["decision"].tolist() == ["ok", "check"]
    assert late.degraded == ("filled:why",)


@pytest.mark.release
async def test_no_stream_is_cut_by_a_switch(service: Service) -> None:
    await service.load("slow", "1")
    stream = Stream(service, "slow", "x")
    await stream.begun.wait()
    switch = asyncio.ensure_future(service.load("slow", "2"))
    await until(lambda: service._resolve("slow", None).version == "2")
    assert not stream.outcome.done()
    result = await stream.result()
    assert (result.version, result.outputs["text"].tolist()) == ("1", ["0123456789" * 20])
    await switch
    after = await service.score(ScoreRequest("slow", columns={"prompt": ["x"]}))
    assert (after.version, after.outputs["text"].tolist()) == ("2", ["new"])


async def test_canary_whose_engine_breaks_is_rolled_back(service: Service) -> None:
    await service.load("slow", "2")
    await service.begin_rollout(
        RolloutRequest(model="slow", version="3", kind="canary", steps=(50.0, 100.0))
    )
    versions = set()
    async with asyncio.timeout(60):
        while service.describe_rollout("slow")["rollout"] is not None:
            try:
                found = await service.score(ScoreRequest("slow", columns={"prompt": ["x"]}))
                versions.add(found.version)
            except (HoplineError, RuntimeError):
                versions.add("failed")
            await asyncio.sleep(0.01)
    state = service.describe_rollout("slow")
    assert "error rate" in str(state["past"][0])
    assert state["serving"] == "2"
    assert versions <= {"2", "failed"}
    assert (await service.score(ScoreRequest("slow", columns={"prompt": ["x"]}))).version == "2"


async def test_process_that_dies_fails_its_texts_and_is_started_again(service: Service) -> None:
    await service.load("slow", "1")
    version = version_of(service, "slow")
    stream = Stream(service, "slow", "x")
    await stream.begun.wait()
    os.kill(version.generator.pid, signal.SIGKILL)  # type: ignore[attr-defined]
    outcome = await asyncio.wait_for(stream.outcome, 20)
    assert isinstance(outcome, ModelNotReady)
    assert "SIGKILL" in str(outcome)
    await until(lambda: not version.generator.reason)
    assert (await Stream(service, "slow", "x").result()).version == "1"


@pytest.mark.release
async def test_process_that_hangs_is_killed_and_started_again(service: Service) -> None:
    await service.load("slow", "1")
    version = version_of(service, "slow")
    first = version.generator.pid  # type: ignore[attr-defined]
    stream = Stream(service, "slow", "x")
    await stream.begun.wait()
    os.kill(first, signal.SIGSTOP)
    late = Stream(service, "slow", "y")
    for each in (stream, late):
        outcome = await asyncio.wait_for(each.outcome, 20)  # deadlines are 30 s away
        assert isinstance(outcome, ModelNotReady)
        assert "gave no answer and was killed" in str(outcome)
    assert version.info(("1",)).state == "UNAVAILABLE"
    await until(lambda: not version.generator.reason)
    assert version.generator.pid != first  # type: ignore[attr-defined]
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    assert (await Stream(service, "slow", "x").result()).version == "1"
    metrics = service.metrics.render()
    assert b'model_process_restarts_total{model="slow",version="1",reason="hung"} 1' in metrics
    assert b'model="echo",version="1",reason' not in metrics


@pytest.mark.release
async def test_draining_finishes_texts_and_takes_no_more(service: Service) -> None:
    await service.load("slow", "1")
    stream = Stream(service, "slow", "x")
    await stream.begun.wait()
    service.begin_drain()
    with pytest.raises(Unavailable):
        await service.score(ScoreRequest("echo", columns={"prompt": ["x"]}))
    assert (await stream.result()).outputs["finish_reason"].tolist() == ["stop"]
