"""Text of a cell has one meaning: in text files, hashes of Redis, requests, and tables of training rows."""

import asyncio
import itertools
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hopline.errors import GraphError
from hopline.features.base import FeatureGroup
from hopline.features.registry import open_store
from hopline.graph import EdgeFile, Graph, NodeFile
from hopline.graph.stored_columns import cells_of
from tests.thorough import thorough

REFUSED, MISSING = "refused", None
JANUARY = 1_706_659_200.0  # 2024-01-31, seconds since 1970
#: The table of graphs-from-files.md, and more: type, texts, what they are.
TABLE = [
    ("float", ["1.5", " 1.5 ", "+1.5", "15e-1", "\t1.50\u00a0", "001.5"], 1.5),
    ("float", ["5.", "5", "5e0", "05"], 5.0),
    ("float", [".5"], 0.5),
    ("float", ["9007199254740992"], 2.0**53),
    ("float", ["1e308"], 1e308),
    ("float", ["1e-400", "-0"], 0.0),
    ("float", ["1e400", "-1e400", "1" + 400 * "0", "nan", "NaN", "inf", "-Infinity"], REFUSED),
    ("float", ["9007199254740993", "-09007199254740993", "99999999999999999999"], REFUSED),
    ("float", ["1_000", "1,5", "1,000", "0x10", "1.5f", "true", "- 1", "١", "1e", ".", "NULL"], REFUSED),
    ("integer", ["7", " 7 "], 7),
    ("integer", ["-9007199254740992"], -(2**53)),
    ("integer", ["0", "-0"], 0),
    ("integer", ["7.0", "7.5", "7.", "+7", "007", "1e3", "1_0", "0x10", "true", "٧"], REFUSED),
    ("integer", ["9007199254740993", "9223372036854775808", "99999999999999999999"], REFUSED),
    ("boolean", ["true", "True", "TRUE", " true "], 1),
    ("boolean", ["false", "False", "FALSE"], 0),
    ("boolean", ["1", "0", "yes", "t", "tRUE", "1.0"], REFUSED),
    ("timestamp", ["2024-01-31", "2024-01-31T00:00", "2024-01-31 00", "2024-01-31t00:00z"], JANUARY),
    ("timestamp", ["2024-01-31T02:00+02:00", "2024-01-31T02+02", "2024-01-30T23:00:00-0100"], JANUARY),
    ("timestamp", ["2024-01-31T00:00:00.5", "2024-01-31T00:00:00.500000000000"], JANUARY + 0.5),
    ("timestamp", ["9999-12-31T00:00:00.000000000"], 253_402_214_400.0),
    ("timestamp", ["20240131", "2024-W05-3", "2024-031", "2024-1-3", "31/01/2024", "1706659200"], REFUSED),
    ("timestamp", ["2024-01-31T10:00:00,5", "2024-01-31T10:00:60", "2024-01-31T24:00"], REFUSED),
    ("timestamp", ["2024-02-30", "0000-01-01", "10000-01-01", "2024-01-31T10:00+24:00"], REFUSED),
    ("timestamp", ["2024-01-31T10:00:00.Z", "2024-01-31T10:00 Z", "2024-01-31T10:00:00.1234567"], REFUSED),
    ("timestamp", ["9999-12-31T23:59:59.123457", "2024-01-31T00:00:00.0000001000"], REFUSED),
    ("text", [" DE ", "DE"], "DE"),
    ("text", ["007"], "007"),
    ("text", ["NULL"], "NULL"),
    *(
        (kind, ["", "  ", "\u2003"], MISSING)
        for kind in ("float", "integer", "boolean", "timestamp", "text")
    ),
]
KINDS = ["float", "integer", "boolean", "timestamp", "text"]


def normal(value):
    """NaN and None as `MISSING`."""
    return MISSING if value is None or value != value else value


def of_file(folder, kind, text):
    quoted = text.replace('"', '""')
    (folder / "nodes.csv").write_text(f'id,c\na,"{quoted}"\n', newline="")
    (folder / "edges.csv").write_text("src,dst\na,a\n")
    try:
        nodes = NodeFile(folder / "nodes.csv", id="id", columns=[f"c:{kind}"])
        graph = Graph.from_parquet(nodes=nodes, edges=EdgeFile(folder / "edges.csv"))
    except GraphError as error:
        return REFUSED if "'c'" in str(error) else f"no column is named: {error}"
    return normal(graph.node().columns.values(slice(0, 1))["c"][0])


def of_cells(kind, value):
    """As requests, events and encoded stores decode a value."""
    cells, wrong = cells_of(kind, [value])
    return REFUSED if wrong else normal(cells[0] / 1e6 if kind == "timestamp" else cells[0])


def of_redis(server, kind, texts):
    """The hashes of another writer."""

    async def fetched():
        store = open_store(server.url)
        await store.open()
        group = FeatureGroup.of_columns("cells", {"c": kind})
        rows = await store.fetch_columns(group, list(range(len(texts))))
        await store.close()
        return rows

    server.call("FLUSHALL")
    for at, text in enumerate(texts):
        server.call("HSET", f"hopline:cells:{at}", "c", text)
    rows = asyncio.run(fetched())
    assert all("column 'c': " in row for row in rows if isinstance(row, str))
    return [REFUSED if isinstance(row, str) else of_cells(kind, row["c"]) for row in rows]


def same(one, other):
    return one == other or (one is not None and other is not None and np.array_equal([one], [other]))


@pytest.mark.sample(17)
@pytest.mark.parametrize(("kind", "texts", "value"), TABLE, ids=lambda each: str(each)[:30])
def test_each_text_of_the_table_is_what_it_says_in_files_and_stores(
    kind, texts, value, tmp_path, redis_server
):
    stored = of_redis(redis_server, kind, texts)
    for text, found in zip(texts, stored, strict=True):
        assert same(found, value), text
        assert same(of_file(tmp_path, kind, text), value), text
        if kind in ("text", "timestamp"):
            assert same(of_cells(kind, text), value), text


_NUMBER = st.from_regex(
    r"\A[ ]?[+-]?[0-9]{0,18}([.,][0-9]{0,3})?([eE][+-]?[0-9]{1,3})?[ ]?\Z", fullmatch=True
)
_TIME = st.from_regex(
    r"\A[0-9]{4}-(0[1-9]|1[0-3])-[0-3][0-9]([Tt ][0-2][0-9](:[0-5][0-9](:[0-6][0-9]([.,][0-9]{0,10})?)?)?"
    r"([Zz]|[+-][0-2][0-9](:?[0-6][0-9])?)?)?\Z",
    fullmatch=True,
)
_WORD = st.sampled_from(["true", "TRUE", "tRUE", "False", "nan", "inf", "Infinity", "NULL", "None", "0x1f"])
# A quote after a blank is refused in text files, whose form it is.
_ANY = st.text(st.characters(codec="utf-8", exclude_characters='"'), max_size=12)
_TEXTS = st.lists(st.one_of(_NUMBER, _TIME, _WORD, _ANY), min_size=4, max_size=4)


@settings(
    max_examples=thorough(8, 60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(texts=_TEXTS)
@example(texts=["4503599627370497.5", "1.7976931348623159e308", "179769313486231570e291", "-0.0"])
@example(
    texts=["0001-01-01T00:00+02:00", "9999-12-31T23:59-02:00", "2262-05-01T00:00:00.123456789", "\x1f7"]
)
def test_any_text_is_the_same_through_every_door_or_refused_by_each(texts, tmp_path, redis_server):
    for kind in KINDS:
        for text, stored in zip(texts, of_redis(redis_server, kind, texts), strict=True):
            assert same(of_file(tmp_path, kind, text), stored), (kind, text)
            if kind in ("text", "timestamp"):
                assert same(of_cells(kind, text), stored), (kind, text)
            if kind == "float" and stored not in (REFUSED, MISSING):
                assert math.isfinite(stored)


@pytest.mark.parametrize("kind", ["float", "integer"])
def test_a_cell_reads_the_same_beside_others(kind, tmp_path, redis_server):
    """A column of a file is converted as a whole: its cells do not change one another."""
    texts = [
        text for each, cells, value in TABLE if each == kind and value is not REFUSED for text in cells
    ]
    alone = of_redis(redis_server, kind, texts)
    rows = [*zip(itertools.count(), texts, strict=False)]
    (tmp_path / "nodes.csv").write_text("id,c\n" + "".join(f'{at},"{text}"\n' for at, text in rows))
    (tmp_path / "edges.csv").write_text("src,dst\n0,0\n")
    nodes = NodeFile(tmp_path / "nodes.csv", id="id", columns=[f"c:{kind}"])
    graph = Graph.from_parquet(nodes=nodes, edges=EdgeFile(tmp_path / "edges.csv"))
    assert [*map(normal, graph.node().columns.values(slice(0, len(rows)))["c"])] == alone
