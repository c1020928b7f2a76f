"""Tables with several rows for a key: described, built, and read as DuckDB's ASOF JOIN reads them."""

import duckdb
import numpy as np
import pandas as pd
import pytest

from hopline.errors import GraphError
from hopline.graph import Graph
from hopline_sql.describe import described
from hopline_sql.description import Description
from tests.commands.typed import typed

PAYMENTS = """
[tables.payment]
file = "payments.csv"
[tables.payment.foreign_keys]
src = { table = "account" }
dst = { table = "account" }
[tables.payment.columns]
at = { role = "time" }
"""
FOREIGN = '[tables.account.foreign_keys]\nother = { table = "x" }\n'


@pytest.fixture
def tables(tmp_path):
    rng = np.random.default_rng(0)
    owners = rng.integers(0, 40, 300)
    moments = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.choice(9_000, 300, replace=False), "min")
    rows = pd.DataFrame(
        {
            "id": [f"a{at}" for at in owners],
            "valid_from": moments,
            "balance": rng.normal(size=300).astype("f4"),
            "country": rng.choice(["DE", "JP"], 300),
        }
    )
    rows.to_csv(tmp_path / "account.csv", index=False)
    first = rows.groupby("id").valid_from.min()
    ends = [rng.choice(first.index, 200) for _ in range(2)]
    at = np.maximum(*(first[own].to_numpy() for own in ends)) + pd.Timedelta("1D")
    payments = pd.DataFrame({"src": ends[0], "dst": ends[1], "at": at})
    payments.to_csv(tmp_path / "payments.csv", index=False)
    return tmp_path, rows


def test_a_description_finds_a_history_and_builds_it(tables):
    folder, rows = tables
    text = described([str(folder / "account.csv"), f"payment={folder / 'payments.csv'}"], "", folder)
    assert f'key = "id"  # 300 rows of {rows.id.nunique()} nodes' in text
    assert 'valid_from = { role = "history"' in text
    (folder / "graph.toml").write_text(text)
    found = typed("graph", "build", str(folder / "graph.toml"), "--out", str(folder / "graph"))
    assert found.exit_code == 0, found.output
    past = Graph.open(folder / "graph").nodes["account"].history
    assert len(past.times) == 300
    assert past.columns.table.column_names == ["balance", "country"]


def test_rows_of_then_are_those_of_an_asof_join(tables):
    folder, rows = tables
    text = (
        '[tables.account]\nfile = "account.csv"\nkey = "id"\nsince = "2023-12-31"\n'
        "[tables.account.columns]\n"
        'valid_from = { role = "history" }\nbalance = {}\ncountry = {}\n'
    )
    (folder / "graph.toml").write_text(text + PAYMENTS)
    graph = Description(folder / "graph.toml").graph()
    part, past = graph.nodes["account"], graph.nodes["account"].history
    assert past.since == np.datetime64("2023-12-31", "s").astype(int)
    rng = np.random.default_rng(1)
    asked = pd.DataFrame(
        {
            "id": rng.choice(rows.id.unique(), 500),
            "asked": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(-10, 9_100, 500), "min"),
        }
    )
    asked.loc[:99, "asked"] = rows.valid_from[rng.integers(0, 300, 100)].to_numpy()
    query = (
        "select a.*, r.balance, r.country from asked a asof left join rows r "
        "on a.id = r.id and a.asked >= r.valid_from"
    )
    right = duckdb.sql(query).df()
    for row in right.itertuples():
        as_of = int(row.asked.timestamp())
        place = past.places(part.ids.lookup([row.id]), as_of)[0]
        if place < 0:
            assert pd.isna(row.balance)
            continue
        cells = past.columns.table.slice(place, 1).to_pylist()[0]
        assert cells["country"] == row.country
        assert np.float32(cells["balance"]) == np.float32(row.balance)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("balance = {}", 'balance = { role = "label" }'), "'balance' would belong to one of many rows"),
        (('key = "id"', ""), "no key and 0 foreign keys"),
        (('role = "history"', 'role = "feature"'), "since is of a table with a history"),
        (("country = {}", 'country = { role = "history" }'), "and one the history"),
        (('since = "2023-12-31"\n', FOREIGN), "rows would make an edge each"),
    ],
)
def test_what_is_no_history_is_refused(tables, change, message):
    folder, _ = tables
    text = (
        '[tables.account]\nfile = "account.csv"\nkey = "id"\nsince = "2023-12-31"\n'
        "[tables.account.columns]\n"
        'valid_from = { role = "history" }\nbalance = {}\ncountry = {}\n'
    )
    (folder / "graph.toml").write_text(text.replace(*change) + PAYMENTS)
    with pytest.raises(GraphError, match=message):
        Description(folder / "graph.toml").graph()
