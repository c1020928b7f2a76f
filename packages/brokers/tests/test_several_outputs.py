"""Answers of a queue to requests for a model with several outputs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from hopline.server import DEFAULT_SERVICE
from packages.brokers.tests.servers import RedisServer, broker_server
from packages.brokers.tests.test_live_queue import answers, put
from tests.server.test_several_outputs import NAMES, Place, assert_right
from tests.servers import running


@pytest.mark.release
def test_an_answer_has_every_output_by_its_name(tmp_path: Path) -> None:
    place = Place(tmp_path)
    bodies = [
        {"model": "tasks", "nodes": NAMES},
        {"model": "tasks", "nodes": ["n1"], "outputs": ["fraud_label"]},
    ]
    with broker_server(RedisServer) as broker:
        settings = {"queues__requests": broker.address("requests"), "queues__results": "results"}
        with running(DEFAULT_SERVICE, **place.settings(), **settings):
            asyncio.run(put(broker.address("requests"), bodies))
            given = asyncio.run(answers(broker.address("results"), 2))
    found = sorted((json.loads(each.payload)["outputs"] for each in given), key=len)
    assert found[0] == {"fraud_label": [int(place.wanted["fraud_label"][1])]}
    assert_right(found[1], place.wanted)
