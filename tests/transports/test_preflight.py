"""A server has done all of it before the first request, and nobody can tell."""

import re
import shutil
from unittest.mock import Mock

import numpy as np
import pytest

from hopline.errors import RateLimited
from hopline.transports.preflight import _message, preflight
from hopline.transports.score_json import decode_score
from hopline.types import ScoreRequest
from tests import loaded_units_rig


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return loaded_units_rig.repository(tmp_path_factory.mktemp("preflighted"))


@pytest.fixture(autouse=True)
def all_the_time(monkeypatch):
    """A busy machine gets through fewer in a tenth of a second."""
    monkeypatch.setattr("hopline.transports.preflight._LONGEST_S", 60.0)


def counted(service):
    """Metrics that count requests, by name and labels."""
    lines = service.metrics.render().decode().splitlines()
    return [line for line in lines if re.match(r"hopline_(requests|batch|stage|http|queue|model_re)", line)]


def ran(service):
    """Batches, as the protocol's statistics have them."""
    return sum(row["execution_count"] for row in service.statistics("sage"))


async def test_preflights_go_all_the_way_and_leave_no_trace(root):
    service = await loaded_units_rig.started(root)
    recorder = Mock()
    service.recorders.append(recorder)
    try:
        batches = []
        for served in service._all():
            run = served.queue._run
            served.queue._run = lambda batch, run=run: batches.append(len(batch)) or run(batch)
        before = counted(service)
        with service.preflight() as examples:
            assert len(examples) >= 20
            assert await preflight(service, service.config, examples) == len(examples)
        assert batches == [1] * len(examples)
        assert counted(service) == before
        assert ran(service) == recorder.record.call_count == 0
        # what comes then is counted from the first on
        await service.score(ScoreRequest("sage", nodes=["n3"]))
        assert counted(service) != before
        assert ran(service) == recorder.record.call_count == 1
    finally:
        await loaded_units_rig.stop(service)


async def test_preflights_take_nothing_of_a_limited_rate(root, tmp_path):
    shutil.copytree(root, tmp_path / "copy")
    (tmp_path / "copy" / "models" / "sage" / "serving.toml").write_text("rate_per_s = 2\nburst = 2\n")
    service = await loaded_units_rig.started(tmp_path / "copy")
    try:
        with service.preflight() as examples:
            assert await preflight(service, service.config, examples) == len(examples)
        for _ in range(2):
            await service.score(ScoreRequest("sage", nodes=["n3"]))
        with pytest.raises(RateLimited):
            await service.score(ScoreRequest("sage", nodes=["n3"]))
    finally:
        await loaded_units_rig.stop(service)


async def test_a_model_that_cannot_answer_does_not_keep_a_server_from_starting(root):
    service = await loaded_units_rig.started(root)
    try:
        for served in service._all():
            loaded_units_rig.spoil(served, "errors")
        before = counted(service)
        with service.preflight() as examples:
            assert await preflight(service, service.config, examples[:3]) == 3
        assert counted(service) == before
    finally:
        await loaded_units_rig.stop(service)


async def test_ids_that_no_client_can_send_are_skipped(root):
    service = await loaded_units_rig.started(root)
    try:
        good, bad = ScoreRequest("sage", nodes=["n3"]), ScoreRequest("sage", nodes=["caf\udce9"])
        pair = ScoreRequest("sage", pairs=(["n3"], ["\ud800"]))
        assert await preflight(service, service.config, [bad, good, pair, bad, good]) == 2
    finally:
        await loaded_units_rig.stop(service)


@pytest.mark.parametrize(
    "example",
    [
        ScoreRequest("m", nodes=np.array([7]), version="1"),
        ScoreRequest("m", nodes=["a/b"], version="1"),
        ScoreRequest("m", pairs=(np.array([7]), ["x"]), version="1"),
    ],
)
def test_examples_are_sent_as_clients_send_them(example):
    head, body = _message(example, "a").split(b"\r\n\r\n")
    asked = decode_score(body)
    assert head.startswith(b"POST /v1/models/m/score HTTP/1.1\r\n")
    assert f"content-length: {len(body)}".encode() in head
    if example.pairs is None:
        assert list(asked.nodes) == list(example.nodes)
    else:
        assert asked.pairs == [(7, "x")]
