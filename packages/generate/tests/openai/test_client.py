"""The unmodified `openai` client against a server with the naive engine, which repeats the last line."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import openai
import pytest

from packages.generate.tests.models import naive_version
from tests.servers import RunningServer, running

SERVICE = "hopline.service:Service"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("repository")
    naive_version(repository)
    naive_version(repository, version="2")
    naive_version(repository, "slow", answer="abcdefghij" * 20, step_s=0.02)
    with running(SERVICE, **{"models.repository": str(repository), "generate.nice": 0}) as server:
        yield server


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "snow ☃ falls"}]


def test_chat_is_answered_whole(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="echo", messages=MESSAGES, max_tokens=40)
    assert answer.object == "chat.completion"
    assert answer.model == "echo"
    assert answer.system_fingerprint == "echo/2"
    (choice,) = answer.choices
    assert choice.message.content == "snow ☃ falls"
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert answer.usage is not None
    prompt = "Be brief.\nsnow ☃ falls".encode()
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.completion_tokens == len("snow ☃ falls".encode())
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_chat_streams_whole_characters_and_the_same_text(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="echo", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert "".join(piece or "" for piece in pieces) == "snow ☃ falls"
    assert not any("\ufffd" in (piece or "") for piece in pieces)
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len("snow ☃ falls".encode())


def test_length_ends_a_text(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="echo", messages=MESSAGES, max_completion_tokens=4)
    assert answer.choices[0].message.content == "snow"
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize("streams", [False, True])
def test_stop_string_is_not_shown_in_part_or_whole(client: openai.OpenAI, streams: bool) -> None:
    arguments = {"model": "echo", "messages": MESSAGES, "stop": ["zzz", " fal"]}
    if streams:
        chunks = list(client.chat.completions.create(**arguments, stream=True))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        reason = chunks[-1].choices[0].finish_reason
    else:
        answer = client.chat.completions.create(**arguments)
        text, reason = answer.choices[0].message.content or "", answer.choices[0].finish_reason
    assert text == "snow ☃"
    assert reason == "stop"


def test_several_texts_of_one_prompt(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="echo", messages=MESSAGES, n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert {choice.message.content for choice in answer.choices} == {"snow ☃ falls"}
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len("Be brief.\nsnow ☃ falls".encode())
    chunks = list(client.chat.completions.create(model="echo", messages=MESSAGES, n=3, stream=True))
    texts = ["", "", ""]
    for chunk in chunks:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == ["snow ☃ falls"] * 3


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="echo", prompt=["one", "two"], max_tokens=10)
    assert [choice.text for choice in answer.choices] == ["one", "two"]
    pieces = client.completions.create(model="echo", prompt="three", stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == "three"


def test_logprobs_of_chosen_tokens(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="echo", messages=MESSAGES, logprobs=True, max_tokens=3)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [each.token for each in logprobs.content] == ["s", "n", "o"]
    text = client.completions.create(model="echo", prompt="abc", logprobs=0)
    assert text.choices[0].logprobs is not None
    assert text.choices[0].logprobs.tokens == ["a", "b", "c"]
    assert text.choices[0].logprobs.text_offset == [0, 1, 2]


def test_open_inference_protocol_generates(server: RunningServer) -> None:
    body = {"text_input": "snow ☃", "parameters": {"stop": ["zz"], "max_tokens": 20}, "id": "7"}
    answer = httpx.post(f"{server.url}/v2/models/echo/versions/1/generate", json=body)
    assert answer.json() == {
        "model_name": "echo",
        "model_version": "1",
        "id": "7",
        "text_output": "snow ☃",
        "details": {"finish_reason": "stop", "prompt_tokens": 8, "completion_tokens": 8},
    }
    asked = {"text_input": "ab", "parameters": {"logprobs": True}}
    details = httpx.post(f"{server.url}/v2/models/echo/generate", json=asked).json()["details"]
    assert [text for text, _ in details["logprobs"]] == ["a", "b"]
    stream = httpx.post(f"{server.url}/v2/models/echo/generate_stream", json=body)
    assert stream.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in stream.text.splitlines() if line.startswith("data: ")]
    assert "".join(event["text_output"] for event in events) == "snow ☃"
    assert events[-1]["details"]["finish_reason"] == "stop"
    for stop in (2**70, -(2**63) - 1, True, 1.5, {"a": 1}, [2**70], [""]):
        asked = {"text_input": "ab", "parameters": {"stop": stop}}
        wrong = httpx.post(f"{server.url}/v2/models/echo/generate", json=asked)
        assert wrong.status_code == 400
        assert wrong.json()["error"].startswith("stop")
    refused = httpx.post(f"{server.url}/v2/models/echo/generate", json={**body, "parameters": {"beams": 2}})
    assert refused.status_code == 400
    assert "beams" in refused.json()["error"]


def test_version_can_be_named(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="echo/1", messages=MESSAGES)
    assert answer.system_fingerprint == "echo/1"


def test_models_are_listed_beside_those_of_hopline(client: openai.OpenAI, server: RunningServer) -> None:
    assert {model.id for model in client.models.list()} == {"echo", "slow"}
    assert client.models.retrieve("echo").id == "echo"
    assert {model["name"] for model in httpx.get(f"{server.url}/v1/models").json()["models"]} == {
        "echo",
        "slow",
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"messages": []}, "empty"),
        ({"messages": [{"role": "king", "content": "x"}]}, "role"),
        ({"stop": ["x"] * 10_000}, "10000 stop strings"),
        ({"stop": "x" * 300}, "1 to 256 characters"),
        ({"n": 0}, "n: 0"),
        ({"n": 33}, "n: 33"),
        ({"temperature": 3}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"top_p": -1}, "top_p"),
        ({"top_logprobs": 3, "logprobs": True}, "top_logprobs"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logit_bias": {"1": 2}}, "logit_bias"),
        ({"extra_body": {"beam_width": 3}}, "beam_width"),
        ({"messages": [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}]}, "tool_calls"),
        ({"messages": [{"role": "user", "content": "x", "weight": 2}]}, "weight"),
        ({"max_tokens": 500}, "context is 512"),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, "context"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "",
        ),
    ],
)
def test_what_cannot_be_kept_to_is_refused_with_the_reason(
    client: openai.OpenAI, arguments: dict[str, object], said: str
) -> None:
    for stream in (False, True):
        with pytest.raises(openai.APIStatusError) as caught:
            client.chat.completions.create(
                **{"model": "echo", "messages": MESSAGES, "stream": stream, **arguments}
            )
        assert caught.value.status_code in (400, 413)
        assert said in str(caught.value)
        assert caught.value.type == "invalid_request_error"


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"n": "2"}, "n"),
        ({"n": 40}, "n"),
        ({"extra_body": {"beam_width": 3}}, "beam_width"),
        ({"stop": [1]}, "stop"),
        ({"temperature": 3}, "temperature"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        # found by the process of the model
        ({"max_tokens": 500}, "max_tokens"),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, "messages"),
    ],
)
def test_a_refusal_names_the_parameter(
    client: openai.OpenAI, arguments: dict[str, object], param: str
) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(**{"model": "echo", "messages": MESSAGES, **arguments})
    assert caught.value.param == param


def test_a_message_of_the_model_may_be_sent_back_as_it_came(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(model="echo", messages=MESSAGES)
    messages = [*MESSAGES, first.choices[0].message, {"role": "user", "content": "again"}]
    answer = client.chat.completions.create(model="echo", messages=messages)
    assert answer.choices[0].message.content == "again"
    whole = [*MESSAGES, first.choices[0].message.model_dump(), {"role": "user", "content": "again"}]
    assert client.chat.completions.create(model="echo", messages=whole).choices


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "echo", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"model": "echo", "messages": [{"role": "user", "content": "\xff"}]}',
        b'{"model": "echo", "model": "slow", "messages": [{"role": "user", "content": "x"}]}',
        b'{"model": "echo", "messages": "x"}',
        b'{"model": "echo"}',
        b"[]",
        b"",
    ],
)
def test_body_that_is_no_request_is_refused(server: RunningServer, body: bytes) -> None:
    answer = httpx.post(f"{server.url}/v1/chat/completions", content=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="none", messages=MESSAGES)


def test_deadline_within_a_stream_is_an_error_event(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="slow", messages=MESSAGES, stream=True, extra_body={"timeout_ms": 500}
    )
    chunks = iter(stream)
    assert next(chunks).choices[0].delta.content
    with pytest.raises(openai.APIError, match="deadline"):
        list(chunks)


def test_client_that_goes_frees_its_place(client: openai.OpenAI, server: RunningServer) -> None:
    stream = client.chat.completions.create(model="slow", messages=MESSAGES, stream=True)
    next(iter(stream))
    stream.close()
    server.wait_until('hopline_requests_total{model="slow",version="1",outcome="cancelled"}', 1)
