"""Texts of a generative model over gRPC, as Triton's client asks for answers in parts."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput

from packages.generate.tests.models import naive_version
from tests.servers import RunningServer, running

LONG = "0123456789☃" * 10


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("repository")
    naive_version(repository, answer=LONG, step_s=0.002)
    naive_version(repository, "broken", answer=LONG, fail_after=20)
    settings = {"models.repository": str(repository), "generate.nice": 0}
    with running("hopline.service:Service", **settings) as server:
        yield server


@pytest.fixture
def client(server: RunningServer) -> Iterator[InferenceServerClient]:
    with InferenceServerClient(server.grpc) as client:
        yield client


def inputs(*prompts: str, max_tokens: int = 500) -> list[InferInput]:
    prompt = InferInput("prompt", [len(prompts)], "BYTES")
    prompt.set_data_from_numpy(np.array(prompts, object))
    longest = InferInput("max_tokens", [len(prompts)], "INT64")
    longest.set_data_from_numpy(np.full(len(prompts), max_tokens, np.int64))
    return [prompt, longest]


class Answers:
    """What comes on a stream, until a number of final responses or errors."""

    def __init__(self, client: InferenceServerClient) -> None:
        self._came: queue.Queue[Any] = queue.Queue()
        self._client = client
        client.start_stream(lambda result, error: self._came.put(error or result))

    def ask(self, model: str, id: str, *prompts: str, parts: bool = True) -> None:
        self._client.async_stream_infer(
            model, inputs(*prompts), request_id=id, enable_empty_final_response=parts
        )

    def next(self) -> Any:
        return self._came.get(timeout=20)

    def until_last(self, id: str) -> tuple[list[str], Any]:
        """Texts of the responses of a request, and the last one."""
        texts = []
        while True:
            found = self.next()
            assert not isinstance(found, Exception), found
            response = found.get_response()
            assert response.id == id
            texts += [text.decode() for text in found.as_numpy("text")]
            if response.parameters["triton_final_response"].bool_param:
                return texts, found


def test_a_text_comes_in_parts_and_the_last_one_has_the_other_outputs(
    client: InferenceServerClient,
) -> None:
    answers = Answers(client)
    answers.ask("echo", "a", "x")
    texts, last = answers.until_last("a")
    assert len(texts) > 5
    assert "".join(texts) == LONG
    assert not any("\ufffd" in text for text in texts)
    assert last.as_numpy("finish_reason").tolist() == [b"stop"]
    assert last.as_numpy("completion_tokens").tolist() == [len(LONG.encode())]


def test_texts_of_one_stream_come_one_after_the_other(client: InferenceServerClient) -> None:
    answers = Answers(client)
    answers.ask("echo", "a", "x")
    answers.ask("echo", "b", "x")
    for id in ("a", "b"):
        texts, _ = answers.until_last(id)
        assert "".join(texts) == LONG


def test_several_rows_and_requests_without_the_parameter_have_one_response(
    client: InferenceServerClient,
) -> None:
    answers = Answers(client)
    answers.ask("echo", "rows", "x", "y")
    texts, _ = answers.until_last("rows")
    assert texts == [LONG, LONG]
    answers.ask("echo", "plain", "x", parts=False)
    found = answers.next()
    assert [text.decode() for text in found.as_numpy("text")] == [LONG]
    assert "triton_final_response" not in found.get_response().parameters


def test_an_error_within_a_text_ends_it(client: InferenceServerClient) -> None:
    answers = Answers(client)
    answers.ask("broken", "a", "x")
    found, text = answers.next(), ""
    while not isinstance(found, Exception):
        text += found.as_numpy("text")[0].decode()
        found = answers.next()
    assert LONG.startswith(text)
    assert len(text) < len(LONG)
    assert "the engine failed" in str(found) or "process ended" in str(found)


def test_a_client_that_goes_frees_its_place(client: InferenceServerClient, server: RunningServer) -> None:
    answers = Answers(client)
    answers.ask("echo", "a", "x")
    answers.next()
    client.stop_stream(cancel_requests=True)
    server.wait_until('hopline_requests_total{model="echo",version="1",outcome="cancelled"}', 1)
