"""Ids stay whole: on a narrow terminal, and in a pipe."""

import io

import numpy as np
import pytest
from rich.console import Group
from rich.table import Table

from hopline.commands.score import result_table
from hopline.commands.screen import Screen, whole
from hopline.config.reader import config_table
from hopline.types import ScoreResult
from hopline_slo import cost
from tests.commands.typed import typed

MODEL = "fraud-detection-graphsage-europe"
VERSION = "2026-11-25T22-10-00-build-4711"
REASON = "the model folder could not be opened because of something that takes several words"


def printed(*objects, terminal=True, **options):
    file = io.StringIO()
    screen = Screen(file=file, force_terminal=terminal, no_color=True, _environ={"TERM": "dumb"}, **options)
    for each in objects:
        screen.print(each, highlight=False)
    return file.getvalue()


def versions(**options):
    table = Table("model", "version", "reason", **options)
    table.add_row(MODEL, VERSION, REASON)
    return whole(table, "model", "version")


def test_ids_are_whole_where_other_columns_can_give_way():
    shown = printed(versions(), width=80)
    assert MODEL in shown
    assert VERSION in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.count("\n") > 5  # the reason was wrapped


def test_ids_are_whole_where_the_table_does_not_fit():
    shown = printed(versions(), width=40)
    assert MODEL in shown
    assert VERSION in shown


def test_a_title_is_as_whole_as_the_table():
    url = "http://a-host-with-a-long-name.example.internal:8700"
    shown = printed(versions(title=url, caption=f"see {url}"), width=40)
    assert shown.count(url) == 2


def test_ids_in_a_sentence_are_whole_and_the_sentence_wraps():
    shown = printed(f"{REASON}: {MODEL}/{VERSION}", width=40)
    assert f"{MODEL}/{VERSION}" in shown
    assert shown.count("\n") > 1


def test_each_part_of_a_group_is_whole():
    shown = printed(Group("heading", versions()), width=40)
    assert "heading\n" in shown
    assert VERSION in shown


@pytest.mark.parametrize("what", [versions(), f"{REASON} {REASON} {MODEL}/{VERSION}"])
def test_nothing_is_wrapped_in_a_pipe(what, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert REASON in printed(what, terminal=False)


def test_columns_that_somebody_set_hold_in_a_pipe_as_well(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    file = io.StringIO()
    Screen(file=file).print(f"{REASON} {REASON}")
    assert max(map(len, file.getvalue().splitlines())) <= 80


def test_the_commands_tables_show_long_ids_whole_at_80_columns(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    file = tmp_path / "clients.toml"
    client = "payments-checkout-service-europe-west-production"
    assert typed("auth", "new-key", client, "--file", file, "--score", MODEL).exit_code == 0
    assert client in typed("auth", "list", "--file", file).stdout
    asked = ["n-" + "7" * 40, "n-" + "8" * 40]
    answer = ScoreResult(MODEL, VERSION, "f" * 16, {"probabilities": np.full((2, 8), 0.125, np.float32)})
    shown = printed(result_table(asked, answer), width=80)
    assert all(node in shown for node in asked)
    assert f"{MODEL} version {VERSION}, graph {'f' * 16}" in " ".join(shown.split())
    one = cost.ModelCost(MODEL, VERSION, 2e6, 4.0, 0.0, None, "")
    shown = printed(whole(cost._table([one]), "model", "version"), width=80)
    assert MODEL in shown
    assert VERSION in shown


def test_settings_are_whole_at_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = typed("config", "show").stdout
    assert all(row.path in shown for row in config_table())
