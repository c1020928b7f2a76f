"""SmolLM2-135M-Instruct in openvino-genai, behind a server: one load for all of these tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from hopline.errors import ArtifactError
from hopline_generate.gguf import quantisation, read_gguf
from hopline_generate.model_import import Import, import_model
from hopline_generate.spec import read_generative
from packages.generate.tests.models import smollm2
from tests.servers import RunningServer, running

MESSAGES = [{"role": "user", "content": "Name a fruit."}]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    import_model(Import(str(smollm2()), folder, "slm", "1", links=True, tries=False))
    return folder


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[RunningServer]:
    settings = {"models.repository": str(repository), "generate.nice": 0}
    with running("hopline.service:Service", **settings) as server:
        yield server


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_version_says_what_its_file_says(repository: Path) -> None:
    spec = read_generative(repository / "slm" / "1")
    assert (spec.engine, spec.context_tokens, spec.quantisation) == ("openvino", 8192, "Q4_1")
    assert spec.licence == "apache-2.0"
    assert "<|im_start|>" in spec.chat_template
    assert set(spec.files) == {"model.gguf", "LICENCE"}
    assert quantisation(read_gguf(smollm2()).metadata) == "Q4_1"
    assert spec.parameters == 134_515_008  # SmolLM2's paper: 135 M


@pytest.mark.parametrize("size", [0, 3, 20, 1000, 2_000_000, 50_000_000, 98_362_431])
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, size: int) -> None:
    file = tmp_path / "cut.gguf"
    with smollm2().open("rb") as whole:
        file.write_bytes(whole.read(size))
    with pytest.raises(ArtifactError, match=r"cut off|no GGUF file"):
        import_model(Import(str(file), tmp_path / "models", "slm", "1"))
    assert not (tmp_path / "models").exists()


@pytest.mark.release
def test_a_template_that_does_not_parse_is_refused(tmp_path: Path) -> None:
    job = Import(str(smollm2()), tmp_path / "models", "slm", "1", chat_template="{% for", links=True)
    with pytest.raises(ArtifactError, match="Expected variable names at row 1"):
        import_model(job)
    assert not (tmp_path / "models" / "slm").exists()


@pytest.mark.release
def test_a_stream_is_the_text_of_a_whole_answer(client: openai.OpenAI) -> None:
    arguments = {"model": "slm", "messages": MESSAGES, "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**arguments)
    chunks = list(client.chat.completions.create(**arguments, stream=True))
    text = whole.choices[0].message.content
    assert text
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    assert whole.usage is not None
    assert 0 < whole.usage.completion_tokens <= 24


@pytest.mark.release
def test_a_text_is_that_of_its_seed_beside_any_others_also_without_chance(
    client: openai.OpenAI,
) -> None:
    def ask(seed: int, temperature: float = 1.0) -> str:
        answer = client.chat.completions.create(
            model="slm", messages=MESSAGES, max_tokens=12, temperature=temperature, seed=seed
        )
        return answer.choices[0].message.content or ""

    alone = [ask(seed) for seed in (1, 2, 3)]
    assert [ask(seed) for seed in (1, 2, 3)] == alone
    assert len(set(alone)) > 1

    def ask_all(n: int) -> list[str]:
        answer = client.chat.completions.create(
            model="slm", messages=MESSAGES, max_tokens=12, temperature=1.0, n=n, seed=1
        )
        return [choice.message.content or "" for choice in answer.choices]

    def ask_without_a_seed(count: int) -> None:
        client.completions.create(model="slm", prompt="Name a fruit, please.", max_tokens=count, n=2)

    with ThreadPoolExecutor(6) as threads:
        others = threads.map(ask_without_a_seed, (5, 20, 40))
        for n, texts in zip((2, 1, 3, 1, 2), threads.map(ask_all, (2, 1, 3, 1, 2)), strict=True):
            assert texts == alone[:n]
        list(others)
    likely = ask(1, 0.0)
    with ThreadPoolExecutor(6) as threads:
        assert set(threads.map(ask, range(6), [0.0] * 6)) == {likely}


@pytest.mark.release
def test_a_stop_string_of_several_tokens_cuts_the_text(client: openai.OpenAI) -> None:
    arguments = {"model": "slm", "prompt": "one two three four five six seven", "max_tokens": 16}
    whole = client.completions.create(**arguments, temperature=0).choices[0].text
    stop = whole[3:9]
    cut = client.completions.create(**arguments, temperature=0, stop=stop)
    assert cut.choices[0].text == whole[: whole.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


@pytest.mark.release
def test_logprobs_are_those_of_probabilities(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="slm", messages=MESSAGES, max_tokens=5, temperature=0, logprobs=True
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert answer.usage is not None
    assert len(logprobs.content) == answer.usage.completion_tokens
    assert all(each.logprob <= 0 for each in logprobs.content)


@pytest.mark.release
def test_a_prompt_beyond_the_context_is_refused_with_its_tokens(client: openai.OpenAI) -> None:
    # the tokenizer cuts texts at 8192 tokens, and does not say so
    with pytest.raises(openai.APIStatusError, match="at least 8192 tokens; the model's context is 8192"):
        client.completions.create(model="slm", prompt="word " * 9000)
    with pytest.raises(openai.APIStatusError, match="8101 tokens and max_tokens 100"):
        client.completions.create(model="slm", prompt="word " * 8100, max_tokens=100)


@pytest.mark.release
@pytest.mark.parametrize(
    "values", [{"min_p": 1.0}, {"min_p": 1 - 1e-12}, {"temperature": 5e-324}, {"temperature": 1e-40}]
)
def test_the_ends_of_the_ranges_take_the_most_probable_tokens(
    client: openai.OpenAI, values: dict[str, float]
) -> None:
    """The engine refuses `min_p` 1, and temperatures that are 0 in float32; smaller ones overflow."""

    def said(**extra: float) -> str | None:
        answer = client.chat.completions.create(
            model="slm", messages=MESSAGES, max_tokens=8, extra_body=extra
        )
        return answer.choices[0].message.content

    assert said(**values) == said(temperature=0)


@pytest.mark.release
def test_clients_that_leave_free_their_blocks(client: openai.OpenAI, server: RunningServer) -> None:
    for _ in range(3):
        streams = [
            client.chat.completions.create(
                model="slm", messages=MESSAGES, stream=True, max_tokens=400, extra_body={"ignore_eos": True}
            )
            for _ in range(4)
        ]
        for stream in streams:
            next(iter(stream))
            stream.close()
    labels = '{model="slm",version="1"}'
    server.wait_until(f"hopline_texts_running{labels}", 0)
    server.wait_until(f"hopline_kv_reserved_ratio{labels}", 0)
    cancelled = 'hopline_requests_total{model="slm",version="1",outcome="cancelled"}'
    server.wait_until(cancelled, 12)


@pytest.mark.release
def test_rows_are_scored_like_those_of_any_model(server: RunningServer) -> None:
    import httpx

    rows = [{"messages": json.dumps(MESSAGES), "max_tokens": 4, "temperature": 0}]
    answer = httpx.post(f"{server.url}/v1/models/slm/score", json={"rows": rows * 2}, timeout=30)
    assert answer.status_code == 200, answer.text
    texts = answer.json()["outputs"]["text"]
    assert len(texts) == 2
    assert texts[0] == texts[1] != ""
