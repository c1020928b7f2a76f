"""A change feed of a real PostgreSQL: the live graph has what a rebuild has, and answers as it does."""

import asyncio
import json
from contextlib import closing

import httpx
import numpy as np
import pytest
import torch
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch_geometric.nn import HeteroConv, SAGEConv

import hopline
from hopline.brokers.base import Message
from hopline.brokers.registry import open_source
from hopline.errors import ConfigError, GraphError
from hopline.events.decode import Decoder
from hopline.graph import Graph
from hopline_sql import Description
from hopline_sql.database import Database
from hopline_sql.feed import ChangeFeed, FeedSource
from packages.sql.tests.envelopes import envelope, key
from packages.sql.tests.postgres_server import postgres
from tests.graph.live.keepers import Kept
from tests.servers import running

TABLES = """
create table accounts (id bigint primary key, country text, income numeric(10,2), opened date,
  seen timestamp, active boolean);
create table merchants (id text primary key, turnover double precision);
create table payments (id bigint primary key, account bigint references accounts,
  merchant text references merchants, amount numeric(12,3), at timestamptz not null);
create table follows (who bigint references accounts, whom bigint references accounts,
  weight double precision not null, primary key (who, whom))
"""
KINDS = {
    "accounts": {
        "id": "bigint", "country": "text", "income": "numeric(10,2)", "opened": "date", "seen": "timestamp",
        "active": "boolean",
    },
    "merchants": {"id": "text", "turnover": "double"},
    "payments": {
        "id": "bigint", "account": "bigint", "merchant": "text", "amount": "numeric(12,3)",
        "at": "timestamptz",
    },
    "follows": {"who": "bigint", "whom": "bigint", "weight": "double"},
}  # fmt: skip
KEYS = {"accounts": ["id"], "merchants": ["id"], "payments": ["id"], "follows": ["who", "whom"]}
DESCRIPTION = """
database = "{database}"
[tables.account]
query = "select * from accounts"
key = "id"
deletes = "keep"
[tables.account.columns]
country = {{ type = "text" }}
income = {{ type = "float" }}
opened = {{ type = "timestamp" }}
seen = {{ type = "timestamp" }}
active = {{ type = "boolean" }}
[tables.merchant]
query = "select * from public.merchants"
key = "id"
numbers = true
fill = -1
columns = {{ turnover = {{}} }}
[tables.payments]
query = "select * from payments"
key = "id"
time_unit = "us"
columns = {{ amount = {{ type = "float" }}, at = {{ role = "time" }} }}
[tables.payments.foreign_keys]
account = {{ table = "account", relation = "by", reverse = "made" }}
merchant = {{ table = "merchant", relation = "at", reverse = "sold" }}
[tables.follows]
query = "select * from follows"
foreign_keys = {{ who = {{ table = "account" }}, whom = {{ table = "account" }} }}
columns = {{ weight = {{ role = "weight" }} }}
"""


class Shop:
    """A database that changes, and the messages that Debezium would send."""

    def __init__(self, address, random):
        from adbc_driver_postgresql import dbapi

        self.address, self.random = address, random
        self.connection = dbapi.connect(address)
        self.messages = []
        self.number = {"accounts": 0, "merchants": 0, "payments": 0}
        for statement in TABLES.split(";\n"):
            self.run(statement)
        self.connection.commit()

    def run(self, text):
        with self.connection.cursor() as cursor:
            cursor.execute(text)

    def rows(self, text):
        with self.connection.cursor() as cursor:
            cursor.execute(text)
            return cursor.fetch_arrow_table().to_pylist()

    def ids(self, table):
        return [row["id"] for row in self.rows(f"select id from {table} order by id")]

    def change(self, op, table, statement, where):
        """Make one change in a transaction, and its message."""
        before = None if op == "c" else self.rows(f"select * from {table} where {where}")[0]
        self.run(statement)
        after = None if op == "d" else self.rows(f"select * from {table} where {where}")[0]
        number = int(self.rows("select pg_current_xact_id()::text as x")[0]["x"])
        self.connection.commit()
        named = {name: (after or before)[name] for name in KEYS[table]}
        with_schema = bool(self.random.random() < 0.9) or table in ("accounts", "payments")
        value = envelope(table, KINDS[table], op, before, after, number, with_schema=with_schema)
        self.messages.append((value, key(named)))
        if op == "d":
            self.messages.append((b"", key(named)))  # a tombstone

    def value(self, text, share=0.1):
        return "null" if self.random.random() < share else text

    def account(self):
        random = self.random
        return (
            f"{self.value(repr(str(random.choice(['DE', 'JP', 'ü']))))}, "
            f"{self.value(f'{random.normal() * 1000:.2f}')}, "
            f"{self.value(repr(f'19{random.integers(60, 99)}-02-03'))}, "
            f"{self.value(repr(f'2024-01-01 10:00:00.{random.integers(10**6):06d}'))}, "
            f"{self.value(str(bool(random.integers(2))).lower())}"
        )

    def payment(self):
        random = self.random
        account = self.value(str(random.choice(self.ids("accounts"))))
        merchant = self.value(repr(str(random.choice(self.ids("merchants")))))
        return (
            f"{account}, {merchant}, {self.value(f'{random.normal() * 50:.3f}')}, "
            f"'2024-02-0{random.integers(1, 9)} 12:00:00.{random.integers(10**6):06d}+02'"
        )

    def step(self):
        """A random change."""
        random, number = self.random, self.number
        kind = random.choice(
            ["account", "merchant", "payment", "payment", "follow", "update", "move", "delete"]
        )
        if kind == "account" or number["accounts"] < 2:
            number["accounts"] += 1
            at = number["accounts"]
            self.change(
                "c", "accounts", f"insert into accounts values ({at}, {self.account()})", f"id = {at}"
            )
        elif kind == "merchant" or number["merchants"] < 2:
            number["merchants"] += 1
            at = f"m{number['merchants']}"
            turnover = self.value(f"{random.integers(0, 99)}.5")
            self.change(
                "c", "merchants", f"insert into merchants values ('{at}', {turnover})", f"id = '{at}'"
            )
        elif kind == "payment":
            number["payments"] += 1
            at = number["payments"]
            self.change(
                "c", "payments", f"insert into payments values ({at}, {self.payment()})", f"id = {at}"
            )
        elif kind == "follow":
            one, other = random.choice(self.ids("accounts"), 2)
            where = f"who = {one} and whom = {other}"
            weight = f"{random.integers(1, 99)}"
            if not self.rows(f"select * from follows where {where}"):
                self.change("c", "follows", f"insert into follows values ({one}, {other}, {weight})", where)
            elif random.random() < 0.5:
                self.change("u", "follows", f"update follows set weight = {weight} where {where}", where)
            else:
                self.change("d", "follows", f"delete from follows where {where}", where)
        elif kind == "update":
            at = random.choice(self.ids("accounts"))
            names = "(country, income, opened, seen, active)"
            self.change(
                "u",
                "accounts",
                f"update accounts set {names} = ({self.account()}) where id = {at}",
                f"id = {at}",
            )
        elif payments := self.ids("payments"):
            at = random.choice(payments)
            if kind == "move":
                names = "(account, merchant, amount, at)"
                text = f"update payments set {names} = ({self.payment()}) where id = {at}"
                self.change("u", "payments", text, f"id = {at}")
            else:
                self.change("d", "payments", f"delete from payments where id = {at}", f"id = {at}")


@pytest.fixture(scope="module")
def address():
    with postgres() as found:
        yield found


def content(graph):
    """Nodes with their rows, and edges with their columns, by the caller's ids."""
    found, external = {}, {}
    for name, part in graph.nodes.items():
        listed = part.ids.external(np.arange(part.num_nodes))
        external[name] = [each.item() if hasattr(each, "item") else each for each in listed]
        rows = part.columns.table.to_pylist() if part.columns is not None else part.features.tolist()
        pairs = enumerate(zip(external[name], rows, strict=True))
        found[name] = {node: row for at, (node, row) in pairs if at not in part.ids.removed}
    for name, part in graph.edges.items():
        dst = np.repeat(np.arange(len(part.indptr) - 1), np.diff(part.indptr))
        times = [None] * len(dst) if part.time is None else part.time.tolist()
        weights = [None] * len(dst) if part.weight is None else part.weight.tolist()
        ends = zip(part.indices.tolist(), dst.tolist(), times, weights, strict=True)
        found[name] = sorted(
            (external[part.src][one], external[part.dst][other], time, weight)
            for one, other, time, weight in ends
        )
    return found


def applied(live, schema, feed, messages):
    """Send messages as a stream does: each message's events, decoded."""
    decoder = Decoder(schema)
    payloads = [json.dumps(feed.events(*message)).encode() for message in messages]
    decoded = decoder.decode(payloads)
    assert not decoded.refused, decoded.refused[0]
    live.apply(decoded.changes)


class Net(torch.nn.Module):
    """Two layers over all tables. The order of a maximum does not matter, as that of a sum would.

    A rebuild has other row numbers: the database has another order, and the live graph keeps deleted rows.
    """

    def __init__(self, widths, edge_types):
        super().__init__()
        torch.manual_seed(0)

        def layer(width):
            convs = {e: SAGEConv((width[e[0]], width[e[2]]), 16, aggr="max") for e in edge_types}
            return HeteroConv(convs, aggr="sum")

        self.first, self.second = layer(widths), layer(dict.fromkeys(widths, 16))
        self.head = torch.nn.Linear(16, 1)

    def forward(self, x_dict, edge_index_dict):
        x_dict = {name: rows.relu() for name, rows in self.first(x_dict, edge_index_dict).items()}
        return self.head(self.second(x_dict, edge_index_dict)["account"])


def packaged(graph, folder):
    """A model on the columns of accounts and payments, in a repository."""
    numbers = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())
    codes = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    parts = [("numbers", numbers, ["income", "opened", "seen", "active"]), ("codes", codes, ["country"])]
    fitted = {
        "account": ColumnTransformer(parts).fit(graph.frame("account")),
        "payments": ColumnTransformer([("numbers", numbers, ["amount"])]).fit(graph.frame("payments")),
    }
    widths = {name: each.transform(graph.frame(name)).shape[1] for name, each in fitted.items()}
    edge_types = [(part.src, part.relation, part.dst) for part in graph.edges.values()]
    hopline.package(
        Net({"merchant": 1} | widths, edge_types).eval(), graph, folder, name="risk", fanouts=[-1, -1],
        task="binary", target="account", preprocess=fitted,
    )  # fmt: skip
    return folder


def served(graph, repository, ids, events=(), **settings):
    """The bytes of a server's answers about accounts, after events."""
    paths = {"graph__path": graph.path, "models__repository": repository}
    with running("hopline.service:Service", **paths, **settings) as server:
        for each in events:
            answer = httpx.post(f"{server.url}/v1/graph/events", json=each).json()
            assert answer["refused"] == [], answer
        with hopline.Client(server.url) as client:
            return client.score("risk", ids, outputs=["logits"]).outputs["logits"].tobytes()


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(3))
def test_a_random_series_of_changes_gives_the_graph_and_the_answers_of_a_rebuild(
    address, tmp_path, seed, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shop = Shop(address, np.random.default_rng(seed))
    try:
        (tmp_path / "graph.toml").write_text(DESCRIPTION.format(database=address))
        description = Description(tmp_path / "graph.toml")
        for _ in range(60):
            shop.step()
        with closing(Database(address)) as database:  # the build, while the database goes on changing
            seen = database.table("select pg_current_snapshot()::text as x").column(0)[0].as_py()
            for _ in range(10):
                shop.step()
            early = rebuilt(description, database)
        feed = ChangeFeed(description, after=seen)
        early = early.save(tmp_path / "graph")
        live = Kept(tmp_path / "live", early)
        for _ in range(80):
            shop.step()
        middle = len(shop.messages) - 40
        applied(live, early.schema, feed, shop.messages[:middle])
        applied(live, early.schema, feed, shop.messages[middle:])
        with closing(Database(address)) as database:
            again = rebuilt(description, database).save(tmp_path / "again")
        expected = content(again)
        found = live.view.snapshot()
        assert len(found.nodes["payments"].ids.removed), "payments were deleted"
        assert content(found) == expected
        live.close()
        repository = packaged(again, tmp_path / "models")
        ids = list(expected["account"])
        events = [made for message in shop.messages if (made := feed.events(*message))]
        by_feed = served(
            early, repository, ids, events, live__enabled=True, live__folder=tmp_path / "served",
            live__spare_nodes=500, live__spare_edges=5_000,
        )  # fmt: skip
        assert by_feed == served(again, repository, ids)
        assert len(np.unique(np.frombuffer(by_feed, np.float32))) > 5
    finally:
        shop.connection.rollback()
        for table in ("follows", "payments", "merchants", "accounts"):
            shop.run(f"drop table {table}")
        shop.connection.commit()
        shop.connection.close()


def rebuilt(description, database):
    """The graph of one state of the database."""

    class At(Description):
        def source(self, name, _=""):
            return database.table(self.tables[name].query)

    nodes, edges = At(description.path).files()
    return Graph.from_parquet(nodes, edges)


SHOP = """
[tables.account]
file = "accounts.csv"
key = "id"
columns = { country = { type = "text" }, income = { type = "float" }, opened = { type = "timestamp" } }
[tables.payment]
file = "payments.csv"
key = "id"
time_unit = "ms"
columns = { at = { role = "time", type = "timestamp" } }
foreign_keys = { account = { table = "account", relation = "by" } }
[tables.follows]
file = "follows.csv"
foreign_keys = { who = { table = "account" }, whom = { table = "account" } }
"""
ACCOUNT = {"id": 1, "country": "DE", "income": 1.5, "opened": "2024-01-31"}
PAYMENT = {"id": 5, "account": 1, "at": "2024-01-31T13:45:00.125Z"}


@pytest.fixture
def feed(tmp_path):
    (tmp_path / "graph.toml").write_text(SHOP)
    return ChangeFeed(Description(tmp_path / "graph.toml"))


def message(table, op, before=None, after=None, **more):
    source = {"table": table, "schema": "public", "txId": 7}
    return json.dumps({"op": op, "before": before, "after": after, "source": source, **more}).encode()


def test_rows_become_events(feed):
    assert feed.events(message("account", "r", after=ACCOUNT | {"note": "left out"})) == [
        {
            "op": "add_node",
            "node_type": "account",
            "node": 1,
            "columns": {k: ACCOUNT[k] for k in ACCOUNT if k != "id"},
        }
    ]
    assert feed.events(message("account", "u", None, ACCOUNT))[0]["op"] == "set_features"
    edge = {"edge_type": "payment__by__account", "src": 5, "dst": 1, "time": 1706708700125}
    assert feed.events(message("payment", "c", after=PAYMENT)) == [
        {"op": "add_node", "node_type": "payment", "node": 5}, {"op": "add_edge", **edge},
    ]  # fmt: skip
    moved = PAYMENT | {"account": 2}
    assert feed.events(message("payment", "u", PAYMENT, moved)) == [
        {"op": "remove_edge", **edge}, {"op": "add_edge", **edge, "dst": 2},
    ]  # fmt: skip
    assert feed.events(message("payment", "u", PAYMENT, PAYMENT | {"note": "x"})) == []
    assert feed.events(message("account", "d", ACCOUNT)) == [
        {"op": "remove_node", "node_type": "account", "node": 1}
    ]
    follows = {"who": 1, "whom": 2}
    assert feed.events(message("follows", "d", follows), key(follows)) == [
        {"op": "remove_edge", "edge_type": "account__follows__account", "src": 1, "dst": 2}
    ]


@pytest.mark.parametrize(
    "value",
    [b"", b"null", message("other", "c", after={}), message("account", "m"), b'{"ts_ms": 1}',
     b'{"status": "BEGIN", "id": "7:1", "ts_ms": 1}', b'{"schema": null, "payload": {"ts_ms": 1}}'],
)  # fmt: skip
def test_what_changes_no_row_of_the_graph_is_no_event(feed, value):
    assert feed.events(value) == []


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"{", "not JSON"),
        (json.dumps(ACCOUNT).encode(), "not an envelope of Debezium"),
        (message("account", "t"), "account: op 't' is not c, r, u or d; build the graph again"),
        (message("account", "c", after={"id": 1}), "no column 'country' in the envelope; it has id"),
        (message("account", "c", after=ACCOUNT | {"opened": 19753}), "'opened' is a number without a unit"),
        (message("account", "c", after=ACCOUNT | {"income": "AJY="}), "'income' is a text without its"),
        (message("account", "c", after=ACCOUNT | {"country": {"a": 1}}), "is a structure"),
        (
            message("account", "u", None, ACCOUNT | {"country": "__debezium_unavailable_value"}),
            "'country' did not change .* alter table account replica identity full",
        ),
        (message("payment", "u", None, PAYMENT), "no before; alter table payment replica identity full"),
        (message("payment", "u", {"id": 5, "account": 0, "at": None}, PAYMENT), "before has only the key"),
        (message("payment", "u", PAYMENT | {"id": 4}, PAYMENT), "an update changed the key 'id'"),
        (message("payment", "c", after=PAYMENT | {"at": None}), "'at' is null, and its edges have times"),
        (message("payment", "c", after=PAYMENT | {"at": "2024-01-31T13:45:00.0001Z"}), "than time_unit"),
        (message("payment", "c", after=PAYMENT | {"account": 1.5}), "'account' is 1.5, which is not an id"),
        (message("follows", "d", {"who": 1, "whom": 2}), r"key \(unknown\) is not of its foreign keys"),
    ],
)  # fmt: skip
def test_what_would_not_be_as_in_the_database_is_refused_with_the_remedy(feed, value, why):
    with pytest.raises(GraphError, match=why):
        feed.events(value)


def test_an_edge_that_may_be_one_of_several_is_not_removed(feed):
    row = {"who": 1, "whom": 2, "id": 9}
    with pytest.raises(GraphError, match=r"primary key \(id\) .*one cannot be removed alone"):
        feed.events(message("follows", "d", row), key({"id": 9}))
    assert feed.events(message("follows", "c", after=row), key({"id": 9}))[0]["op"] == "add_edge"


@pytest.mark.parametrize(
    ("schema", "value", "cell"),
    [
        ({"name": "io.debezium.time.Date"}, 19753, "2024-01-31T00:00:00+00:00"),
        ({"name": "org.apache.kafka.connect.data.Date"}, -1, "1969-12-31T00:00:00+00:00"),
        ({"name": "io.debezium.time.Timestamp"}, 1706708700125, "2024-01-31T13:45:00.125000+00:00"),
        ({"name": "io.debezium.time.MicroTimestamp"}, -500_000, "1969-12-31T23:59:59.500000+00:00"),
        (
            {"name": "io.debezium.time.NanoTimestamp"},
            1706708700_000001000,
            "2024-01-31T13:45:00.000001+00:00",
        ),
        ({"name": "io.debezium.time.ZonedTimestamp"}, "2024-01-31T13:45:00.5Z", "2024-01-31T13:45:00.5Z"),
        ({"name": "io.debezium.time.NanoTimestamp"}, 1, "finer than microseconds"),
    ],
)
def test_times_have_the_encoding_of_the_schema(feed, schema, value, cell):
    check(feed, "opened", schema, value, cell)


@pytest.mark.parametrize(
    ("schema", "value", "cell"),
    [
        ({"name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}}, "AJY=", 1.5),
        ({"name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}}, "/2o=", -1.5),
        ({"name": "io.debezium.data.VariableScaleDecimal"}, {"scale": 1, "value": "Dw=="}, 1.5),
        ({"type": "string"}, "1.50", 1.5),
        ({"type": "double"}, 1.5, 1.5),
    ],
)
def test_decimals_have_the_encoding_of_the_schema(feed, schema, value, cell):
    check(feed, "income", schema, value, cell)


def check(feed, name, schema, value, cell):
    fields = [{"field": "id", "type": "int64"}, {"field": "country", "type": "string"}]
    fields += [{"field": each, "type": "string"} for each in ("income", "opened") if each != name]
    fields.append({"field": name, **schema})
    envelope = json.loads(message("account", "c", after=ACCOUNT | {"income": None, name: value}))
    whole = {"schema": {"fields": [{"field": "after", "fields": fields}]}, "payload": envelope}
    text = json.dumps(whole).encode()
    if isinstance(cell, str) and cell.startswith("finer"):
        with pytest.raises(GraphError, match=cell):
            feed.events(text)
    else:
        assert feed.events(text)[0]["columns"][name] == cell


def test_changes_that_the_build_saw_are_left_out(tmp_path):
    (tmp_path / "graph.toml").write_text(SHOP)

    def taken(number, after, op="c"):
        feed = ChangeFeed(Description(tmp_path / "graph.toml"), after)
        value = json.loads(message("account", op, after=ACCOUNT))
        value["source"]["txId"] = number
        return bool(feed.events(json.dumps(value).encode()))

    assert [taken(number, "730:735:731,733") for number in range(729, 737)] == [
        False, False, True, False, True, False, True, True,
    ]  # fmt: skip
    wrapped = 3 * 2**32 + 5
    assert [taken(number, f"{wrapped}:{wrapped}:") for number in (2**32 - 1, 4, 5, 6)] == [
        False,
        False,
        True,
        True,
    ]
    assert not taken(736, "730:735:", "r"), "a snapshot reads what the graph has"
    with pytest.raises(GraphError, match="txId is missing"):
        taken(None, "730:735:")
    with pytest.raises(GraphError, match="not a snapshot of PostgreSQL"):
        taken(1, "yesterday")


def test_a_topic_of_envelopes_is_read_as_events(tmp_path):
    (tmp_path / "graph.toml").write_text(SHOP)
    path = tmp_path / "graph.toml"
    source = open_source(f"debezium+kafka://127.0.0.1:1/shop?group=g&description={path}", "--from")
    assert isinstance(source, FeedSource)

    class Given:
        async def poll(self, *_):
            values = [message("account", "c", after=ACCOUNT), message("account", "t"), b""]
            return [Message(value, "kafka/shop/0", at + 1) for at, value in enumerate(values)]

    source._source = Given()
    first, second, third = asyncio.run(source.poll(10, 1.0))
    assert json.loads(first.payload)[0]["node"] == 1
    assert second.payload == message("account", "t"), "a dead letter is what came"
    assert "op 't' is not c, r, u or d" in second.problem
    assert (third.payload, third.problem, third.position) == (b"[]", "", 3)
    for address, why in (
        ("debezium+kafka://127.0.0.1:1/shop", "--from: a change feed needs description=graph.toml"),
        (f"debezium+kafka://127.0.0.1:1/shop?description={tmp_path / 'none.toml'}", "none.toml"),
        (f"debezium+kafka://127.0.0.1:1/shop?description={path}&after=x", "not a snapshot of PostgreSQL"),
    ):
        with pytest.raises(ConfigError, match=why):
            open_source(address, "--from")


def test_a_feed_needs_the_unit_of_times(tmp_path):
    (tmp_path / "graph.toml").write_text(SHOP.replace('time_unit = "ms"\n', ""))
    with pytest.raises(GraphError, match="payment: a feed needs time_unit"):
        ChangeFeed(Description(tmp_path / "graph.toml"))


def test_a_feed_of_a_table_with_a_history_is_refused(tmp_path):
    columns = 'country = { type = "text" }, opened = { role = "history" }'
    (tmp_path / "graph.toml").write_text(
        f'[tables.account]\nfile = "a.csv"\nkey = "id"\ncolumns = {{ {columns} }}\n'
    )
    with pytest.raises(GraphError, match=r"tables\.account has a history, and a feed does not keep one"):
        ChangeFeed(Description(tmp_path / "graph.toml"))
