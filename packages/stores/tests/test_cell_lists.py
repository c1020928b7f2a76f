"""A list has one meaning: in tables, text files, requests, events of JSON and Arrow, and stores."""

import asyncio
import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from hopline.errors import GraphError
from hopline.events.decode import Decoder
from hopline.features.base import FeatureGroup
from hopline.features.registry import open_store
from hopline.graph import EdgeFile, EdgeTable, Graph, NodeFile, NodeTable
from hopline.graph.list_columns import lists_of, with_places
from hopline.graph.stored_columns import cells_of
from hopline_stores.columns import kinds_of, rows_of
from hopline_stores.dynamodb import _columns
from tests.thorough import thorough

REFUSED = "refused"
CODES = ["a", "b b", "x=1", "é"]
EDGES = {("node", "to", "node"): EdgeTable([[0], [0]], by_row=True)}


def names_of(kind):
    return [*(f"tags={code}" for code in sorted(CODES)), "tags!" if kind == "codes-only" else "tags#"]


def schema_of(kind):
    given = {"tags": f"{kind}={'|'.join(CODES)}", "emb": "vector=2"}
    table = pa.table({"tags": [["a"]], "emb": [[0.5, 1.0]]})
    return Graph.from_tables({"node": NodeTable(columns=table, column_types=given)}, EDGES).schema


SCHEMAS = {kind: schema_of(kind) for kind in ("codes", "codes-only")}


def expected(kind, items):
    """The cells of a list of codes, by what the pages say."""
    if items is None:
        return [None] * (len(CODES) + 1)
    codes = {item.strip() for item in items if item} - {""}
    if kind == "codes-only" and codes - {*CODES}:
        return REFUSED
    return [*(float(code in codes) for code in sorted(CODES)), float(len(codes))]


def cells(row, kind):
    """A row of a request or a store, by the decoder of both."""
    if row is None or isinstance(row, str):
        return REFUSED
    found = []
    for name in names_of(kind):
        values, wrong = cells_of("integer" if name[-1] in "#!" else "boolean", [row[name]])
        assert not wrong
        found.append(None if np.isnan(values[0]) else values[0])
    return found


def of_frame(frame):
    return [None if each != each else float(each) for each in frame.iloc[0].tolist()]


def of_table(kind, items):
    table = pa.table({"tags": pa.array([items], pa.list_(pa.string()))})
    named = {"tags": f"{kind}={'|'.join(CODES)}"}
    try:
        nodes = NodeTable(columns=table, column_types=named)
        return of_frame(Graph.from_tables({"node": nodes}, EDGES).frame("node"))
    except GraphError as error:
        return REFUSED if "'tags' holds" in str(error) else f"no column is named: {error}"


def of_file(folder, kind, text):
    quoted = text.replace('"', '""')
    (folder / "nodes.csv").write_text(f'id,tags\na,"{quoted}"\n', newline="")
    (folder / "edges.csv").write_text("src,dst\na,a\n")
    try:
        nodes = NodeFile(folder / "nodes.csv", id="id", columns=[f"tags:{kind}={'|'.join(CODES)}"])
        return of_frame(Graph.from_parquet(nodes=nodes, edges=EdgeFile(folder / "edges.csv")).frame("node"))
    except GraphError as error:
        return REFUSED if "'tags' holds" in str(error) else f"no column is named: {error}"


def of_request(kind, items):
    try:
        return cells(with_places({"tags": items}, lists_of(names_of(kind))), kind)
    except ValueError as error:
        return REFUSED if str(error).startswith("'tags': ") else f"no column is named: {error}"


def of_events(kind, payload):
    """The cells of one event, or why it is refused."""
    decoded = Decoder(SCHEMAS[kind]).decode([payload])
    if decoded.refused:
        (refusal,) = decoded.refused
        assert "column 'tags'" in refusal.reason or "column 'emb'" in refusal.reason, refusal.reason
        return REFUSED
    (changes,) = decoded.changes.nodes.values()
    names = [column.name for column in SCHEMAS[kind].node_types["node"].columns]
    row = dict(zip(names, changes.cells[0].tolist(), strict=True))
    return [None if row[name] != row[name] else row[name] for name in names_of(kind)]


def of_json(kind, items):
    event = {"op": "set_features", "node": 0, "columns": {"tags": items, "emb": [0.5, 1.0]}}
    return of_events(kind, json.dumps([event]).encode())


def stream(**columns):
    table = pa.table({"op": ["set_features"], "node": [0], **columns})
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as file:
        file.write_table(table)
    return out.getvalue().to_pybytes()


def of_arrow(kind, items, type=None):
    tags = pa.array([items], type or pa.list_(pa.string()))
    return of_events(kind, stream(tags=tags, emb=[[0.5, 1.0]]))


def of_dynamodb(kind, attribute):
    group = group_of(kind)
    (row,) = rows_of(group, [_columns(kinds_of(group), {"key": {"S": "k"}, "tags": attribute})])
    return cells(row, kind)


def group_of(kind):
    types = ["boolean"] * len(CODES) + ["integer"]
    return FeatureGroup.of_columns("nodes", dict(zip(names_of(kind), types, strict=True)))


def of_store(kind, url):
    async def fetched():
        store = open_store(url)
        await store.open()
        try:
            return await store.fetch_columns(group_of(kind), ["n"])
        finally:
            await store.close()

    (row,) = asyncio.run(fetched())
    assert not isinstance(row, str) or "'tags'" in row
    return cells(row, kind)


def of_redis(kind, server, text):
    server.call("DEL", "hopline:nodes:n")
    server.call("HSET", "hopline:nodes:n", "tags", text)
    return of_store(kind, server.url)


def of_parquet(kind, folder, items):
    table = pa.table({"id": ["n"], "tags": pa.array([items], pa.list_(pa.string()))})
    parquet.write_table(table, folder / "nodes.parquet")
    return of_store(kind, f"parquet://{folder}")


def doors(kind, items, folder, server):
    """Door -> the row that it makes of a list."""
    strings = {"L": [{"NULL": True} if item is None else {"S": item} for item in items or ()]}
    found = {
        "table": of_table(kind, items),
        "request": of_request(kind, items),
        "json": of_json(kind, items),
        "arrow": of_arrow(kind, items),
        "large arrow": of_arrow(kind, items, pa.large_list(pa.large_string())),
        "parquet": of_parquet(kind, folder, items),
        "L": of_dynamodb(kind, {"NULL": True} if items is None else strings),
        "text of JSON": of_file(folder, kind, "" if items is None else json.dumps(items)),
        "redis": of_redis(kind, server, "" if items is None else json.dumps(items)),
    }
    plain = [item for item in items or () if item is not None]
    if not any("|" in item or item.lstrip().startswith("[") for item in plain):
        text = "" if items is None else "|".join(plain) or "|"
        found |= {"text": of_file(folder, kind, text), "redis text": of_redis(kind, server, text)}
    if plain == items and 0 < len({*items}) == len(items):
        found["SS"] = of_dynamodb(kind, {"SS": items})
    return found


ITEM = st.none() | st.sampled_from([*CODES, "", " a ", "later", "p|q", "[a]", "null", "1"])


@settings(
    max_examples=thorough(8, 60), deadline=None, phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(items=st.none() | st.lists(ITEM, max_size=5), kind=st.sampled_from([*SCHEMAS]))
@example(items=[], kind="codes-only")
@example(items=["later"], kind="codes-only")
@example(items=["later", "a"], kind="codes")
@example(items=["p|q"], kind="codes-only")
def test_any_list_is_the_same_row_through_every_door_or_refused_by_each(
    items, kind, tmp_path, redis_server
):
    wanted = expected(kind, items)
    found = doors(kind, items, tmp_path, redis_server)
    assert found == dict.fromkeys(found, wanted)


@pytest.mark.parametrize("kind", [*SCHEMAS])
@pytest.mark.parametrize("text", ["['a', 'b']", "[1]", '["a"', "[[]]", '[{"a": 1}]', "[true]"])
def test_a_text_that_begins_as_a_list_of_json_and_is_none_of_strings_is_refused(
    kind, text, tmp_path, redis_server
):
    """Not a code with brackets, as Python's form of a list in a CSV file would be."""
    assert of_file(tmp_path, kind, text) == REFUSED
    assert of_redis(kind, redis_server, text) == REFUSED


WRONG = [
    (pa.array([[1]]), "1 instead of a code, which is a string"),
    (pa.array([["zzz"]]), "'zzz', not one of its codes ['a', 'b b', 'x=1', 'é']"),
]


@pytest.mark.parametrize(("tags", "reason"), WRONG, ids=["numbers", "other code"])
def test_a_wrong_list_of_arrow_is_refused_by_name_beside_others(tags, reason):
    decoder = Decoder(SCHEMAS["codes-only"])
    decoded = decoder.decode([stream(tags=tags, emb=[[0.5, 1.0]])])
    assert [each.reason for each in decoded.refused] == [f"node type 'node': column 'tags': {reason}"]
    # a list and a column of it in one message; a list without the other
    both = decoder.decode([stream(**{"tags": [["a"]], "tags=a": [True], "emb": [[0.5, 1.0]]})])
    assert "tags" in both.refused[0].reason
    lacks = decoder.decode([stream(emb=[[0.5, 1.0]])])
    assert "columns without tags=a" in lacks.refused[0].reason


@pytest.mark.parametrize(
    ("emb", "row"),
    [
        ([0.25, -1.5], [0.25, -1.5]),
        ([0.25, None], [0.25, None]),
        (None, [None, None]),
        ([1.0], REFUSED),
        ([], REFUSED),
        ([1.0, 2.0, 3.0], REFUSED),
    ],
)
def test_a_vector_is_the_same_row_in_events_of_arrow_and_json_and_in_stores(emb, row, redis_server):
    def cells_of_event(payload):
        decoded = Decoder(SCHEMAS["codes"]).decode([payload])
        if decoded.refused:
            assert "column 'emb'" in decoded.refused[0].reason
            return REFUSED
        (changes,) = decoded.changes.nodes.values()
        names = [column.name for column in SCHEMAS["codes"].node_types["node"].columns]
        found = dict(zip(names, changes.cells[0].tolist(), strict=True))
        return [None if each != each else each for each in (found["emb_0"], found["emb_1"])]

    event = {"op": "set_features", "node": 0, "columns": {"tags": [], "emb": emb}}
    assert cells_of_event(json.dumps([event]).encode()) == row
    tags = pa.array([[]], pa.list_(pa.string()))
    for kind in (pa.list_(pa.float64()), pa.list_(pa.float32()), pa.large_list(pa.float64())):
        assert cells_of_event(stream(tags=tags, emb=pa.array([emb], kind))) == row
    group = FeatureGroup.of_columns("nodes", {"emb_0": "float", "emb_1": "float"})
    numbers = {"L": [{"NULL": True} if each is None else {"N": repr(each)} for each in emb or ()]}
    item = {"key": {"S": "k"}, "emb": {"NULL": True} if emb is None else numbers}
    rows = rows_of(group, [_columns(kinds_of(group), item)])
    redis_server.call("HSET", "hopline:nodes:v", "emb", "" if emb is None else json.dumps(emb))

    async def fetched():
        store = open_store(redis_server.url)
        await store.open()
        try:
            return await store.fetch_columns(group, ["v"])
        finally:
            await store.close()

    for each in (*rows, *asyncio.run(fetched())):
        assert (REFUSED if isinstance(each, str) else [each["emb_0"], each["emb_1"]]) == row


def test_a_missing_field_is_null_beside_a_list(redis_server):
    """`absent=null` fills the columns of a list that is missing, and not those of one that is there."""
    redis_server.call("FLUSHALL")
    redis_server.call("HSET", "hopline:nodes:n", "tags", "a")
    url = f"{redis_server.url}{'&' if '?' in redis_server.url else '?'}absent=null"
    assert of_store("codes", url) == expected("codes", ["a"])
    redis_server.call("FLUSHALL")
    redis_server.call("HSET", "hopline:nodes:n", "other", "a", "tags=a", "true")
    assert of_store("codes", url) == [1.0, None, None, None, None]
