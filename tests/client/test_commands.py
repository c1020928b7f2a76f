"""`hopline serve` and `hopline score` as commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from hopline import serve as serve_module
from hopline.commands.score import score
from hopline.commands.serve import serve
from hopline.config.schema import Config
from hopline.errors import BadRequest, ConfigError
from tests.servers import RunningServer, running

app = typer.Typer()
app.command("serve")(serve)
app.command("score")(score)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running(server__grpc_port=-1) as started:
        yield started


def invoke(*arguments: str) -> Any:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    return result.exit_code, result.output


def test_serve_resolves_its_flags(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[Config] = []
    monkeypatch.setattr(serve_module, "run", lambda config, **_: seen.append(config) or 0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOPLINE__SERVER__WORKERS", "3")
    (tmp_path / "hopline.toml").write_text("[server]\nhttp_port = 1\nworkers = 2\n")
    code, _ = invoke(
        "serve",
        "--graph",
        "g",
        "--model",
        "a",
        "--grpc-port",
        "-1",
        "--set",
        "limits.max_nodes_per_request=9",
    )
    assert code == 0
    config = seen[0]
    assert (config.server.http_port, config.server.workers, config.server.grpc_port) == (1, 3, -1)
    assert (config.graph.path, config.models.names) == (Path("g"), ("a",))
    assert config.limits.max_nodes_per_request == 9
    with pytest.raises(ConfigError, match=r"write section.key=value"):
        invoke("serve", "--set", "workers")


def test_score_prints_a_table(server: RunningServer) -> None:
    code, out = invoke("score", "sage", "41", "42", "--url", server.url)
    assert code == 0
    assert "sage version 2, graph fake-graph" in out
    assert "0.1, 0.9" in out
    code, out = invoke("score", "people", "n1", "n-1", "--on-missing", "null", "--url", server.url)
    assert "unknown" in out
    code, out = invoke("score", "people", "[a]", "--on-missing", "null", "--url", server.url)
    assert "[a]" in out
    code, out = invoke("score", "link", "1,2", "--pairs", "--output", "label", "--url", server.url)
    assert "1,2" in out


def test_score_sends_edits(server: RunningServer) -> None:
    code, out = invoke(
        "score", "sage", "41", "--if", '[{"add_edge": {"from": 7, "to": 41}}]', "--url", server.url
    )
    assert code == 0
    assert "0.1, 0.9" in out
    with pytest.raises(BadRequest, match=r"if\[0\]"):  # the server's own check
        invoke("score", "sage", "41", "--if", '[{"add_edge": 7}]', "--url", server.url)
    for wrong in ("{", "{}", "[7]"):
        with pytest.raises(BadRequest, match="--if: must be a JSON list of edits"):
            invoke("score", "sage", "41", "--if", wrong, "--url", server.url)


def test_score_says_what_is_wrong(server: RunningServer) -> None:
    with pytest.raises(BadRequest, match="'x' is not an integer"):
        invoke("score", "sage", "x", "--url", server.url)
    with pytest.raises(BadRequest, match="'4_1' is not an integer"):
        invoke("score", "sage", "4_1", "--url", server.url)
    with pytest.raises(BadRequest, match="must begin with http://, for example http://127"):
        invoke("score", "sage", "1", "--url", "127.0.0.1:8700")
    with pytest.raises(BadRequest, match="not a pair source,destination"):
        invoke("score", "link", "1", "--pairs", "--url", server.url)
