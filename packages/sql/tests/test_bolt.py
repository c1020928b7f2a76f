"""Graphs from Cypher over Bolt, against a real server; refusals name the query."""

from urllib.parse import quote

import numpy as np
import pandas as pd
import pytest

from hopline.errors import GraphError
from hopline_sql import Database, Description
from hopline_sql.describe import described
from packages.sql.tests.bolt_server import PASSWORD, bolt

STATEMENTS = [
    """CREATE (a:Account {no: '007', country: 'DE', income: 12.5, age: 44, verified: true, emb: [0.5, -2.0],
    opened: date('2024-01-31'), seen: datetime('2024-01-31T13:45:00.000001+02:00')}),
    (b:Account {no: '008', country: 'JP'}), (m:Merchant {no: 1, turnover: 2.5}),
    (a)-[:PAYS {amount: 3.5}]->(m), (b)-[:PAYS {amount: 4.5}]->(m)""",
    "CREATE (:Visit {at: datetime('2024-01-31T13:45:00.000000001Z')})",
]
ACCOUNTS = """MATCH (a:Account) RETURN a.no AS id, a.country AS country, a.income AS income, a.age AS age,
a.verified AS verified, a.emb AS emb, a.opened AS opened, a.seen AS seen ORDER BY id"""
MERCHANTS = "MATCH (m:Merchant) RETURN m.no AS id, m.turnover AS turnover"
PAYMENTS = (
    "MATCH (a:Account)-[p:PAYS]->(m:Merchant) RETURN a.no AS account, m.no AS merchant, p.amount AS amount"
)


pytest.importorskip("arcadedb_embedded", reason="a server for tests: see scripts/test")


@pytest.fixture(scope="module")
def address():
    with bolt(*STATEMENTS) as found:
        yield found


@pytest.fixture(autouse=True)
def password(monkeypatch):
    monkeypatch.setenv("NEO4J_PASSWORD", PASSWORD)


def test_queries_are_described_and_become_a_graph(address, tmp_path):
    tables = [f"account=sql:{ACCOUNTS}", f"merchant=sql:{MERCHANTS}", f"pays=sql:{PAYMENTS}"]
    (tmp_path / "graph.toml").write_text(described(tables, address))
    graph = Description(tmp_path / "graph.toml").graph()
    account, merchant = graph.frame("account"), graph.frame("merchant")
    types = {each.name: each.type for each in graph.schema.node_types["account"].columns}
    assert types == {
        "country": "text", "income": "float", "age": "integer", "verified": "boolean", "emb_0": "float",
        "emb_1": "float", "opened": "timestamp", "seen": "timestamp",
    }  # fmt: skip
    assert graph.node("account").ids.external(np.arange(2)) == ["007", "008"]
    assert account["country"].tolist() == ["DE", "JP"]
    np.testing.assert_array_equal(account[["income", "age", "emb_1"]], [[12.5, 44, -2.0], [np.nan] * 3])
    seen = pd.Timestamp("2024-01-31T11:45:00.000001Z") - pd.Timestamp(0, tz="UTC")
    assert account["seen"][0] == seen.total_seconds()
    assert merchant["turnover"].tolist() == [2.5]
    lists = graph.edge(("account", "pays", "merchant"))
    assert lists.indices.tolist() == [0, 1]


def test_a_password_in_the_address_is_read(address, monkeypatch):
    monkeypatch.delenv("NEO4J_PASSWORD")
    whole = address.replace("root@", f"root:{quote(PASSWORD)}@")
    assert Database(whole).table(MERCHANTS).to_pylist() == [{"id": 1, "turnover": 2.5}]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("MATCH (a:Account) RETURN a", r"sql:MATCH \(a:Account\) RETURN a: <Node .*return properties"),
        ("MATCH (:Account)-[p]->() RETURN p", "return properties"),
        ("MATCH (v:Visit) RETURN v.at AS at", "times in microseconds"),
        ("MATCH (", r"sql:MATCH \(: .*[Ss]yntax"),
    ],
)
def test_what_is_no_row_of_columns_is_refused_with_the_query(address, query, message):
    with pytest.raises(GraphError, match=message):
        Database(address).table(query)


def test_what_cannot_be_reached_or_listed_is_named(address, monkeypatch):
    with pytest.raises(GraphError, match=r"--database bolt://127.0.0.1/shop: pass queries"):
        Database(address).names()
    monkeypatch.setenv("NEO4J_PASSWORD", "wrong")
    with pytest.raises(GraphError, match=r"--database bolt://127.0.0.1/shop: .*[Aa]uth"):
        Database(address)
