"""The runner with the naive engine, in this process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hopline.errors import BadRequest
from hopline.process.wire import unpack_error
from hopline.scheduling.policy import NORMAL
from hopline_generate import wire
from hopline_generate.engine import EngineSettings, Produced
from hopline_generate.naive_engine import NaiveEngine
from hopline_generate.request import Prompt, Sampling
from hopline_generate.runner import Detokenizer, Runner, RunnerSettings, StopStrings, Text, decode_together
from packages.generate.tests.models import naive
from tests.thorough import thorough

Make = Callable[..., Runner]


class Caller:
    """Collects the parts of one text."""

    def __init__(self, runner: Runner, text: str, left_s: float = 60.0, **sampling: object) -> None:
        self.parts: list[wire.Part] = []
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()
        values = {"temperature": 0.0, "max_tokens": 100, **sampling}
        prompt = Prompt(text, "", Sampling(**values))  # type: ignore[arg-type]
        self.text: Text = runner.begin(7, prompt, NORMAL, left_s, self._take)

    def _take(self, part: wire.Part) -> None:
        self.parts.append(part)
        self.begun.set()
        if part.finish or part.error:
            self.ended.set()

    async def said(self) -> str:
        await asyncio.wait_for(self.ended.wait(), 20)
        return "".join(part.text for part in self.parts)

    async def refusal(self) -> str:
        await self.said()
        error = self.parts[-1].error
        assert error is not None
        return str(unpack_error(error))


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    runners = []

    def make(kv_tokens: int = 1024, **model: object) -> Runner:
        engine = NaiveEngine(naive(tmp_path, **model), EngineSettings(kv_tokens=kv_tokens))
        runner = Runner(engine, RunnerSettings(prefix_caching=True))
        runners.append(runner)
        return runner

    yield make
    for runner in runners:
        await runner.close()


async def test_texts_join_and_leave_a_running_batch(make: Make) -> None:
    runner = make(step_s=0.002)
    first = Caller(runner, "a" * 50)
    await first.begun.wait()
    second = Caller(runner, "b" * 5)
    assert await second.said() == "b" * 5
    assert not first.ended.is_set()
    third = Caller(runner, "c" * 3)
    assert await third.said() == "c" * 3
    assert await first.said() == "a" * 50


async def test_the_first_part_has_the_prompts_tokens_before_any_token(make: Make) -> None:
    runner = make()
    caller = Caller(runner, "x" * 40)
    await caller.begun.wait()
    runner.cancel(caller.text)
    (first, *_) = caller.parts
    assert (first.text, first.num_tokens, first.prompt_tokens, first.cached_tokens) == ("", 0, 40, 0)
    known = Caller(runner, "x" * 40)
    await known.said()
    assert known.parts[0].cached_tokens > 0
    waiting = Caller(runner, "x" * 2000)
    await waiting.refusal()
    assert [part.prompt_tokens for part in waiting.parts] == [0]  # never started


async def test_cancelled_texts_leave_no_block(make: Make) -> None:
    runner = make(kv_tokens=2048, step_s=0.001)
    for _ in range(25):
        callers = [Caller(runner, "x" * 40, ignore_eos=True, max_tokens=150) for _ in range(8)]
        await callers[0].begun.wait()
        for caller in callers:
            runner.cancel(caller.text)
        assert not any(caller.ended.is_set() for caller in callers)
    state = runner.state()
    assert (state.used_blocks, state.num_running, state.num_queued, state.queued_tokens) == (0, 0, 0, 0)
    assert await Caller(runner, "still here").said() == "still here"
    assert runner.engine.usage() == 0.0


async def test_a_text_waits_for_blocks_and_starts_when_they_are_free(make: Make) -> None:
    runner = make(kv_tokens=128, step_s=0.001)
    first = Caller(runner, "x" * 20, max_tokens=80, ignore_eos=True)
    second = Caller(runner, "y" * 20, max_tokens=80, ignore_eos=True)
    await first.begun.wait()
    assert not second.begun.is_set()
    runner.cancel(first.text)
    assert (await second.said()).startswith("y" * 20)


async def test_deadline_in_the_queue(make: Make) -> None:
    runner = make(kv_tokens=128, step_s=0.01)
    first = Caller(runner, "x" * 20, max_tokens=80, ignore_eos=True)
    late = Caller(runner, "y" * 20, left_s=0.05, max_tokens=80)
    assert "in the queue" in await late.refusal()
    runner.cancel(first.text)


@pytest.mark.parametrize(
    ("text", "max_tokens", "said", "param"),
    [
        ("x" * 500, 100, "500 tokens and max_tokens 100; the model's context is 512", "max_tokens"),
        ("x" * 512, 0, "512 tokens; the model's context is 512", "prompt"),
        ("x" * 100, 400, "500 tokens; the KV cache has room for 256", "max_tokens"),
        ("x" * 300, 0, "300 tokens; the KV cache has room for 256", "prompt"),
    ],
)
async def test_what_is_too_long_is_refused_with_the_number_and_the_parameter(
    make: Make, text: str, max_tokens: int, said: str, param: str
) -> None:
    runner = make(kv_tokens=256)
    caller = Caller(runner, text, max_tokens=max_tokens)
    assert said in await caller.refusal()
    failure = caller.parts[-1].error
    assert failure is not None
    assert unpack_error(failure).param == param
    assert runner.stats.steps == 0


async def test_a_text_that_the_engine_refuses_leaves_the_others_running(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = make(kv_tokens=256, step_s=0.002)
    add = runner.engine.add

    def refuses_unlikely(number: int, tokens: Sequence[int], sampling: Sampling) -> None:
        if sampling.min_p == 1:
            raise BadRequest("min_p must be below 1")
        add(number, tokens, sampling)

    monkeypatch.setattr(runner.engine, "add", refuses_unlikely)
    first = Caller(runner, "a" * 50)
    await first.begun.wait()
    assert "min_p must be below 1" in await Caller(runner, "b", min_p=1.0).refusal()
    assert await first.said() == "a" * 50
    assert await Caller(runner, "c" * 100).said() == "c" * 100  # its blocks were given back
    assert runner.state().used_blocks == 0


async def test_engine_that_fails_fails_its_texts_and_says_so(tmp_path: Path) -> None:
    failed = asyncio.Event()
    engine = NaiveEngine(naive(tmp_path, fail_after=2), EngineSettings())
    runner = Runner(engine, RunnerSettings(), failed.set)
    assert "the engine failed" in await Caller(runner, "a long text").refusal()
    await asyncio.wait_for(failed.wait(), 5)
    await runner.close()


async def test_prompts_that_begin_alike_are_counted(make: Make) -> None:
    runner = make()
    await Caller(runner, "p" * 100).said()
    second = Caller(runner, "p" * 100 + "q")
    await second.said()
    assert second.parts[0].cached_tokens == 96
    assert second.parts[0].prompt_tokens == 101


class Drawing(NaiveEngine):
    """Draws as openvino-genai does: one generator for all texts, seeded by the one that joined last."""

    def __init__(self, model: Path, settings: EngineSettings) -> None:
        super().__init__(model, settings)
        self._rng = random.Random(0)
        self.cancelled: set[int] = set()

    def add(self, number: int, tokens: Sequence[int], sampling: Sampling) -> None:
        self._rng.seed(sampling.seed)
        super().add(number, tokens, sampling)

    def cancel(self, number: int) -> None:
        self.cancelled.add(number)  # it takes part in one more step

    def step(self) -> list[Produced]:
        drawn = [
            Produced(
                each.number,
                (32 + self._rng.randrange(90),),
                each.logprobs,
                each.finish,
            )
            for each in super().step()
        ]
        for number in self.cancelled:
            super().cancel(number)
        self.cancelled.clear()
        return drawn


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 2), st.booleans(), st.integers(0, 3)),
        min_size=1,
        max_size=8,
    )
)
@settings(
    max_examples=thorough(10, 40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_the_text_of_a_seed_depends_on_nothing_else(
    tmp_path: Path, requests: list[tuple[int, int, bool, int]]
) -> None:
    """Requests of n texts with a seed or without, some of which are cancelled, in between and together."""

    async def run() -> None:
        file = naive(tmp_path, context_tokens=512)
        runner = Runner(Drawing(file, EngineSettings(kv_tokens=1024)), RunnerSettings())
        alone: dict[int, str] = {}
        for seed in range(6):
            caller = Caller(
                runner, "x", temperature=1.0, seed=seed, max_tokens=9, repeatable=True, ignore_eos=True
            )
            alone[seed] = await caller.said()
        callers: list[tuple[int, bool, Caller]] = []
        for n, seed, is_given, pause in requests:
            for at in range(n):
                values = {"seed": seed + at, "repeatable": is_given}
                callers.append(
                    (
                        seed + at,
                        is_given,
                        Caller(runner, "x", temperature=1.0, max_tokens=9, ignore_eos=True, **values),
                    )
                )
            if pause == 3:
                runner.cancel(callers[-1][2].text)
                callers.pop()
            for _ in range(4 * pause):
                await asyncio.sleep(0)
        for seed, is_given, caller in callers:
            text = await caller.said()
            assert text == alone[seed] or not is_given
        await runner.close()

    asyncio.run(run())


async def test_a_seed_is_refused_where_earlier_texts_leave_their_states(tmp_path: Path) -> None:
    engine = NaiveEngine(naive(tmp_path), EngineSettings())
    runner = Runner(engine, RunnerSettings(prefix_caching=True))
    for temperature in (0.0, 1.0):
        refused = Caller(runner, "x", temperature=temperature, seed=1, repeatable=True)
        assert "generate.prefix_caching" in await refused.refusal()
        assert await Caller(runner, "x", temperature=temperature, repeatable=False).said() == "x"
    await runner.close()


def decode(batch: Sequence[Sequence[int]]) -> list[str]:
    """Tokens are bytes."""
    return [bytes(tokens).decode("utf-8", "replace") for tokens in batch]


def pieces_of(data: bytes, sizes: list[int]) -> list[str]:
    detokenizer, found, at = Detokenizer(), [], 0
    while at < len(data):
        size = sizes[len(found) % len(sizes)]
        tokens = list(data[at : at + size])
        at += size
        found += decode_together(decode, [(detokenizer, tokens, at >= len(data))])
    return found


@given(st.text(min_size=1, max_size=40), st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_pieces_are_whole_characters_and_together_the_text(text: str, sizes: list[int]) -> None:
    found = pieces_of(text.encode(), sizes)
    assert "".join(found) == text
    assert not any("\ufffd" in piece for piece in found if "\ufffd" not in text)


def test_bytes_that_never_become_a_character_are_not_held_for_ever() -> None:
    found = pieces_of(b"\xff" * 30, [1])
    assert any(found[:20])


@example("abc", ["abc", "b"], [1])
@given(
    st.text("abc", max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
)
def test_stop_strings_cut_as_on_the_whole_text(text: str, stops: list[str], sizes: list[int]) -> None:
    expected = text
    places = [text.find(stop) for stop in stops if stop in text]
    if places:
        # the text ends at the stop string that is complete first
        first_end = min(text.find(stop) + len(stop) for stop in stops if stop in text)
        longest = max(len(stop) for stop in stops if text[:first_end].endswith(stop))
        expected = text[: first_end - longest]
    found, shown, at = StopStrings(stops), "", 0
    index = 0
    while at < len(text) and not found.found:
        size = sizes[index % len(sizes)]
        index += 1
        piece = text[at : at + size]
        at += size
        shown += found.take(piece, is_last=at >= len(text))
    assert found.found == bool(places)
    if found.found:
        assert not any(stop in shown for stop in stops)
        assert text.startswith(shown)
        assert any(text.startswith(stop, len(shown)) for stop in stops)
        assert sizes != [1] or shown == expected
    else:
        assert shown == text


@pytest.mark.parametrize("last", [False, True])
def test_the_beginning_of_a_stop_string_is_held_until_the_end(last: bool) -> None:
    assert StopStrings(["END"]).take("the EN", is_last=last) == ("the EN" if last else "the ")
