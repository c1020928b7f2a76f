"""No body of 64 KiB keeps the event loop, or takes memory, whatever it says; see `hostile.py`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.events.hostile import BYTES
from tests.thorough import thorough


@pytest.fixture(scope="module")
def costs(tmp_path_factory):
    """What each body cost, in a process of its own whose memory is limited."""
    folder = str(tmp_path_factory.mktemp("writer"))
    ran = subprocess.run(
        [sys.executable, "-m", "tests.events.hostile", folder, "1", str(thorough(60, 300))],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, f"{ran.stdout[-300:]}\n{ran.stderr[-3000:]}"
    return [json.loads(line) for line in ran.stdout.splitlines()]


def worst(costs, what, most):
    return [(each["name"], each[what], each["said"]) for each in costs if each[what] > most]


def test_bodies_are_as_long_as_their_limit_and_no_longer(costs):
    assert len(costs) > thorough(160, 400)
    assert worst(costs, "bytes", BYTES + 4) == []


def test_no_body_keeps_the_event_loop(costs):
    assert worst(costs, "loop_ms", 10) == []


def test_no_body_takes_memory_that_it_did_not_bring(costs):
    assert worst(costs, "growth", 16 * 2**20) == []


def test_no_body_keeps_a_processor(costs):
    """Nor in a thread beside the loop."""
    assert worst(costs, "all_ms", 250) == []


def test_what_declares_too_much_is_too_large(costs):
    """413, and not the 400 of what cannot be read."""
    said = {each["name"]: each["said"] for each in costs}
    for name in ("2e9 nulls", "2e9 nulls in lists", "long texts", "long vectors", "rows of nothing, None"):
        assert said[name].startswith("request_too_large: "), name
