"""Queries as tables of graphs: types of a real PostgreSQL, one state for all queries, named refusals."""

import math
from contextlib import closing

import duckdb
import numpy as np
import pytest
from typer.testing import CliRunner

from hopline import cli
from hopline.errors import GraphError
from hopline.graph import EdgeFile, Graph, NodeFile
from hopline_sql import Database
from packages.sql.tests.postgres_server import postgres

TABLES = """
create type grade as enum ('low', 'high');
create table accounts (
    id bigint primary key, amount numeric(12, 2), country text, branch varchar(8), visits int,
    active boolean, opened timestamptz, born date, grade grade, is_fraud boolean, key uuid, seen timestamp);
insert into accounts values
    (1, 1.50, 'DE', '007', 3, true, '2024-01-31 13:45:00+00', '1990-02-01', 'low', false,
     '00000000-0000-0000-0000-000000000001', '2024-01-31 13:45:00'),
    (2, null, null, '010', null, null, null, null, null, true, null, null),
    (3, 30000000.25, 'JP', '007', 5, false, '1969-12-31 23:59:59.5+00', '1960-01-01', 'high', false, null,
     null);
create table payments (src bigint references accounts, dst bigint references accounts, amount real);
insert into payments values (1, 2, 0.5), (2, 3, 1.5), (3, 1, 2.5)
"""
ACCOUNTS = "id, amount, country, branch, visits, active, opened, born, grade, key"


@pytest.fixture(scope="module")
def database():
    with postgres() as address:
        execute(address, TABLES)
        yield address


def execute(address, text):
    from adbc_driver_postgresql import dbapi

    with dbapi.connect(address) as connection, connection.cursor() as cursor:
        for statement in text.split(";\n"):
            cursor.execute(statement)
        connection.commit()


def built(database, select=f"select {ACCOUNTS} from accounts order by id", **options):
    nodes = NodeFile(database.table(select), "id", columns=["*"], **options)
    return Graph.from_parquet(nodes, EdgeFile(database.table("select * from payments"), attr=["amount"]))


def test_columns_of_postgres_keep_their_types_and_nulls(database):
    with closing(Database(database)) as opened:
        graph = built(opened)
    assert {column.name: column.type for column in graph.schema.node_types["node"].columns} == {
        "amount": "float", "country": "text", "branch": "text", "visits": "integer", "active": "boolean",
        "opened": "timestamp", "born": "timestamp", "grade": "text", "key": "text",
    }  # fmt: skip
    table = graph.node().columns.table
    assert table.column("amount").to_pylist() == [1.5, None, 30000000.25]
    assert table.column("country").to_pylist() == ["DE", None, "JP"]
    assert table.column("branch").to_pylist() == ["007", "010", "007"]
    assert table.column("grade").to_pylist() == ["low", None, "high"]
    assert table.column("key").to_pylist() == ["00000000-0000-0000-0000-000000000001", None, None]
    assert table.column("active").to_pylist() == [True, None, False]
    values = graph.node().columns.values(slice(0, 3))
    assert values["opened"][[0, 2]].tolist() == [1706708700.0, -0.5]
    assert math.isnan(values["born"][1])
    assert graph.edge().attr[:, 0].tolist() == [2.5, 0.5, 1.5]


def test_ids_may_be_uuids(database):
    with closing(Database(database)) as opened:
        rows = opened.table("select md5(id::text)::uuid as id, visits from accounts order by accounts.id")
        edges = opened.table(
            "select md5(src::text)::uuid as src, md5(dst::text)::uuid as dst from payments"
        )
        graph = Graph.from_parquet(NodeFile(rows, "id", columns=["visits"]), EdgeFile(edges))
    assert graph.node().ids.external(np.arange(1)) == ["c4ca4238-a0b9-2382-0dcc-509a6f75849b"]
    assert graph.num_edges == 3


def test_all_queries_see_one_state(database):
    with closing(Database(database)) as opened:
        before = opened.table("select count(*) as n from accounts").column("n").to_pylist()
        execute(database, "insert into accounts (id, is_fraud) values (99, false)")
        try:
            assert (
                opened.table("select count(*) as n from accounts").column("n").to_pylist() == before == [3]
            )
        finally:
            execute(database, "delete from accounts where id = 99")


def test_a_query_changes_nothing(database):
    with closing(Database(database)) as opened, pytest.raises(GraphError, match=r"sql:delete.*read-only"):
        opened.table("delete from payments")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select * from nothing", r"sql:select \* from nothing: .*\"nothing\" does not exist"),
        ("select * from accounts", r"sql:select \* from accounts: is_fraud: by name what a model predicts"),
        *[
            (f"select '{sign}infinity'::{kind} as at, 1 as id", "column 'at' has an infinite time")
            for sign in ("", "-")
            for kind in ("date", "timestamp", "timestamptz")
        ],
        ("select 12::money as price, 1 as id", "column 'price' is money; write price::numeric"),
        ("select array[1, 2] as codes, 1 as id", "column 'codes' holds list"),
        ("select interval '1 day' as wait, 1 as id", "column 'wait' holds"),
        ("select 1 as other", "no column 'id'; there are 'other'"),
    ],
)
def test_a_query_that_gives_no_columns_is_named_with_what_is_wrong(database, query, message):
    with closing(Database(database)) as opened, pytest.raises(GraphError, match=message):
        built(opened, query)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("postgres://nobody:secret@127.0.0.1:1/shop", r"--database postgres://127.0.0.1/shop: .*refused"),
        ("bolt://nobody:secret@127.0.0.1:1/shop", r"(?s)--database bolt://127.0.0.1/shop: .*refused"),
        ("mysql://host/shop", "must be postgres://user@host/name, bolt://user@host or a DuckDB file"),
        ("shop.csv", "must be postgres://user@host/name, bolt://user@host or a DuckDB file"),
        ("/no/such/folder/shop.duckdb", "--database /no/such/folder/shop.duckdb: "),
    ],
)
def test_a_database_that_cannot_be_read_is_named_without_its_password(address, message):
    with pytest.raises(GraphError, match=message) as error:
        Database(address)
    assert "secret" not in str(error.value)


def test_a_duckdb_file_and_files_are_read(tmp_path):
    path = tmp_path / "shop.duckdb"
    with duckdb.connect(str(path)) as connection:
        rows = "select range as id, range % 3 as code, 1.5::decimal(9,2) as a from range(5)"
        connection.execute(f"create table accounts as {rows}")
        connection.execute(f"copy accounts to '{tmp_path}/accounts.parquet'")
    for address, source in ((str(path), "accounts"), ("", f"'{tmp_path}/accounts.parquet'")):
        with closing(Database(address)) as opened:
            rows = opened.table(f"select * from {source} where id > 1")
        assert rows.column("id").to_pylist() == [2, 3, 4]
        graph = Graph.from_parquet(
            NodeFile(rows, "id", columns=["*"]), EdgeFile(duckdb.sql("select 2 as src, 4 as dst"))
        )
        assert graph.node().columns.table.column("a").to_pylist() == [1.5] * 3


def run(*words):
    return CliRunner().invoke(cli.build_app(words), [str(word) for word in words])


def test_the_command_takes_queries_beside_files(database, tmp_path):
    (tmp_path / "likes.csv").write_text("src,dst\n1,3\n")
    done = run(
        "graph", "build", "--database", database, "node:pays:node=sql:select * from payments",
        f"node:likes:node={tmp_path / 'likes.csv'}",
        "--features", f"node=sql:select {ACCOUNTS} from accounts where amount is null or amount > 0",
        "--id", "id", "--column", "*", "--column", "visits:float", "--out", tmp_path / "graph",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    graph = Graph.open(tmp_path / "graph")
    assert graph.nodes["node"].ids.external(np.arange(3)).tolist() == [1, 2, 3]
    assert graph.edges["node__likes__node"].num_edges == 1
    types = {column.name: column.type for column in graph.schema.node_types["node"].columns}
    assert types["visits"] == "float"


def test_a_query_alone_is_of_the_only_type(tmp_path):
    words = ("graph", "build", "sql:select 1 as src, 2 as dst where 1=1", "--out", tmp_path / "graph")
    done = run(*words)
    assert done.exit_code == 0, done.output
    assert Graph.open(tmp_path / "graph").num_edges == 1
