"""`hopline explain`, as it is typed."""

import json
import os
import subprocess
import sys

import pytest

from packages.why.tests.worlds import world
from tests.commands.typed import typed


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return world(tmp_path_factory.mktemp("w"), "typed", [2, 2])


def where(made):
    return "--graph", made.folder.parents[2] / "graph", "--repository", made.folder.parents[1]


def test_two_processes_write_the_same_bytes(made):
    words = "explain", "risk", "u4", *map(str, where(made)), "--json"
    here = typed(*words)
    assert here.exit_code == 0, here.output
    environment = {**os.environ, "PYTHONHASHSEED": "77", "OMP_NUM_THREADS": "1"}
    there = subprocess.run(
        [sys.executable, "-m", "hopline", *words],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert there.stdout == here.stdout
    found = json.loads(here.stdout)
    assert len(found["reasons"]) > 8
    assert found["method"] == "orders"


def test_the_table_has_each_reason_and_their_sum(made):
    found = typed("explain", "risk", "u4", *where(made), "--players", 5)
    assert found.exit_code == 0, found.output
    assert "user__pays__user, hop 1" in found.stdout
    assert "Sum: " in found.stdout
    assert "medians of 40 nodes" in found.stdout


def test_groups_and_the_background_come_from_files(made, tmp_path):
    (tmp_path / "groups.json").write_text('{"money": {"columns": ["amount", "balance"]}}')
    (tmp_path / "background.json").write_text('{"age": 40}')
    files = "--groups", tmp_path / "groups.json", "--background", tmp_path / "background.json"
    found = typed("explain", "risk", "u4", *where(made), *files, "--json")
    by_name = {each["name"]: each for each in json.loads(found.stdout)["reasons"]}
    assert by_name["money"]["size"] == 2
    assert by_name["age"]["absent"] == 40


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["risk", "nobody"], "'nobody' is not in graph"),
        (["risk", "u1", "--groups", __file__], "--groups"),
        (["risk", "u1", "--node-type", "device"], "--node-type 'device': the model answers user"),
        (["other", "u1"], "other"),
    ],
)
def test_a_wrong_question_is_refused_with_the_reason(made, words, reason):
    found = typed("explain", *words, *where(made))
    assert found.exit_code != 0
    assert reason in found.stderr
    assert "Traceback" not in found.output
