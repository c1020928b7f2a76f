"""References that were made beforehand, and the command that makes them."""

from __future__ import annotations

import csv
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from hopline.artifact import Head
from hopline.config.reader import load_config
from hopline.errors import BadRequest
from hopline.observe.metrics import Metrics
from hopline.records.log import PredictionLog
from hopline.types import ScoreRequest
from hopline_drift.bins import CategoryBins
from hopline_drift.command import app
from hopline_drift.observed import LABEL, SCORE, Quantity
from hopline_drift.reference import Reference, read_reference, write_reference
from hopline_drift.training import Choice, Packaged, from_graph, from_log, from_table
from packages.drift.tests.streams import Clock, FakeServed, Traffic, answer, monitor, quantities, ran
from tests.graphs import hetero_graph, power_law_graph

EDGE = "node__to__node"


def entries(reference: Reference) -> dict[tuple[str, str], int]:
    """Quantity -> values that were counted."""
    return {tuple(entry.quantity): entry.sketch.num_values for entry in reference.entries}


def spec(keys: list[str], node_type: str = "node", **head: Any) -> Any:
    return SimpleNamespace(
        name="m", version="1", head=Head(node_type, 1, **head), fanouts=dict.fromkeys(keys, (5,))
    )


async def logged(folder: Any, *batches: Any) -> None:
    config = load_config(overrides={"prediction_log.path": folder})
    log = PredictionLog(config, Metrics())
    log.start()
    for batch in batches:
        log.record(batch)
    await log.close()


async def test_a_log_makes_the_reference_that_its_traffic_would_have_made(tmp_path):
    batch = Traffic().batch(FakeServed(), 2000)
    await logged(tmp_path / "log", batch, Traffic().batch(FakeServed(version="0"), 10))
    made = from_log(tmp_path / "log", "fraud", "1", Choice(), 5.0)
    live = monitor(tmp_path / "drift", Clock(), drift__sample_per_s=9999)
    live.record(batch)
    live.tick()
    expected, _ = read_reference(tmp_path / "drift" / "fraud" / "1" / "reference.json")
    assert made.entries == expected.entries
    assert from_log(tmp_path / "log", "fraud", "", Choice(), 5.0).version == "0"  # the last one
    fewer = from_log(tmp_path / "log", "fraud", "1", Choice(max_rows=300), 5.0)
    assert set(entries(fewer).values()) == {300}
    with pytest.raises(BadRequest, match="versions of fraud: 0, 1"):
        from_log(tmp_path / "log", "fraud", "7", Choice(), 5.0)


async def test_neighbourhoods_of_a_log_s_nodes_are_read_from_the_graph(tmp_path):
    graph = power_law_graph(200, 800, 3)
    served = FakeServed("m")
    requests = [ScoreRequest("m", nodes=[row]) for row in range(200)]
    outcomes = [answer(served, {"probabilities": np.array([0.5], np.float32)})] * 200
    await logged(tmp_path, ran(served, requests, outcomes))
    made = from_log(tmp_path, "m", "1", Choice(), 0.0, Packaged(spec([EDGE]), graph))
    assert entries(made)["graph", "degree"] == 200
    assert entries(made)["neighbor", "f2"] == 200


def test_a_graph_makes_a_reference_that_traffic_completes(tmp_path):
    graph = power_law_graph(500, 3000, 3)
    made = from_graph(Packaged(spec([EDGE]), graph), Choice(), 0.0)
    columns = [(kind, f"f{column}") for kind in ("input", "neighbor") for column in range(3)]
    assert entries(made) == dict.fromkeys([("graph", "degree"), *columns], 500)
    assert not made.is_complete
    clock, served, folder = Clock(), FakeServed(), tmp_path / "fraud" / "1"
    write_reference(folder / "reference.json", made)
    watched = monitor(tmp_path, clock, drift__sample_per_s=9999)
    watched.record(Traffic().batch(served, 2000))
    watched.tick()
    whole, _ = read_reference(folder / "reference.json")
    assert whole.is_complete
    assert whole.source == f"graph {graph.version}, then traffic"
    assert set(entries(made)) < set(entries(whole))
    assert ("output", "score") in entries(whole)
    watched.record(Traffic(1).batch(served, 500))
    watched.tick()
    assert quantities(watched)["output", "score"]["values"] == 500


def test_both_sides_of_a_link_model_are_drawn():
    link = spec(["user__buys__item"], "user", kind="link", dst_node_type="item")
    made = entries(from_graph(Packaged(link, hetero_graph(num_items=60)), Choice(), 0.0))
    assert made["input", "source f7"] == 60
    assert made["graph", "degree of destination"] == 60


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "train.csv"
    rng = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["amount", "shop", "score", "blocked"])
        for row in range(300):
            amount = "" if row % 10 == 0 else rng.lognormal()
            writer.writerow([amount, "food" if row % 3 else "travel", rng.random(), row % 2])
    return path


def test_training_rows_make_a_reference(table):
    made = from_table(table, Choice(), 0.0, "score", "blocked")
    assert entries(made) == {
        ("input", "amount"): 300, ("input", "shop"): 300, tuple(SCORE): 300, tuple(LABEL): 300
    }  # fmt: skip
    assert made.is_complete
    assert made.bins(Quantity("input", "shop")) == CategoryBins(("food", "travel"))
    (amount,) = [entry.sketch for entry in made.entries if entry.name == "amount"]
    assert amount.counts[-1] == 30  # the empty fields
    assert not from_table(table, Choice(columns=("shop",)), 0.0).is_complete
    assert entries(from_table(table, Choice(max_rows=100, columns=("shop",)), 0.0, "score", "blocked")) == {
        ("input", "shop"): 100, tuple(SCORE): 100, tuple(LABEL): 100
    }  # fmt: skip


def test_parquet_is_read_as_csv_is(table, tmp_path):
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    parquet.write_table(arrow_csv.read_csv(table), tmp_path / "train.parquet")
    one, other = (
        from_table(path, Choice(), 0.0, "score", "blocked") for path in (table, tmp_path / "train.parquet")
    )
    assert one.entries == other.entries


def test_a_table_that_cannot_be_used_is_named(table, tmp_path):
    with pytest.raises(BadRequest, match="no column 'scoer'; columns are 'amount', 'shop'"):
        from_table(table, Choice(), 0.0, "scoer")
    with pytest.raises(BadRequest, match="cannot be read"):
        from_table(tmp_path / "absent.csv", Choice(), 0.0)


def command(*words: Any) -> Any:
    return CliRunner().invoke(app, ["reference", *map(str, words)])


def test_the_command_writes_what_a_server_reads(table, tmp_path):
    out = tmp_path / "drift" / "fraud" / "1" / "reference.json"
    done = command("--table", table, "--score", "score", "--label", "blocked", "--out", out)
    assert done.exit_code == 0, done.output
    assert "4 quantities of 300 rows" in done.output.replace("\n", "")
    clock, served = Clock(), FakeServed()
    watched = monitor(tmp_path / "drift", clock, drift__sample_per_s=9999)
    watched.record(Traffic().batch(served, 500))
    watched.tick()
    assert quantities(watched)["input", "shop"]["psi"] > 0.25


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "pass one source"),
        (["--log", "l", "--table", "t"], "pass one source"),
        (["--log", "l"], "--model"),
        (["--graph", "g"], "--graph and --artifact go together"),
    ],
)
def test_the_command_says_what_it_needs(words, message, tmp_path):
    done = command(*words, "--out", tmp_path / "r.json")
    assert isinstance(done.exception, BadRequest)
    assert message in str(done.exception)
