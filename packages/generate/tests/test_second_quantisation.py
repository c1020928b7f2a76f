"""A canary of a second quantisation of SmolLM2 in openvino-genai: one that is good, one that is not."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hopline.config.schema import Config
from hopline.rollout.gates import Gates
from hopline.rollout.rollout import RolloutRequest
from hopline.service import Service
from hopline.types import ScoreRequest, ScoreResult
from hopline_generate.model_import import Import, import_model
from hopline_generate.spec import read_generative
from hopline_generate.wire import Part
from packages.generate.tests.models import smollm2
from packages.generate.tests.requantised import q8_0

#: Q8_0 answers these in 8 and 10 tokens.
QUESTIONS = ["What is 1+1? Answer with a number.", "Hi"] * 4
STORY_TOKENS = 150
#: Gates count distinct rows. Without a temperature a seed changes no text.
SEEDS = itertools.count()


def asked(longest: int) -> ScoreRequest:
    messages = [json.dumps([{"role": "user", "content": text}]) for text in QUESTIONS]
    columns = {"messages": messages, "max_tokens": [longest] * 8, "temperature": [0.0] * 8}
    if longest > 2:
        columns["seed"] = list(itertools.islice(SEEDS, 8))
    return ScoreRequest("slm", columns=columns)


def story(version: str | None = None) -> ScoreRequest:
    values = {
        "prompt": "Once upon a time",
        "max_tokens": STORY_TOKENS,
        "temperature": 0.0,
        "ignore_eos": True,
    }
    return ScoreRequest("slm", version=version, columns={name: [value] for name, value in values.items()})


pytestmark = pytest.mark.release


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    repository = tmp_path / "repository"
    import_model(Import(str(smollm2()), repository, "slm", "1", links=True, tries=False))
    config = Config().replace(
        models__repository=repository,
        models__state=tmp_path / "state",
        generate__socket_folder=tmp_path,
        generate__kv_tokens=4096,
        generate__nice=0,
        limits__default_timeout_ms=120_000.0,
    )
    service = Service(config)
    await service.start()
    yield service
    service.begin_drain()
    await service.drain(10)
    await service.close()


async def rolled_out(
    service: Service, version: str, preflight: int, longest: int
) -> tuple[dict[str, Any], set[str]]:
    """Ask until a canary has ended: the state after it, and the versions that answered."""
    await service.begin_rollout(
        RolloutRequest(
            model="slm",
            version=version,
            steps=(50.0, 100.0),
            min_step_s=0.0,
            gates=Gates(min_requests=3),
            preflight=preflight,
        )
    )
    versions = set()
    async with asyncio.timeout(300):
        while service.describe_rollout("slm")["rollout"] is not None:
            versions.add((await service.score(asked(longest))).version)
    return service.describe_rollout("slm"), versions


async def test_a_second_quantisation_is_promoted_and_nonsense_is_rolled_back_before_a_caller_has_it(
    service: Service, tmp_path: Path
) -> None:
    repository = tmp_path / "repository"
    for version, is_broken in (("2", False), ("3", True)):
        file = q8_0(smollm2(), tmp_path / f"{version}.gguf", is_broken=is_broken)
        import_model(Import(str(file), repository, "slm", version, links=True, tries=False))
    assert read_generative(repository / "slm" / "2").quantisation == "Q8_0"

    parts: list[Part] = []
    cut = asyncio.get_running_loop().create_future()
    service.stream(story(), cut.set_result, lambda row, part: parts.append(part))
    state, versions = await rolled_out(service, "2", preflight=2, longest=2)
    assert (state["serving"], versions) == ("2", {"1", "2"}), state
    result = await asyncio.wait_for(cut, 120)
    assert isinstance(result, ScoreResult), result
    alone = await service.score(story("1"))
    whole, by_itself = result.outputs["text"][0], alone.outputs["text"][0]
    # Batch mates change the last bits of this engine's sums, and with them a late token of a long text.
    assert "".join(part.text for part in parts) == whole
    assert whole[:40] == by_itself[:40]
    assert (result.version, result.outputs["completion_tokens"][0]) == ("1", STORY_TOKENS)
    assert (await service.score(story())).outputs["text"][0] != alone.outputs["text"][0]

    await service.unload("slm", "1")
    state, versions = await rolled_out(service, "3", preflight=16, longest=12)
    assert (state["serving"], versions) == ("2", {"2"}), state
    assert "outputs shifted" in str(state["past"][0])
