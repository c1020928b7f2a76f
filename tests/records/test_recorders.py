"""One line for each request that a model took, and nothing on the event loop."""

import io
import json
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from hopline.answering.served import Ran
from hopline.config.schema import Config, DriftConfig
from hopline.errors import ConfigError, Overloaded
from hopline.observe.metrics import Metrics
from hopline.records.recorders import AccessLog, Recorders, access_lines
from hopline.types import ScoreRequest, ScoreResult

SERVED = SimpleNamespace(name="risk", version="7", graph_version="g")


def ran(count=3, **fields):
    requests = [
        ScoreRequest("risk", nodes=[i], request_id=f"r{i}", client="till-3", **fields) for i in range(count)
    ]
    result = ScoreResult("risk", "7", "g", {"score": np.zeros(1, np.float32)}, degraded=("stale",))
    outcomes = [result, Overloaded("full"), None][:count] + [result] * max(0, count - 3)
    return Ran(SERVED, requests, outcomes, [0.001] * count, 0.002, {}, 1700000000.25)


def test_a_line_has_the_client_the_request_and_the_outcome():
    answered, refused = access_lines(ran())
    assert answered == {
        "time": "2023-11-14T22:13:20.250Z",
        "logger": "hopline.access",
        "request_id": "r0",
        "client": "till-3",
        "model": "risk",
        "version": "7",
        "status": "ok",
        "ms": 3.0,
        "queue_ms": 1.0,
        "batch": 3,
        "degraded": ["stale"],
    }
    assert (refused["request_id"], refused["status"]) == ("r1", "overloaded")
    assert "degraded" not in refused


def test_time_away_for_rows_is_part_of_the_whole():
    line, _ = access_lines(ran()._replace(away_s=[0.05, 0, 0]))
    assert (line["ms"], line["queue_ms"], line["fetch_ms"]) == (53.0, 1.0, 50.0)


def test_copies_of_a_shadow_are_nobodys_requests():
    assert list(access_lines(ran(is_copy=True))) == []


async def test_lines_are_json_and_all_there():
    out = io.StringIO()
    log = AccessLog(Metrics(), out)
    for _ in range(100):
        log.record(ran())
    await log.close()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert len(lines) == 200
    assert {line["request_id"] for line in lines} == {"r0", "r1"}


async def test_what_a_slow_disk_cannot_take_is_dropped_and_counted():
    on, in_time = threading.Event(), []

    class Slow(io.StringIO):
        def write(self, text):
            in_time.append(on.wait(60))
            return super().write(text)

    metrics, out = Metrics(), Slow()
    log = AccessLog(metrics, out)
    batch = ran(count=5000)
    for _ in range(10):
        log.record(batch)
    on.set()  # nothing was written before
    await log.close()
    assert all(in_time)
    lines = len(out.getvalue().splitlines())
    text = metrics.render().decode()
    dropped = float(text.split("\nhopline_access_log_dropped_total ")[1].split()[0])
    assert dropped >= 5000
    # one of each five thousand is withdrawn
    assert lines + dropped == 50000 - (50000 - dropped) / 5000


def test_drift_without_its_package_says_what_installs_it(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [])
    config = Config(drift=DriftConfig(enabled=True, path=tmp_path))
    with pytest.raises(ConfigError, match=r"^drift\.enabled: drift needs .*pip install 'hopline\[drift\]'"):
        Recorders(config, Metrics())
