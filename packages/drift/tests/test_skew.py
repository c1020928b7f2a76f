"""Skew between a prediction log and training: an honest log has none, and planted ones are found."""

import copy
import json
import math
import time

import msgspec
import numpy as np
import pandas as pd
import pytest

import hopline
from hopline.records.exact import array_json, json_array
from hopline.types import InlineNode
from hopline_drift.log_reader import LogReader
from packages.tabular.tests import fraud_graph as fraud
from packages.tabular.tests import payment_graph as shop
from packages.tabular.tests.conftest import packaged_world, world  # noqa: F401
from packages.tabular.tests.fraud_world import as_sent
from packages.tabular.tests.test_edge_columns import Shop
from tests.commands.typed import typed
from tests.servers import running

NEW = 1_000


@pytest.fixture(scope="module")
def entries(world, tmp_path_factory):  # noqa: F811
    """The entries of a server that scored known nodes, and new ones of the same distribution."""
    folder, log = world.report.path.parents[2], tmp_path_factory.mktemp("log")
    settings = {"prediction_log__path": log, "prediction_log__tensors_share": 1.0}
    paths = {"graph__path": folder / "graph", "models__repository": folder / "models"}
    frame = fraud.accounts(NEW, seed=77)
    with (
        running("hopline.service:Service", **paths, **settings) as server,
        hopline.Client(server.url) as client,
    ):
        for first in range(0, 300, 50):
            client.score("risk", world.ids[first : first + 50])
        for first in range(0, NEW, 20):
            rows = frame[first : first + 20].to_dict("records")
            client.score_inline("risk", [InlineNode(columns=as_sent(row)) for row in rows])
    time.sleep(0.1)
    lines = [line for file in LogReader(log).files for line in file.path.read_text().splitlines()]
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def training(world, tmp_path_factory):  # noqa: F811
    """The training rows as files: the table that the graph was built of."""
    folder = tmp_path_factory.mktemp("training")
    frame = world.frame.assign(account=world.ids)
    frame.to_parquet(folder / "train.parquet")
    frame.assign(opened=[None if pd.isna(at) else at.isoformat() for at in frame["opened"]]).to_csv(
        folder / "train.csv", index=False
    )
    return folder


@pytest.fixture
def run(world, training, entries, tmp_path):  # noqa: F811
    """Runs the command on changed entries; returns the exit code and the report."""

    def run(change=None, *words, table="train.parquet"):
        log = tmp_path / "log"
        log.mkdir(exist_ok=True)
        changed = copy.deepcopy(entries)
        if change is not None:
            change(changed)
        (log / "predictions-20261129T101502.123456Z-w0-1.jsonl").write_text(
            "".join(json.dumps(entry) + "\n" for entry in changed)
        )
        folder = world.report.path.parents[2]
        done = typed(
            "skew", str(log), "--artifact", str(world.report.path), "--graph", str(folder / "graph"),
            "--table", str(training / table), "--id", "account", "--json", *words,
        )  # fmt: skip
        assert done.exit_code in (0, 2), done.output
        report = json.loads(done.stdout)
        found = {(each["against"], each["column"], each["kind"]): each for each in report["skew"]}
        assert done.exit_code == (2 if found else 0)
        return report, found

    return run


def new_rows(entries):
    return [node["columns"] for entry in entries for node in entry["inputs"].get("inline", [])]


@pytest.mark.sample(1)
@pytest.mark.parametrize("table", ["train.parquet", "train.csv"])
def test_an_honest_log_has_no_skew(run, table):
    report, found = run(table=table)
    assert found == {}
    assert report["rows"] == NEW
    assert report["nodes"] == report["ids_in_graph"] == report["ids_in_training"] == 300
    assert report["encoded_rows"] == NEW


def planted(name, value, every=5):
    def change(entries):
        for at, row in enumerate(new_rows(entries)):
            if at % every == 0:
                row[name] = value(row[name]) if callable(value) else value

    return change


def forgotten(entries):
    for row in new_rows(entries)[::5]:
        del row["mcc"]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("change", "column", "kind", "said"),
    [
        (
            planted("amount", lambda old: (old or 1) * 1e4),
            "amount",
            "range",
            "% of served values are beyond",
        ),
        (planted("country", "XX"), "country", "category", "% of served texts are not in"),
        (planted("opened", None), "opened", "missing", "served cells are missing"),
        (planted("age", "44"), "age", "type", "20.0% of served values: '44' instead of a whole number"),
        (planted("country", "BR", every=2), "country", "distribution", "most in 'BR'"),
        (planted("age", lambda old: 20 + old % 5, every=2), "age", "distribution", "another distribution"),
        (forgotten, "mcc", "column", "20.0% of served rows have no such column"),
    ],
    ids=["range", "category", "missing", "type", "categories", "numbers", "column"],
)
def test_a_planted_skew_of_a_column_is_found_and_named(run, change, column, kind, said):
    _, found = run(change)
    assert {name for _, name, each in found if each != "encoded"} == {column}
    sides = ("served",) if kind == "column" else ("graph", "training")
    for against in sides:
        assert said in found[against, column, kind]["text"]


def test_rows_that_are_another_row_in_training_are_found_by_their_id(run, world):  # noqa: F811
    def change(entries):
        for at, entry in enumerate(entry for entry in entries if entry["inputs"].get("inline")):
            for place, node in enumerate(entry["inputs"]["inline"][:3]):
                row = (3 * at + place) % 300
                node["columns"] = as_sent(world.frame.iloc[row])
                node["id"] = world.ids[row]
                if place == 0:
                    node["columns"]["age"] += 1
            entry["tensors"].pop("inline.features", None)

    _, found = run(change)
    assert set(found) == {("graph", "age", "row"), ("training", "age", "row")}
    assert "50 of 150 rows differ from training" in found["training", "age", "row"]["text"]


def test_features_that_the_model_read_of_another_row_are_found(run):
    """As of a feature store that lags behind, or has its columns in another order."""

    def change(entries):
        for entry in entries:
            rows = entry["tensors"].get("nodes.account.features")
            if rows is not None:
                entry["tensors"]["nodes.account.features"] = shifted(rows)

    _, found = run(change)
    assert {(against, kind) for against, _, kind in found} == {("graph", "row"), ("training", "row")}


def shifted(rows):
    """A logged array whose columns moved by one."""
    return json.loads(msgspec.json.encode(array_json(np.roll(json_array(rows), 1, axis=1), lambda: None)))


def test_preprocessing_that_makes_something_else_is_found(run):
    def change(entries):
        for row in new_rows(entries)[:40]:
            row["amount"] = (row["amount"] or 0) + 0.25

    _, found = run(change)
    assert {(against, kind) for against, _, kind in found} == {("model", "encoded")}


def test_a_training_table_of_other_types_or_without_a_column_is_skew(run, training, world):  # noqa: F811
    frame = world.frame.assign(account=world.ids, mcc=[int(code) for code in world.frame["mcc"]])
    frame.drop(columns="active").to_parquet(training / "other.parquet")
    _, found = run(table="other.parquet")
    assert set(found) == {("training", "mcc", "type"), ("training", "active", "column")}
    assert (
        "5411 instead of a string" in found["training", "mcc", "type"]["text"]
        or "instead of a string" in (found["training", "mcc", "type"]["text"])
    )


def test_the_table_names_each_difference(run, world, training, entries, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("COLUMNS", "160")
    run(planted("country", "XX"))
    words = ("--artifact", str(world.report.path), "--table", str(training / "train.csv"))
    done = typed("skew", str(tmp_path / "log"), *words)
    assert done.exit_code == 2
    assert "1,000 rows and 300 nodes of risk" in done.stdout
    assert "category" in done.stdout
    assert "not in training" in done.stdout


def test_a_command_that_lacks_something_says_what(world, tmp_path, entries):  # noqa: F811
    (tmp_path / "predictions-20261129T101502.123456Z-w0-1.jsonl").write_text(json.dumps(entries[0]) + "\n")
    for words, said in {
        (): "--graph with --artifact, --table, or both",
        ("--graph", str(tmp_path)): "pass --artifact as well",
        ("--table", str(tmp_path / "absent.csv")): "--model",
        ("--table", str(tmp_path / "absent.csv"), "--model", "other"): "no logged inputs",
    }.items():
        done = typed("skew", str(tmp_path), *words)
        assert done.exit_code == 1
        assert said in done.output


def test_rows_of_a_tabular_model_are_compared_with_its_table(tmp_path):
    random = np.random.default_rng(1)
    amounts, codes = random.normal(size=400), random.choice(["a", "b"], 400)
    table = tmp_path / "train.csv"
    pd.DataFrame({"id": range(400), "amount": amounts, "code": codes}).to_csv(table, index=False)
    columns = {"id": list(range(200)), "amount": amounts[:200].tolist(), "code": codes[:200].tolist()}
    entry = {"request_id": "1", "time": 1.0, "model": "t", "version": "1", "inputs": {"columns": columns}}
    log = tmp_path / "predictions-20261129T101502.123456Z-w0-1.jsonl"
    words = (str(log), "--table", str(table), "--model", "t", "--id", "id", "--json")
    log.write_text(json.dumps(entry) + "\n")
    done = typed("skew", *words)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["ids_in_training"] == 200
    columns["amount"][:20] = [math.pi] * 20
    log.write_text(json.dumps(entry) + "\n")
    done = typed("skew", *words)
    assert done.exit_code == 2
    assert {(each["column"], each["kind"]) for each in json.loads(done.stdout)["skew"]} >= {
        ("amount", "row")
    }


@pytest.mark.release
def test_columns_of_edges_of_new_nodes_are_compared_with_the_graphs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made, log, key = Shop(tmp_path, turns=False), tmp_path / "log", "merchant__paid_by__account"
    rows = [as_sent(row) for row in shop.payments(NEW, 5).to_dict("records")]
    features = shop.rows_of(NEW // 5, 9)
    settings = {"graph__path": tmp_path / "graph", "models__repository": tmp_path / "models"}
    with (
        running("hopline.service:Service", **settings, prediction_log__path=log) as server,
        hopline.Client(server.url) as client,
    ):
        for at in range(0, NEW, 5):
            ends = {"neighbors": {"": [1, 2, 3, 4, 5]}, "edge_attr": {"": rows[at : at + 5]}}
            client.score_inline("risk", [InlineNode(features=features[at // 5], **ends)])
    words = (str(log), "--artifact", str(made.report.path), "--graph", str(tmp_path / "graph"), "--json")
    done = typed("skew", *words)
    assert (done.exit_code, json.loads(done.stdout)[f"rows_of_{key}"]) == (0, NEW), done.output
    (file,) = log.glob("*.jsonl")
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    for entry in entries[::4]:
        for row in entry["inputs"]["inline"][0]["edge_attr"][""]:
            row["currency"] = "XXX"
    file.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    done = typed("skew", *words)
    found = {(each["against"], each["column"], each["kind"]) for each in json.loads(done.stdout)["skew"]}
    assert done.exit_code == 2
    assert ("graph", f"{key}: currency", "category") in found
    assert {column for _, column, _ in found} == {f"{key}: currency"}
