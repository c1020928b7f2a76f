"""The route and the screen."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hopline.client.sync import Client
from hopline.config.schema import Config
from hopline.transports.http import HttpApp
from hopline_drift.command import app as command
from hopline_drift.command import bar, overview, sparkline, version_screen
from packages.drift.tests.streams import SLICE_S, Clock, FakeServed, Traffic, monitor
from tests.fake_service import FakeService
from turnserve.http1.messages import Request


@pytest.fixture
def drifted(tmp_path):
    """A monitor of a model whose shops have changed, and one that is new."""
    clock, traffic, served = Clock(), Traffic(), FakeServed()
    watched = monitor(tmp_path, clock, drift__sample_per_s=9999)
    for number in range(16):
        if number == 6:
            traffic.shops = (0.2, 0.25, 0.25, 0.3)
        watched.record(traffic.batch(served, 800))
        watched.record(traffic.batch(FakeServed("new"), 5))
        watched.tick()
        clock.now += SLICE_S
    watched.tick()
    return watched


async def ask(app: HttpApp, target: bytes) -> tuple[int, Any]:
    answer: Any = app(Request(b"GET", target, {}))
    for _ in range(500):
        if answer.__class__.__name__ == "Response" or answer.response is not None:
            break
        await asyncio.sleep(0.01)
    response = getattr(answer, "response", answer)
    return response.status, json.loads(response.body)


async def test_routes_answer_the_reports(drifted):
    service: Any = FakeService(Config())
    service.drift = drifted
    app = HttpApp(service, Config())
    status, short = await ask(app, b"/v1/drift")
    assert status == 200
    assert short == json.loads(json.dumps(drifted.report()))
    assert [(each["model"], each["level"]) for each in short["versions"]] == [
        ("fraud", "alert"),
        ("new", "ok"),
    ]
    assert short["versions"][0]["most"]["name"] == "shop"
    status, full = await ask(app, b"/v1/drift/fraud")
    assert status == 200
    assert full == json.loads(json.dumps(drifted.report("fraud")))
    status, error = await ask(app, b"/v1/drift/nobody")
    assert status == 404
    assert "there are: fraud, new" in json.dumps(error)


async def test_a_server_that_does_not_watch_says_so():
    status, error = await ask(HttpApp(FakeService(Config()), Config()), b"/v1/drift")
    assert status == 400
    assert "set drift.enabled and drift.path" in json.dumps(error)


def text(renderable: Any) -> str:
    console = Console(file=io.StringIO(), width=160, no_color=True)
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_screen_shows_what_moved_and_the_hours(drifted):
    short = text(overview(drifted.report()))
    assert "input shop" in short
    assert "collecting" in short
    report = drifted.report("fraud")
    full = text(version_screen(report["versions"][0], report["thresholds"], 3))
    first = full.splitlines()[3:]
    assert first[1].split("│")[2].split() == ["shop"] or "shop" in full
    assert "jewels" in full
    assert "2 more with less drift" in full
    assert full.count(":00") >= 3
    assert any(block in full for block in "▁▂▃▄▅▆▇█")
    new = drifted.report("new")
    assert "collecting a reference, 80 rows so far" in text(
        version_screen(new["versions"][0], new["thresholds"], 3)
    )


def test_bars_and_sparklines():
    thresholds = {"watch": 0.1, "alert": 0.25}
    assert bar(0.0, thresholds).plain == "·" * 10
    assert bar(0.25, thresholds).plain == "█" * 5 + "·" * 5
    assert bar(9.0, thresholds).plain == "█" * 10
    assert sparkline([0.0, 0.001, 0.5, 1.0]) == " ▁▄█"
    assert sparkline([0.0, 0.0]) == "  "


def test_the_command_exits_with_two_where_something_is_at_alert(drifted, monkeypatch):
    asked = []

    def send(self: Any, method: str, path: str, *_: Any, **__: Any) -> bytes:
        asked.append(path)
        name = path.removeprefix("/v1/drift").strip("/")
        return json.dumps(drifted.report(name or None)).encode()

    monkeypatch.setattr(Client, "send", send)
    codes = [CliRunner().invoke(command, ["show", *words]).exit_code for words in ([], ["fraud"], ["new"])]
    assert codes == [2, 2, 0]
    assert asked == ["/v1/drift", "/v1/drift/fraud", "/v1/drift/new"]
