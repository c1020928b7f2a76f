"""Descriptions of graphs: found in files and a real PostgreSQL, edited, built; refusals name the table."""

import io
import json
import re

import duckdb
import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from hopline import cli
from hopline.errors import GraphError
from hopline.events.decode import Decoder
from hopline.graph import EdgeFile, Graph, NodeFile
from hopline_sql import Description
from hopline_sql.describe import described
from hopline_sql.feed import ChangeFeed
from packages.sql.tests.postgres_server import postgres
from packages.sql.tests.test_database import execute

ACCOUNTS = """id,country,income,opened,note,is_fraud
a1,DE,12.5,2024-01-31,,false
a2,,30.25,2023-05-01,,true
a3,JP,,,,false
"""
MERCHANTS = "merchant_id,mcc,turnover\n10,5411,1.5\n20,0742,2.5\n"
PAYMENTS = """id,account_id,merchant,amount,at
1,a1,10,5.0,2024-02-01T10:00:00Z
2,a2,20,7.5,2024-02-01T11:00:00Z
3,a1,,2.0,2024-02-01T12:00:00Z
4,a3,10,,2024-02-01T13:00:00Z
"""
RATINGS = (
    "userId,movieId,rating,timestamp\n1,318,4.5,1147880044\n7,318,3.0,1147868817\n7,19,5.0,1147868828\n"
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in (
        ("accounts", ACCOUNTS), ("merchants", MERCHANTS), ("payments", PAYMENTS), ("ratings", RATINGS)
    ):  # fmt: skip
        (tmp_path / f"{name}.csv").write_text(text)
    return tmp_path


def run(*words):
    return CliRunner().invoke(cli.build_app(words), [str(word) for word in words])


def lines(text, section):
    """The lines of a section without their comments, and the comments."""
    rows = text.split(f"[{section}]\n")[1].split("\n\n")[0].split("\n[")[0].splitlines()
    return [row.partition("  # ")[::2] for row in rows]


def test_keys_foreign_keys_times_labels_and_types_are_found(folder):
    text = described(["account=accounts.csv", "merchant=merchants.csv", "payment=payments.csv"])
    assert lines(text, "tables.account") == [
        ('file = "accounts.csv"', ""),
        ('key = "id"', "3 rows, all distinct: rows are nodes"),
    ]
    assert [each for each, _ in lines(text, "tables.account.columns")] == [
        'country = { type = "text" }',
        'income = { type = "float" }',
        'opened = { type = "timestamp" }',
        'note = { role = "left out" }',
        'is_fraud = { role = "label", type = "boolean" }',
    ]
    comments = dict(lines(text, "tables.account.columns"))
    assert comments['country = { type = "text" }'] == "text, 33.3% missing, 2 distinct"
    assert comments['income = { type = "float" }'] == "float, 33.3% missing, 12.5 to 30.25"
    assert lines(text, "tables.merchant")[1][0] == 'key = "merchant_id"'
    assert lines(text, "tables.merchant.columns")[0][0] == 'mcc = { type = "text" }', "0742 is a code"
    assert lines(text, "tables.payment.foreign_keys") == [
        (
            'account_id = { table = "account", relation = "account", reverse = "rev_account" }',
            "100.0% of its values are in account.id",
        ),
        (
            'merchant = { table = "merchant", relation = "merchant", reverse = "rev_merchant" }',
            "100.0% of its values are in merchant.merchant_id",
        ),
    ]
    assert lines(text, "tables.payment.columns")[1][0] == 'at = { role = "time", type = "timestamp" }'


def test_the_share_of_values_that_are_no_keys_is_said_and_such_rows_are_refused(folder):
    (folder / "payments.csv").write_text(PAYMENTS + "5,a9,10,1,2024-02-02\n")
    text = described(["account=accounts.csv", "payment=payments.csv"])
    found = dict(lines(text, "tables.payment.foreign_keys"))
    comment = found['account_id = { table = "account", relation = "account", reverse = "rev_account" }']
    assert comment == "75.0% of its values are in account.id: rows with others are refused"
    (folder / "graph.toml").write_text(text)
    with pytest.raises(GraphError, match=r"payments\.csv, line 6, column 'account_id' has 'a9'"):
        Description("graph.toml").graph()


def test_a_first_column_of_distinct_ids_is_a_key_whatever_its_name(folder, caplog):
    rows = [f"{at},a{at % 3 + 1},{at}.5,{at % 2}" for at in range(40)]
    for count, is_key in ((40, True), (3, False)):
        (folder / "moves.csv").write_text("\n".join(["tx_id,account_id,amount,chargeback", *rows[:count]]))
        text = described(["account=accounts.csv", "move=moves.csv"])
        assert ('key = "tx_id"' in text) == is_key
        if is_key:
            (folder / "graph.toml").write_text(text)
            graph = Description("graph.toml").graph()
            assert list(graph.frame("move")) == ["amount"]
            assert graph.labels("move")["chargeback"].tolist()[:2] == [0, 1]
    assert "left out" not in caplog.text, "columns of rows that are nodes are no columns of edges"


def test_whole_numbers_with_missing_cells_are_keys_as_pandas_writes_them(folder):
    rows = pd.DataFrame(
        {
            "id": range(1, 5),
            "payee_merchant_id": [10, None, 20, 10],
            "merchant_id": [10, 20, None, 20],
            "referrer_id": [10, 20, 30, None],
            "amount": [10, None, 20, 10],
        }
    )
    for form in ("csv", "parquet"):
        rows.to_csv("payments.csv", index=False) if form == "csv" else rows.to_parquet("payments.parquet")
        text = described(["merchant=merchants.csv", f"payment=payments.{form}"])
        found = dict(lines(text, "tables.payment.foreign_keys"))
        assert list(found.values()) == [
            "100.0% of its values are in merchant.merchant_id",
            "100.0% of its values are in merchant.merchant_id",
            "no table has these ids: the nodes are the values; 66.7% of its values are in "
            "merchant.merchant_id",
        ]
        assert [each for each, _ in lines(text, "tables.payment.columns")] == [
            'amount = { type = "float" }'
        ]
        (folder / "graph.toml").write_text(text)
        graph = Description("graph.toml").graph()
        payees = graph.edge(("payment", "payee_merchant", "merchant"))
        assert np.diff(payees.indptr).tolist() == [2, 1]


def test_columns_that_may_be_keys_or_times_say_so(folder):
    (folder / "payments.csv").write_text(
        "id,account_id,sender,day,at,ts\n"
        "1,a1,a1,2024-02-01,2024-02-01T10:00:00Z,1706781600\n"
        "2,a2,b7,2024-02-02,,1706868000\n"
    )
    text = described(["account=accounts.csv", "payment=payments.csv"])
    comments = {each.split(" ")[0]: why for each, why in lines(text, "tables.payment.columns")}
    assert comments["sender"].endswith("; 50.0% of its values are in account.id")
    assert comments["day"].endswith("; the time of its edges, of 3")
    assert comments["at"].endswith("; day is the time")
    (folder / "payments.csv").write_text("id,at,ts\n1,2024-02-01T10:00:00Z,1706781600\n")
    comments = [why for _, why in lines(described(["payments.csv"]), "tables.payments.columns")]
    assert all(why.endswith('; role = "time" makes it the time of the rows') for why in comments)


def test_columns_that_look_like_numbers_dates_or_missing_cells_say_why_they_are_texts(folder):
    rows = "".join(
        f'{row},{row % 28 + 1:02}/01/2024,"{row},5",{row:05},2024-01-01T0{row % 9}:00{"Z" * (row % 2)},'
        f"{['DE', 'N/A', 'FR', 'NULL'][row % 4]},{'NaN' if row == 7 else row}\n"
        for row in range(40)
    )
    (folder / "people.csv").write_text("id,born,worth,zip,seen,country,visits\n" + rows)
    text = described(["people.csv"])
    found = {each.split(" ")[0]: (each, why) for each, why in lines(text, "tables.people.columns")}
    for name, why in (
        ("born", r"'01/01/2024' is neither an integer nor an ISO 8601 date"),
        (
            "worth",
            r"it holds '0,5' \(40 of 40 .* write numbers without separators and with a decimal point",
        ),
        ("zip", r'rather a name than a category; role = "feature" keeps it$'),
        ("seen", r"line 3, column 'seen': times with and without a zone are mixed"),
        ("country", r'4 distinct; na = \["N/A", "NULL"\] in its table makes such cells missing'),
        ("visits", r"line 9, .* holds 'NaN' .*; write na = \['NaN'\] in its table if it marks a missing"),
    ):
        assert re.search(why, found[name][1]), found[name]
        assert "--" not in found[name][1]
    edited = text.replace('key = "id"', 'key = "id"\nna = ["NaN", "NULL", "N/A"]', 1)
    edited = edited.replace(found["visits"][0], 'visits = { type = "integer" }')
    (folder / "graph.toml").write_text(
        edited
        + '[tables.visit]\nfile = "people.csv"\n'
        + 'foreign_keys = { id = { table = "people" }, zip = { table = "zip" } }'
    )
    columns = Description("graph.toml").graph().node("people").columns.table
    assert columns.column("visits").null_count == 1
    assert columns.column("country").null_count == 20


def test_a_table_without_a_key_is_edges_and_a_name_without_a_table_is_the_values(folder):
    text = described(["rates=ratings.csv"])
    assert 'relation = "rates"' in text
    assert 'time_unit = "s"' in text
    assert "numbers = true" in text
    (folder / "graph.toml").write_text(text)
    graph = Description("graph.toml").graph()
    rates = graph.edge(("user", "rates", "movie"))
    assert graph.node("user").ids.external(np.arange(2)).tolist() == [1, 7]
    assert rates.attr[:, 0].tolist() == [5.0, 3.0, 4.5]
    assert rates.time.tolist() == [1147868828, 1147868817, 1147880044]
    assert graph.edge(("movie", "rev_rates", "user")).num_edges == 3


def test_edges_with_texts_keep_their_columns(folder):
    (folder / "ratings.csv").write_text("userId,movieId,device\n1,318,tv\n7,318,\n7,19,tv\n")
    text = described(["rates=ratings.csv"])
    assert "numbers = true" not in text
    (folder / "graph.toml").write_text(text)
    graph = Description("graph.toml").graph()
    assert sorted(map(str, graph.frame(("user", "rates", "movie"))["device"])) == ["nan", "tv", "tv"]


def test_one_command_describes_and_one_builds(folder):
    words = ("account=accounts.csv", "merchant=merchants.csv", "payment=payments.csv", "pays=payments.csv")
    assert run("graph", "describe", *words[:3], "--out", "graph.toml").exit_code == 0
    again = run("graph", "describe", *words, "--out", "graph.toml")
    assert isinstance(again.exception, FileExistsError), "an edited file stays"
    assert run("graph", "describe", *words[:1]).stdout.startswith("# The tables of a graph")
    done = run("graph", "build", "graph.toml", "--out", "graph")
    assert done.exit_code == 0, done.output
    graph = Graph.open("graph")
    accounts = graph.edge(("payment", "account", "account"))
    assert graph.schema.time_unit == "s"
    assert np.diff(accounts.indptr).tolist() == [2, 1, 1]
    assert graph.edge(("payment", "merchant", "merchant")).num_edges == 3, "payment 3 has no merchant"
    assert {each.name for each in graph.schema.node_types["account"].columns} == {
        "country",
        "income",
        "opened",
    }
    assert graph.labels("account")["is_fraud"].tolist() == [0, 1, 0]
    assert graph.labels("payment")["at"].tolist()[0] == 1706781600.0
    with pytest.raises(GraphError, match="'merchant' has no labels"):
        graph.labels("merchant")
    known = json.loads(run("graph", "info", "graph", "--json").stdout)["node_types"]["account"]["columns"]
    assert {each["name"]: (each.get("role"), each["type"]) for each in known} == {
        "country": (None, "text"), "income": (None, "float"), "opened": (None, "timestamp"),
        "is_fraud": ("label", "boolean"),
    }  # fmt: skip
    assert run("graph", "info", "graph").exit_code == 0
    more = run("graph", "build", "graph.toml", "--out", "other", "--undirected", "--na", "x")
    assert "--undirected, --na: a description says this itself" in str(more.exception)


def test_labels_are_not_in_the_version_and_stay_with_a_saved_graph(folder):
    text = described(["account=accounts.csv", "payment=payments.csv"])
    (folder / "graph.toml").write_text(text)
    with_labels = Description("graph.toml").graph().save("one")
    (folder / "graph.toml").write_text(text.replace('role = "label"', 'role = "left out"'))
    without = Description("graph.toml").graph().save("two")
    assert with_labels.version == without.version
    assert Graph.open("one").compressed().labels("account").shape == (3, 1)
    with pytest.raises(GraphError, match="no labels"):
        without.labels("account")


def test_features_as_numbers_and_missing_values(folder):
    (folder / "graph.toml").write_text(
        """
        [tables.account]
        file = "accounts.csv"
        key = "id"
        numbers = true
        fill = 0.5
        columns = { income = {} }
        [tables.payment]
        file = "payments.csv"
        key = "id"
        foreign_keys = { account_id = { table = "account" } }
        """
    )
    graph = Description("graph.toml").graph(feature_dtype="float16")
    assert graph.nodes["account"].features[:, 0].tolist() == [12.5, 30.25, 0.5]
    assert graph.schema.node_types["account"].feature_dtype == "float16"
    assert "payment__account_id__account" in graph.edges


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('key = "id"', 'kye = "id"', r"tables.account: .*unknown field `kye`"),
        ('file = "accounts.csv"', "", "tables.account: give it one source"),
        ('role = "label"', 'role = "target"', r"tables.account: Invalid enum value 'target'"),
        ('key = "id"  # 4', "# 4", r"tables.payment: .*'at'|no key and 1 foreign keys"),
        ('table = "account"', 'table = "accounts"', "accounts"),
        ("[tables.account]", "directions = 1\n[tables.account]", "unknown field `directions`"),
        ("[tables.account]", "[tables.account", "graph.toml: "),
        ("income = ", "salary = ", "no column 'salary'"),
        ("is_fraud = ", "fraud = ", "no column 'fraud'; there are id, country"),
    ],
)
def test_a_wrong_description_is_refused_by_table(folder, old, new, message):
    text = described(["account=accounts.csv", "payment=payments.csv"])
    assert old in text
    (folder / "graph.toml").write_text(text.replace(old, new, 1))
    with pytest.raises(GraphError, match=message):
        Description("graph.toml").graph()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            'key = "id"\ncolumns = { amount = { role = "weight" } }',
            "'amount' is a weight or an id: only rows without",
        ),
        (
            'foreign_keys = { account_id = { table = "a" }, merchant = { table = "b" } }\n'
            'columns = { is_fraud = { role = "label" } }',
            "'is_fraud' is a label: rows without a key",
        ),
        (
            'key = "id"\nforeign_keys = { at = { table = "a" } }\ncolumns = { at = {} }',
            "'at' is a foreign key, which has no role",
        ),
        (
            'key = "id"\ncolumns = { at = { role = "time" }, amount = { role = "time" } }',
            "one column is the time",
        ),
        (
            'key = "id"\nforeign_keys = { a = { table = "x", relation = "r" }, '
            'b = { table = "x", relation = "r" } }',
            "two foreign keys make edges of one type",
        ),
        (
            'foreign_keys = { account_id = { table = "a", reverse = "x" }, merchant = { table = "b" } }',
            "rows without a key have one relation",
        ),
    ],
)
def test_what_a_table_cannot_be_is_refused(folder, table, message):
    (folder / "graph.toml").write_text(f'[tables.payment]\nfile = "payments.csv"\n{table}\n')
    with pytest.raises(GraphError, match=f"tables.payment: .*{message}"):
        Description("graph.toml")


def test_what_a_graph_cannot_be_built_of_is_said_with_the_files_name(folder):
    (folder / "shops.csv").write_text("shop,name\n0012,a\n0013,b\n")
    (folder / "visits.csv").write_text("id,shop,note\n1,,x\n2,12,y\n")
    text = described(["shop=shops.csv", "visit=visits.csv"])
    assert "[tables.visit.foreign_keys]" not in text, "12 is not 0012"
    text = """
        tables.shop = { file = "shops.csv", key = "shop" }
        tables.visit = { file = "visits.csv", key = "id", foreign_keys = { shop = { table = "shop" } } }
    """
    (folder / "graph.toml").write_text(text)
    with pytest.raises(GraphError, match=r"; visits.csv, line 3, column 'shop' has '12'$"):
        Description("graph.toml").graph()
    (folder / "graph.toml").write_text('tables.shop = { file = "shops.csv", key = "shop" }')
    with pytest.raises(
        GraphError, match=r"shops.csv: no edge file uses its node type, 'shop'; there are no edges"
    ):
        Description("graph.toml").graph()
    (folder / "visits.csv").write_text("id,shop,ts\n1,0012,1704067200\n2,0013,1704067300\n")
    wrong = text.replace(
        "foreign_keys", 'columns = { ts = { role = "time", type = "timestamp" } }, foreign_keys'
    )
    (folder / "graph.toml").write_text(wrong)
    with pytest.raises(
        GraphError, match=r"'ts' holds integers, not dates: its type is integer; .*time_unit"
    ):
        Description("graph.toml").graph()
    (folder / "graph.toml").write_text(wrong.replace("timestamp", "integer"))
    assert Description("graph.toml").graph().labels("visit")["ts"].tolist() == [1704067200, 1704067300]


VECTORS = """
create table items (id text primary key, price double precision not null, emb real[], tags text[]);
create table buys (item text references items, to_item text references items);
insert into items values ('a', 1.5, '{0.5,1,-2}', '{x,b,new shop}'), ('b', 2, null, null),
  ('c', 3, '{0.25,0,7}', '{b}');
insert into buys values ('a', 'b'), ('b', 'c')
"""


def test_lists_of_postgres_are_columns_in_a_graph_and_lists_in_its_feed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with postgres() as database:
        execute(database, VECTORS)
        (tmp_path / "graph.toml").write_text(described((), database))
        text = (tmp_path / "graph.toml").read_text()
        found = dict(lines(text, "tables.items.columns"))
        assert found['emb = { type = "vector", size = 3 }'] == "a vector of 3 numbers, 33.3% missing"
        codes = 'tags = { type = "codes", values = ["b", "new shop", "x"] }'
        assert found[codes] == "lists of 3 codes, 33.3% missing"
        text = text.replace('key = "id"', 'key = "id"\ndeletes = "keep"')
        (tmp_path / "graph.toml").write_text(text)
        description = Description(tmp_path / "graph.toml")
        graph = description.graph()
    frame = graph.frame("items")
    tags = ["tags=b", "tags=new shop", "tags=x", "tags#"]
    assert list(frame) == ["price", "emb_0", "emb_1", "emb_2", *tags]
    np.testing.assert_array_equal(frame[tags], [[1, 1, 1, 3], [np.nan] * 4, [1, 0, 0, 1]])
    np.testing.assert_array_equal(frame[["emb_0", "emb_2"]], [[0.5, -2], [np.nan] * 2, [0.25, 7]])
    after = {"id": "d", "price": 4.5, "emb": [1.5, 2.0, 3.0], "tags": ["x", "later"]}
    source = {"table": "items", "schema": "public", "txId": 7}
    (event,) = ChangeFeed(description).events(
        json.dumps({"op": "c", "before": None, "after": after, "source": source}).encode()
    )
    decoded = Decoder(graph.schema).decode([json.dumps([event]).encode()])
    del after["id"]
    assert (event["columns"], decoded.refused) == (after, [])
    assert decoded.changes.nodes["items"].cells[0].tolist() == [4.5, 1.5, 2, 3, 0, 0, 1, 2]


LISTED = """[tables.item]
file = "items.csv"
key = "id"
[tables.item.foreign_keys]
next = { table = "item" }
[tables.item.columns]
tags = { %s }
"""


def test_codes_of_texts_have_the_values_of_the_description_in_files_and_feeds(folder):
    rows = "id,next,tags\na,b,x|y\nb,a,\nc,,z| y|\nd,,|\n"
    (folder / "items.csv").write_text(rows)
    (folder / "graph.toml").write_text(LISTED % 'type = "codes", values = ["y", "w", " x"]')
    description = Description("graph.toml")
    graph = description.graph()
    frame = graph.frame("item")
    assert list(frame) == ["tags=w", "tags=x", "tags=y", "tags#"]
    expected = [[0, 1, 1, 2], [np.nan] * 4, [0, 0, 1, 2], [0, 0, 0, 0]]
    np.testing.assert_array_equal(frame.to_numpy(float), expected)
    source = {"table": "item", "schema": "public", "txId": 7}
    texts = [row.split(",") for row in rows.splitlines()[1:]]
    afters = [{"id": id, "next": None, "tags": tags} for id, _, tags in texts]
    envelopes = [{"op": "c", "before": None, "after": each, "source": source} for each in afters]
    feed = ChangeFeed(description)
    events = [feed.events(json.dumps(each).encode())[0] for each in envelopes]
    decoded = Decoder(graph.schema).decode([json.dumps(events).encode()])
    assert decoded.refused == []
    np.testing.assert_array_equal(decoded.changes.nodes["item"].cells, expected)


@pytest.mark.parametrize(
    ("column", "says"),
    [
        ('type = "codes", size = 3', "'tags': size is of columns with type = \"vector\""),
        ('type = "text", values = ["a"]', "'tags': values are of columns with type = \"codes\""),
        ('type = "codes", values = ["a|b"]', "'tags': 'a|b' among its values"),
        ('type = "codes", values = [" "]', "'tags': ' ' among its values"),
        ('type = "codes", role = "label"', "'tags': a list is a feature, not the label"),
        ('type = "vector", size = -3', "int` >= 0"),
        ('type = "vector", size = 2', "column 'tags' holds string instead of lists of numbers"),
        ('type = "vector", numbers = 2', "unknown field `numbers`"),
    ],
)
def test_what_a_list_cannot_be_is_refused_by_name(folder, column, says):
    (folder / "items.csv").write_text("id,next,tags\na,b,x|y\nb,a,\n")
    (folder / "graph.toml").write_text(LISTED % column)
    with pytest.raises(GraphError, match=re.escape(says)):
        Description("graph.toml").graph()


def test_lists_that_are_labels_or_of_too_many_codes_are_left_out(folder):
    frame = pd.DataFrame(
        {
            "id": range(400),
            "labels": [["x"]] * 400,
            "words": [[f"w{at}"] for at in range(400)],
            "some": [[f"w{at % 150}"] for at in range(400)],
        }
    )
    frame.to_parquet("items.parquet")
    found = dict(lines(described(["item=items.parquet"]), "tables.item.columns"))
    assert found['labels = { role = "left out" }'] == "lists of 1 codes, 0.0% missing; a label by its name"
    words = found['words = { role = "left out" }']
    assert words == (
        "lists of 400 distinct codes: name those that are columns (codes=a|b), at most 256 otherwise; or "
        "leave it out"
    )
    assert found['some = { type = "codes" }'] == "lists of 150 codes, 0.0% missing"


def test_lists_in_texts_are_codes_where_they_are_json_and_left_out_with_the_reason_elsewhere(folder):
    frame = pd.DataFrame(
        {
            "id": ["a", "b", "c"],
            "tags": ['["food", "games"]', None, "[]"],
            "python": ["['food', 'games']", None, "[]"],
            "kinds": ["food|games", "food", None],
            "mixed": ["[food]", "food", "x"],
        }
    )
    frame.to_csv("items.csv", index=False)
    text = described(["item=items.csv"])
    found = dict(lines(text, "tables.item.columns"))
    codes = 'tags = { type = "codes", values = ["food", "games"] }'
    assert found[codes] == "lists of 2 codes, 33.3% missing"
    assert found['python = { role = "left out" }'] == (
        """"['food', 'games']" is no list: write JSON (["a", "b"]) or codes (a|b)"""
    )
    assert found['kinds = { type = "text" }'].endswith('; type = "codes" if | separates codes')
    assert found['mixed = { type = "text" }'] == "text, 0.0% missing, 3 distinct"
    text += "[tables.item.foreign_keys]\nnext = { table = 'item' }\n"
    frame.assign(next=["b", "c", "a"]).to_csv("items.csv", index=False)
    (folder / "graph.toml").write_text(text)
    built = Description("graph.toml").graph().frame("item")
    expected = [[1, 1, 2], [np.nan] * 3, [0, 0, 0]]
    np.testing.assert_array_equal(built[["tags=food", "tags=games", "tags#"]], expected)


def test_codes_that_a_description_does_not_have_are_refused_in_files_and_feeds(folder):
    column = 'type = "codes-only", values = ["food", "games"]'
    (folder / "graph.toml").write_text(LISTED % column)
    (folder / "items.csv").write_text('id,next,tags\na,b,food|games\nb,a,"[""food""]"\n')
    description = Description("graph.toml")
    graph = description.graph()
    assert list(graph.frame("item")) == ["tags=food", "tags=games", "tags!"]
    feed, source = ChangeFeed(description), {"table": "item", "schema": "public", "txId": 7}
    decoder = Decoder(graph.schema)
    for tags, refused in (("food", []), ('["games"]', []), ("food|later", ["'later'"])):
        after = {"id": "c", "next": None, "tags": tags}
        change = {"op": "c", "before": None, "after": after, "source": source}
        events = [*feed.events(json.dumps(change).encode())]
        decoded = decoder.decode([json.dumps(events).encode()])
        why = "node type 'item': column 'tags': %s, not one of its codes ['food', 'games']"
        assert [each.reason for each in decoded.refused] == [why % one for one in refused]
    (folder / "items.csv").write_text("id,next,tags\na,b,food|later\nb,a,\n")
    with pytest.raises(GraphError, match="column 'tags' holds 'later', not one of its codes"):
        description.graph()


def test_tables_and_queries_of_postgres(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tables = """
    create table accounts (id bigint primary key, country text, income numeric(10, 2), is_fraud boolean);
    create table payments (id bigint primary key, account_id bigint references accounts, at timestamptz);
    insert into accounts values (1, 'DE', 1.5, false), (2, null, null, true), (7, 'JP', 3, null);
    insert into payments values (1, 1, '2024-01-01'), (2, 7, '2024-01-02'), (3, null, '2024-01-03')
    """
    with postgres() as database:
        execute(database, tables)
        done = run(
            "graph", "describe", "--database", database, "accounts",
            "payments=sql:select * from payments where id < 9", "--out", "graph.toml",
        )  # fmt: skip
        assert done.exit_code == 0, done.output
        text = (tmp_path / "graph.toml").read_text()
        assert 'query = "select * from accounts"' in text
        assert 'account_id = { table = "accounts", relation = "account", reverse = "rev_account" }' in text
        graph = Description("graph.toml").graph()
        assert 'time_unit = "us"' in text
        built = run("graph", "build", "graph.toml", "--out", "graph")
        assert built.exit_code == 0
        assert re.search(r"note: the database was read at (\d+:\d+:\S*): .* after=\1", built.output)
    assert graph.version == Graph.open("graph").version
    assert graph.edge(("payments", "account", "accounts")).num_edges == 2
    assert graph.labels("accounts")["is_fraud"].isna().tolist() == [False, False, True]


def test_without_names_all_tables_of_a_database_are_described(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tables = """
    create table accounts (id bigint primary key, country text);
    create table "order" (id bigint primary key, account_id bigint, "Betrag €" double precision);
    insert into accounts values (1, 'DE'), (2, null);
    insert into "order" values (1, 1, 1.5), (2, 1, 2.5)
    """
    (tmp_path / "made").mkdir()
    with duckdb.connect("shop.duckdb") as connection:
        connection.execute(tables)
    with postgres() as database:
        execute(database, tables)
        for address, seen in ((database, database), ("shop.duckdb", "../shop.duckdb")):
            path = tmp_path / "made" / f"{len(seen)}.toml"
            done = run("graph", "describe", "--database", address, "--out", path)
            assert done.exit_code == 0, done.output
            text = path.read_text()
            assert f'database = "{seen}"' in text
            assert """query = 'select * from "order"'""" in text
            graph = Description(path).graph()
            assert {*graph.nodes} == {"accounts", "order"}
            assert graph.edge(("order", "account", "accounts")).num_edges == 2
            assert list(graph.frame("order")) == ["Betrag €"]
    assert "no tables in its current schema" in str(
        run("graph", "describe", "--database", empty()).exception
    )
    assert "pass tables" in str(run("graph", "describe").exception)


def empty():
    duckdb.connect("empty.duckdb").close()
    return "empty.duckdb"


def as_frame(library, table):
    """The same table as each library has it."""
    if library == "polars":
        return polars.from_pandas(table)
    arrow = pa.Table.from_pandas(table, preserve_index=False)
    return {"pandas": table, "arrow": arrow, "duckdb": duckdb.from_arrow(arrow)}[library]


@pytest.mark.parametrize("library", ["pandas", "polars", "arrow", "duckdb"])
def test_frames_of_all_libraries_give_the_graph_of_the_file(folder, library):
    frame = pd.read_csv(io.StringIO(ACCOUNTS), parse_dates=["opened"]).drop(columns=["note", "is_fraud"])
    ends = pd.DataFrame({"src": ["a1", "a3"], "dst": ["a2", "a1"]})
    names = ["country", "income", "opened"]
    wanted = Graph.from_parquet(NodeFile("accounts.csv", "id", columns=names), EdgeFile(ends))
    nodes = NodeFile(as_frame(library, frame), "id", columns=["*"])
    found = Graph.from_parquet(nodes, EdgeFile(as_frame(library, ends)))
    assert found.schema == wanted.schema
    assert found.node().columns.table.to_pydict() == wanted.node().columns.table.to_pydict()
    assert found.edge().indices.tolist() == wanted.edge().indices.tolist()
    assert found.version == wanted.version, "a version does not depend on the bytes of missing cells"


def test_a_column_of_edges_is_their_id(folder):
    (folder / "paid.csv").write_text("pid,a,b,amount\n07,x,y,1\n8,y,x,2\n")
    text = """
        [tables.paid]
        file = "paid.csv"
        reverse = "paid_by"
        columns = { pid = { role = "id" }, amount = { type = "float" } }
        foreign_keys = { a = { table = "user" }, b = { table = "user" } }
        """
    (folder / "graph.toml").write_text(text)
    graph = Description("graph.toml").graph()
    assert graph.edges["user__paid__user"].located(["07", "8", 8, "9"])[0].tolist() == [1, 0, 0, -1]
    assert graph.edges["user__paid_by__user"].ids is None
    for old, new, message in (
        ("amount = {", 'amount = { role = "id",', "one the weight, one the id, and one the history"),
        (
            "reverse =",
            "numbers = true\n        reverse =",
            "'pid' is an id, and edges with ids have",
        ),
    ):
        (folder / "graph.toml").write_text(text.replace(old, new))
        with pytest.raises(GraphError, match=message):
            Description("graph.toml").graph()
