"""Tokens per minute of each client: the unmodified `openai` client with keys, and two workers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from hopline.ingress.clients_edit import add_key
from hopline.ingress.clients_file import Grant, KeyEntry
from hopline.ingress.keys import new_key
from packages.generate.tests.models import naive_version
from tests.servers import RunningServer, running

MESSAGES = [{"role": "user", "content": "0123456789"}]
#: Tokens of the naive engine are bytes.
PER_MINUTE = 25


class Rated:
    """A server with the keys of three clients."""

    def __init__(self, server: RunningServer, keys: dict[str, str]) -> None:
        self.url = server.url
        self.keys = keys

    def client(self, name: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.keys[name], max_retries=0)

    def post(self, name: str, path: str, body: object) -> httpx.Response:
        return httpx.post(self.url + path, json=body, headers={"x-api-key": self.keys[name]})

    def metrics(self) -> str:
        return httpx.get(f"{self.url}/metrics", headers={"x-api-key": self.keys["many"]}).text


@pytest.fixture
def rated(tmp_path: Path) -> Iterator[Rated]:
    naive_version(tmp_path / "models")
    file, keys = tmp_path / "clients.toml", {}
    for name, per_minute in (("few", PER_MINUTE), ("many", 1_000_000), ("default", None)):
        key = new_key()
        grant = Grant(score=("echo",), read=name == "many", tokens_per_minute=per_minute)
        add_key(file, name, KeyEntry(key.id, key.sha256), grant)
        keys[name] = key.text
    settings = {
        "models.repository": str(tmp_path / "models"),
        "auth.clients_file": str(file),
        "generate.nice": 0,
        "server.workers": 2,
    }
    with running("hopline.service:Service", **settings) as server:
        yield Rated(server, keys)


def test_a_client_that_has_used_its_tokens_is_refused_in_openais_form_on_all_paths(rated: Rated) -> None:
    with rated.client("few") as few:
        # 10 of the prompt and 10 of the text: fewer than a minute's tokens, so another text may begin
        assert few.chat.completions.create(model="echo", messages=MESSAGES).usage
        stream = few.chat.completions.create(model="echo", messages=MESSAGES, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert text == "0123456789"  # its last tokens are beyond the rate, and it is not cut
        with pytest.raises(openai.RateLimitError) as caught:
            few.chat.completions.create(model="echo", messages=MESSAGES, stream=True)
    error = caught.value
    assert (error.code, error.type, error.param) == ("rate_limited", "rate_limit_error", None)
    assert f"client 'few' may use {PER_MINUTE} tokens per minute" in error.message
    # 15 tokens of debt and one to begin with, at 25 a minute, less the time since
    assert 20 < int(error.response.headers["retry-after"]) <= 39
    body = {"text_input": "x"}
    refused = [
        rated.post("few", "/v2/models/echo/generate", body),
        rated.post("few", "/v2/models/echo/generate_stream", body),
        rated.post("few", "/v1/models/echo/score", {"rows": [{"prompt": "x"}]}),
        rated.post("few", "/v1/completions", {"model": "echo", "prompt": "x"}),
    ]
    # each over a connection of its own, so that both workers get some
    assert [(answer.status_code, "retry-after" in answer.headers) for answer in refused] == [
        (429, True)
    ] * 4


@pytest.mark.release
def test_others_are_not_limited_and_refusals_are_counted(rated: Rated) -> None:
    asked = {"text_input": "0123456789"}
    while (answer := rated.post("few", "/v2/models/echo/generate", asked)).status_code == 200:
        pass
    assert answer.status_code == 429, answer.text
    for name in ("many", "default"):
        with rated.client(name) as client:
            for _ in range(3):
                assert client.chat.completions.create(model="echo", messages=MESSAGES).choices
    line = 'hopline_token_rate_refusals_total{model="echo",version="1"} 1\n'
    end = time.monotonic() + 20
    while line not in (page := rated.metrics()):  # the other worker's numbers come a moment later
        assert time.monotonic() < end, page
        time.sleep(0.1)
