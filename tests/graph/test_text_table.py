"""Text files in the dialects that people have: read as they were meant, or refused by place."""

import bz2
import csv
import gzip
import io
import lzma

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hopline.errors import BadRequest, GraphError
from hopline.graph import EdgeFile, Graph, NodeFile
from hopline.graph.cells import Missing
from hopline.graph.text_table import TextFormat
from tests.thorough import thorough

NO_HEADER = TextFormat(header=False)


def edges_of(graph):
    """Pairs of ids, in any order."""
    ids = graph.node().ids.external(np.arange(graph.num_nodes))
    pairs = [(ids[u], ids[v]) for v in range(graph.num_nodes) for u in graph.edge().neighbors(v)]
    return sorted(pairs)


def read(tmp_path, content, name="e.csv", nodes=None, node_file=None, **options):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    if nodes is not None:
        (tmp_path / "n.csv").write_text(nodes)
        nodes = NodeFile(tmp_path / "n.csv", id="id", **(node_file or {}))
    return Graph.from_parquet(nodes, EdgeFile(path, **options))


SNAP = "# Directed graph\n# Nodes: 4 Edges: 3\n# FromNodeId\tToNodeId\n30\t1412\n30\t3352\n8300\t30\n"


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("e.txt", SNAP, {}),
        ("e.csv", SNAP, {"src": "FromNodeId", "dst": "ToNodeId"}),
        ("e.txt", SNAP.replace("\t", " "), {}),
        ("e.txt", "30 \t 1412\n  30   3352  \n8300\t30\n", {"text": NO_HEADER}),
        ("e.tsv", "src\tdst\n30\t1412\n30\t3352\n8300\t30\n", {}),
        ("e.csv", "src;dst\n30;1412\n30;3352\n8300;30\n", {}),
        ("e.csv", "src|dst\n30|1412\n30|3352\n8300|30\n", {}),
        ("e.csv", "src, dst\n30, 1412\n30, 3352\n8300, 30\n", {}),
        ("e.csv", "\ufeffsrc,dst\r\n30,1412\r\n\r\n30,3352\r\n8300,30\r\n", {}),
        ("e.csv", "src,dst\r30,1412\r30,3352\r8300,30\r", {}),
        ("e.csv", '"src","dst"\n"30","1412"\n"30","3352"\n"8300","30"', {}),
        ("e.csv", "src,dst\n30,1412\n# exported by job 17\n30,3352\n8300,30\n", {}),
        ("e.csv", "src,dst\n30.0,1412\n30.0,3352.\n8300,30.00\n", {}),
        ("e.csv", "30,1412\n30,3352\n8300,30\n", {"text": NO_HEADER}),
        ("e.csv", "30,1412\n30,3352\n8300,30\n", {"text": NO_HEADER, "src": "0", "dst": "1"}),
        ("e.csv", "src,dst\n30,1412\n30,3352\n8300,30\n", {"text": NO_HEADER}),
        ("e.csv", 'dst,note,src\n1412,"a, ""b""\nc",30\n3352,,30\n30,x,8300\n', {}),
        ("e.csv", "src:dst\n30:1412\n30:3352\n8300:30\n", {"text": TextFormat(delimiter=":")}),
        ("e.csv", "src,dst\n30,1412\n%x,y\n30,3352\n8300,30\n", {"text": TextFormat(comment="%")}),
    ],
)
def test_dialects(tmp_path, name, content, options):
    assert edges_of(read(tmp_path, content, name, **options)) == [(30, 1412), (30, 3352), (8300, 30)]


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("e.csv.gz", gzip.compress),
        ("e.csv.gz", lambda b: gzip.compress(b[:12]) + gzip.compress(b[12:])),
        ("e.csv", gzip.compress),
        ("e.csv.bz2", bz2.compress),
        ("e.csv.xz", lzma.compress),
        ("e.csv.zst", lambda b: pa.compress(b, "zstd", asbytes=True)),
    ],
)
def test_packed_files(tmp_path, name, pack):
    assert edges_of(read(tmp_path, pack(b"src,dst\n1,2\n2,3\n"), name)) == [(1, 2), (2, 3)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("e.csv.gz", gzip.compress(bytes(range(256)) * 40)[:-9]),
        ("e.csv.gz", gzip.compress(b"src,dst\n1,2\n")[:-8] + bytes(8)),
        ("e.csv.xz", lzma.compress(b"src,dst\n1,2\n")[:-4]),
        ("e.csv.bz2", bz2.compress(b"src,dst\n1,2\n")[:-4]),
        ("e.csv.zst", pa.compress(b"src,dst\n1,2\n" * 99, "zstd", asbytes=True)[:-4]),
    ],
    ids=["gzip-cut", "gzip-checksum", "xz-cut", "bz2-cut", "zstd-cut"],
)
def test_damaged_archives_are_refused(tmp_path, name, content):
    with pytest.raises(GraphError, match="cannot be read"):
        read(tmp_path, content, name)


def test_a_byte_behind_an_archive_is_named(tmp_path):
    with pytest.raises(GraphError, match="other bytes follow the archive's end"):
        read(tmp_path, gzip.compress(b"src,dst\n1,2\n") + b"x", "e.csv.gz")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("30,1412\n3352,30\n", r"first line holds numbers \(30, 1412\).*--no-header"),
        ("\n\n", "is empty"),
        ("src,dst\n", "at least one node"),
        ("src,dst,src\n1,2,3\n", "two columns are named 'src'"),
        ("src,dst\n1,2\n\n3\n", "line 4: 1 values; the header has 2"),
        ("src,dst\n1,2,3\n", "line 2: 3 values; the header has 2"),
        ('src,dst\n1,"2\n3,4\n', "a quote .* is opened and not closed: the record of line 2"),
        ('src, dst\n1, "a"\n', "line 2, column 'dst': a quote after a blank"),
        ("src,dst\n1,2\n# a, b\n", "line 3, column 'src': begins with '#': a comment, or a value"),
        ("src,dst\n1,\n", "line 2, column 'dst': a value is missing"),
        ('src,dst,t\n1,2,"a\nb"\n,3,c\n', "line 4, column 'src': a value is missing"),
        ("src,dst\n1,2\n3,1_000\n", "line 3, column 'dst': '1_000' cannot be an id"),
        ('src,dst\n1,2\n"1,000",3\n', "line 3, column 'src': '1,000' cannot be an id"),
        ("src,dst\n1,2\nnan,3\n", "line 3, column 'src': 'nan' cannot be an id"),
        ("src,dst\n30.5,1\n", "'30.5' cannot be an id"),
        ("src,dst\nM\udcfcller,a\n", "line 2: cannot be read as text: byte 0xfc.*--encoding latin-1"),
        ("PK\x03\x04", "is a zip archive"),
    ],
)
def test_refused_by_place(tmp_path, content, match):
    with pytest.raises(GraphError, match=match):
        read(tmp_path, content.encode("utf-8", "surrogateescape"))


def test_encodings(tmp_path):
    latin = TextFormat(encoding="latin-1")
    assert edges_of(read(tmp_path, "src,dst\nMü,a\n".encode("latin-1"), text=latin)) == [("Mü", "a")]
    utf16 = TextFormat(encoding="utf-16")
    assert edges_of(read(tmp_path, "src,dst\nMü,a\n".encode("utf-16"), text=utf16)) == [("Mü", "a")]
    with pytest.raises(GraphError, match="--encoding utf-16"):
        read(tmp_path, "src,dst\nMü,a\n".encode("utf-16"))
    with pytest.raises(GraphError, match="unknown encoding 'klingon'"):
        read(tmp_path, "src,dst\n1,2\n", text=TextFormat(encoding="klingon"))


def test_comments_or_values_are_said(tmp_path):
    tags = "src,dst\n#a,b\nc,d\n"
    assert edges_of(read(tmp_path, tags, text=TextFormat(comment=""))) == [("#a", "b"), ("c", "d")]
    assert edges_of(read(tmp_path, tags, text=TextFormat(comment="#"))) == [("c", "d")]


def test_ids_are_one_kind_in_all_files(tmp_path):
    assert edges_of(read(tmp_path, "src,dst\n1,2\nx,2\n")) == [("1", "2"), ("x", "2")]
    assert edges_of(read(tmp_path, "src,dst\n7,007\n", nodes="id\n007\n7\n")) == [("7", "007")]
    assert edges_of(read(tmp_path, "src,dst\n1,2\n", nodes="id\n1\n2\nx\n")) == [("1", "2")]
    with pytest.raises(GraphError, match=r"line 3, column 'src': '3e1' is not an integer.*has integer ids"):
        read(tmp_path, "src,dst\n1,2\n3e1,2\n", nodes="id\n1\n2\n30\n")
    with pytest.raises(GraphError, match=r"no such id; .*line 2, column 'dst' has 'y'"):
        read(tmp_path, "src,dst\nx,y\n", nodes="id\nx\n1\n")
    big = "9223372036854775808"
    assert edges_of(read(tmp_path, f"src,dst\n{big},2\n")) == [(big, "2")]


def test_ids_of_types_without_a_file_come_from_all_edges(tmp_path, caplog):
    (tmp_path / "r.csv").write_text("userId,movieId,rating\n7,318,4.5\n3,1,3\n")
    (tmp_path / "f.csv").write_text("src,dst\n9,7\n")
    (tmp_path / "m.csv").write_text("movieId,title\n1,Toy Story\n318,Shawshank\n5,Alone\n")
    graph = Graph.from_parquet(
        {"movie": NodeFile(tmp_path / "m.csv", id="movieId")},
        {
            ("user", "rates", "movie"): EdgeFile(tmp_path / "r.csv", "userId", "movieId", ["rating"]),
            ("user", "follows", "user"): EdgeFile(tmp_path / "f.csv"),
        },
    )
    assert graph.nodes["user"].ids.external(np.arange(3)).tolist() == [3, 7, 9]
    assert graph.nodes["movie"].num_nodes == 3
    assert "node type 'user' has no file: its nodes are the 3 ids (integers) of its edges" in caplog.text
    assert 'm.csv: left out: title (text, such as "Toy Story")' in caplog.text


FEATURES = {
    "bool": ("True\nfalse", [1, 0]),
    "signs": ("+1\n-.5e1", [1, -5]),
    "blanks": (" 1 \n2 ", [1, 2]),
    "whole": ("1.0\n2", [1, 2]),
}


@pytest.mark.parametrize("cells", FEATURES.values(), ids=FEATURES)
def test_features(tmp_path, cells):
    first, second = cells[0].split("\n")
    graph = read(tmp_path, "src,dst\n1,2\n", nodes=f"id,f\n1,{first}\n2,{second}\n")
    assert graph.node().features[:, 0].tolist() == cells[1]


@pytest.mark.parametrize(
    ("cells", "match"),
    [
        (
            ["1", ""],
            r"line 3, column 'f': a value is missing \(1 of 2 rows have none\); .*--fill 0.*--exclude f",
        ),
        (["True", ""], "line 3, column 'f': a value is missing"),
        (["", ""], r"line 2, column 'f': a value is missing \(2 of 2"),
        (["1", "N/A"], "line 3, column 'f' must hold numbers; it holds 'N/A' .*--na 'N/A' --fill 0"),
        (["unknown", "?"], "line 2, column 'f' must hold numbers; it holds 'unknown'"),
        (["1", "inf"], "it holds 'inf'"),
        (["1", "nan"], "it holds 'nan'"),
        (["1", "1_000"], "it holds '1_000' .*without separators"),
        (['"1,5"', '"2,5"'], "it holds '1,5' .*with a decimal point"),
        (["1", "99999999999999999999"], "line 3, column 'f': 9{20} does not fit into a 64-bit"),
        (["1", "16777217"], "n.csv: 1 int64 values of column 'f' are integers that float32 cannot hold"),
    ],
)
def test_features_refused_by_place(tmp_path, cells, match):
    with pytest.raises(GraphError, match=match):
        read(tmp_path, "src,dst\n1,2\n", nodes=f"id,f\n1,{cells[0]}\n2,{cells[1]}\n")


def test_ways_out_that_the_refusals_name(tmp_path, caplog):
    def features(cells, **options):
        nodes = f"id,f\n1,{cells[0]}\n2,{cells[1]}\n"
        return read(tmp_path, "src,dst\n1,2\n", nodes=nodes, node_file=options).node().features.tolist()

    assert features(["1", ""], missing=Missing(fill=-1)) == [[1], [-1]]
    assert features(["1", ""], missing=Missing(fill={"f": 0.5})) == [[1], [0.5]]
    assert features(["N/A", "1"], missing=Missing(na=["N/A"], fill=0)) == [[0], [1]]
    assert features(["N/A", "1"], exclude=["f"]) == [[], []]
    assert features(["1", "16777217"], rounded=["f"]) == [[1], [16777216]]
    assert features(["visa", ""]) == [[], []]
    assert 'left out: f (text, such as "visa")' in caplog.text


@pytest.mark.parametrize(
    ("cells", "expected", "unit"),
    [
        (["5", "3"], [3, 5], ""),
        (["1700000000123456789.0", "0"], [0, 1700000000123456789], ""),
        (["2024-01-31", "2023-01-31"], [1675123200, 1706659200], "s"),
        (["2024-01-31T10:00:00Z", "2024-01-31T12:00:01+02:00"], [1706695200, 1706695201], "s"),
        (["2024-01-31 10:00:00.5", "2024-01-31T10:00"], [1706695200000, 1706695200500], "ms"),
    ],
)
def test_times(tmp_path, cells, expected, unit):
    graph = read(tmp_path, f"src,dst,t\n1,2,{cells[0]}\n3,2,{cells[1]}\n", time="t")
    assert graph.edge().neighbors(1).shape == (2,)
    assert (graph.edge().time.tolist(), graph.schema.time_unit) == (expected, unit)


@pytest.mark.parametrize(
    ("cell", "match"),
    [
        ("1.5", r"line 3, column 't': 1.5 is not an integer"),
        ("31/01/2024", "line 3, column 't': '31/01/2024' is neither an integer nor an ISO 8601 date"),
        ("2024-02-31", "line 3, column 't': '2024-02-31' is neither an integer nor an ISO 8601 date"),
        ("2024-01-01T00:00Z", "line 3, column 't': times with and without a zone are mixed"),
        ("", "line 3, column 't': a value is missing"),
        ("2024-01-01 ", "line 2, column 't': integers and dates are mixed"),
    ],
)
def test_times_refused_by_place(tmp_path, cell, match):
    first = "2024-01-01" if "-" in cell and not cell.endswith(" ") else "1"
    with pytest.raises(GraphError, match=match):
        read(tmp_path, f"src,dst,t\n1,2,{first}\n1,2,{cell}\n", time="t")


ARROW_IDS = {
    "view": pa.array(["a", "b"], pa.string_view()),
    "dictionary": pa.array(["a", "b"]).dictionary_encode(),
    "binary": pa.array([b"a", b"b"]),
    "fixed": pa.array([b"a", b"b"], pa.binary(1)),
}


@pytest.mark.parametrize("column", ARROW_IDS.values(), ids=ARROW_IDS)
def test_arrow_strings(tmp_path, column):
    table = pa.table({"src": column, "dst": column})
    feather.write_feather(table, tmp_path / "e.feather")
    for source in (table, tmp_path / "e.feather"):
        assert edges_of(Graph.from_parquet(None, EdgeFile(source))) == [("a", "a"), ("b", "b")]


def test_arrow_integers(tmp_path):
    columns = [pa.array([5, 6], kind) for kind in (pa.uint64(), pa.decimal128(5, 0), pa.float64())]
    for column in (*columns, pa.array([5, 6]).dictionary_encode()):
        assert edges_of(Graph.from_parquet(None, EdgeFile(pa.table({"src": column, "dst": column})))) == [
            (5, 5),
            (6, 6),
        ]
    for bad, match in (
        (pa.array([2**63], pa.uint64()), "row 0, column 'src': 9223372036854775808 does not fit"),
        (pa.array([b"\xff"]), "not UTF-8 text"),
        (pa.array([True]), "must hold integers or strings.*bool"),
        (pa.array([None, 1]), "row 0, column 'src': a value is missing"),
    ):
        with pytest.raises(GraphError, match=match):
            Graph.from_parquet(None, EdgeFile(pa.table({"src": bad, "dst": bad})))


def test_ids_beyond_64_bits_are_strings_in_all_files_and_found_by_requests(tmp_path, caplog):
    """`30.0` is 30 in a file with such ids and in one without."""
    with caplog.at_level("WARNING", "hopline.graph"):
        graph = read(tmp_path, "src,dst\n30.0,7.0\n7,30\n", nodes=f"id,f\n30.0,1\n{2**63},2\n7,3\n")
    assert "kept as strings, since some do not fit into a signed 64-bit integer" in caplog.text
    ids = graph.node().ids
    assert ids.external(np.arange(3)) == ["30", str(2**63), "7"]
    assert ids.lookup([str(2**63), "7", "30"]).tolist() == [1, 2, 0]
    assert edges_of(graph) == [("30", "7"), ("7", "30")]
    for number in (2**63, 30):
        with pytest.raises(BadRequest, match=f'got the integer {number}: write "{number}"'):
            ids.lookup([number])


def test_decimals_are_kept_or_refused(tmp_path, caplog):
    def graph(**columns):
        pq.write_table(pa.table({"src": [1], "dst": [2], **columns}), tmp_path / "e.parquet")
        names = {"time": "t"} if "t" in columns else {"attr": list(columns)}
        return Graph.from_parquet(None, EdgeFile(tmp_path / "e.parquet", **names))

    cents = pa.decimal128(9, 2)
    assert graph(a=pa.array([1.5]).cast(cents)).edge().attr.tolist() == [[1.5]]
    assert graph(t=pa.array([15]).cast(pa.decimal128(21, 2))).edge().time.tolist() == [15]
    with pytest.raises(GraphError, match=r"row 0, column 't': 1.50 is not an integer"):
        graph(t=pa.array([1.5]).cast(cents))


def test_frames_are_tables():
    import pandas as pd

    nodes = pd.DataFrame({"id": ["a", "b"], "f": [1.5, 2.0], "kind": ["u", "v"]}, index=[8, 9])
    edges = pd.DataFrame({"src": ["a"], "dst": ["b"], "at": pd.to_datetime(["2024-01-31T10:00:00Z"])})
    graph = Graph.from_parquet(NodeFile(nodes, id="id"), EdgeFile(edges, time="at", time_unit="s"))
    assert edges_of(graph) == [("a", "b")]
    assert graph.schema.node_types["node"].feature_names == ("f",)
    assert graph.edge().time.tolist() == [1706695200]
    with pytest.raises(GraphError, match=r"the DataFrame, column 'src', cannot be read as a table"):
        Graph.from_parquet(None, EdgeFile(pd.DataFrame({"src": [1, "b"], "dst": [1, 2]})))
    with pytest.raises(GraphError, match="the dict cannot be read as a table"):
        Graph.from_parquet(None, EdgeFile({"src": 1}))


IDS = st.integers(-(2**63), 2**63 - 1) | st.text("abcAB" + ' ,;"#\täß\n', min_size=1, max_size=5)


@st.composite
def tables(draw):
    """Edges of ids of one kind, and how they are written."""
    kind = draw(st.sampled_from([int, str]))
    ids = draw(st.lists(IDS.filter(lambda x: isinstance(x, kind)), min_size=1, max_size=5, unique=True))
    pairs = draw(st.lists(st.tuples(st.sampled_from(ids), st.sampled_from(ids)), min_size=1, max_size=8))
    dialect = {
        "delimiter": draw(st.sampled_from(",;|\t")),
        "quoting": draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])),
        "lineterminator": draw(st.sampled_from(["\n", "\r\n"])),
    }
    return pairs, dialect, draw(st.booleans()), draw(st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=thorough(37, 150))
@given(tables())
def test_what_was_written_is_read_or_refused(tmp_path, table):
    pairs, dialect, with_note, encoding = table
    text = io.StringIO()
    writer = csv.writer(text, **dialect)
    writer.writerow(["note", "src", "dst"] if with_note else ["src", "dst"])
    for at, (src, dst) in enumerate(pairs):
        writer.writerow([f"n{at}", src, dst] if with_note else [src, dst])
    options = TextFormat(encoding="utf-16" if encoding == "utf-16" else "utf-8")
    try:
        graph = read(tmp_path, text.getvalue().encode(encoding), text=options)
    except GraphError:
        ids = [x for pair in pairs for x in pair]
        assert any(isinstance(x, str) and (x != x.strip() or set(x) & set('",;|\t#')) for x in ids)
        return
    # Blanks around a cell are dropped if they are not in quotes.
    bare = [tuple(x.strip() if isinstance(x, str) else x for x in pair) for pair in pairs]
    assert edges_of(graph) == sorted(bare)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=thorough(25, 100))
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=2, max_size=6))
def test_numbers_are_read_to_the_last_bit(tmp_path, values):
    nodes = "id,f\n" + "".join(f"{at},{value!r}\n" for at, value in enumerate(values))
    graph = read(tmp_path, "src,dst\n0,1\n", nodes=nodes)
    assert graph.node().features[:, 0].tolist() == values


def test_a_header_that_is_read_as_an_edge_is_refused(tmp_path):
    content = "from,to\n1,2\n2,3\n3,1\n"
    with pytest.raises(
        GraphError,
        match=r"line 1, column '0': 'from' is the only one of 4 cells that is not an integer.*--no-header",
    ):
        read(tmp_path, content, text=NO_HEADER)
    assert edges_of(read(tmp_path, content, src="from", dst="to")) == [(1, 2), (2, 3), (3, 1)]
    nodes = "id,x\nfrom,1\nto,1\n1,1\n2,1\n3,1\n"
    listed = read(tmp_path, content, text=NO_HEADER, nodes=nodes)
    assert ("from", "to") in edges_of(listed)


def test_a_matrix_market_file_is_refused(tmp_path):
    """Its first line of numbers is the size of the matrix, no edge."""
    content = "%%MatrixMarket matrix coordinate pattern symmetric\n%\n3 3 2\n2 1\n3 1\n"
    for comment in (None, "%"):
        with pytest.raises(GraphError, match=r"is a Matrix Market file.*scipy\.io\.mmread"):
            read(tmp_path, content, "e.txt", text=TextFormat(header=False, comment=comment))


@pytest.mark.parametrize("banner", ["%MatrixMarket", "%%MatrixMarket", "%%%MatrixMarket"])
@pytest.mark.parametrize("comment", [None, "%", ""])
def test_a_matrix_market_file_with_any_number_of_signs_is_refused(tmp_path, banner, comment):
    content = f"{banner} matrix coordinate pattern symmetric\n34 34 2\n2 1\n3 1\n"
    for header in (True, False):
        with pytest.raises(GraphError, match="is a Matrix Market file"):
            read(tmp_path, content, "e.txt", text=TextFormat(header=header, comment=comment))


def test_a_size_above_weighted_edges_is_refused(tmp_path):
    edges = "1 2 0.5\n2 3 1.5\n3 1 2\n"
    with pytest.raises(
        GraphError, match=r"line 2, column '0': 34 34 3 is a size, not an edge: 3 lines follow"
    ):
        read(tmp_path, "% x\n34 34 3\n" + edges, "e.txt", weight="2", text=TextFormat(False, comment="%"))
    for first in ("34 34 7\n", "2 34 3\n", "34 2 3\n"):  # other counts, or ids beyond the size
        built = read(tmp_path, first + edges, "e.txt", weight="2", text=NO_HEADER)
        assert len(edges_of(built)) == 4


def test_numbers_of_nodes_and_edges_above_edges_are_refused(tmp_path):
    edges = "".join(f"{at} {at + 1}\n" for at in range(1, 10))
    with pytest.raises(
        GraphError, match=r"line 1, column '0': 10 9 is a size, not an edge: 9 lines follow"
    ):
        read(tmp_path, "10 9\n" + edges, "e.txt", text=NO_HEADER)
    for first in ("10 8\n", "9 9\n"):  # another count, or ids beyond the size
        assert len(edges_of(read(tmp_path, first + edges, "e.txt", text=NO_HEADER))) == 10


@pytest.mark.parametrize("mark", ["%", "//", ";"])
def test_comments_of_other_formats_are_named(tmp_path, mark):
    content = f"{mark} sym weighted\n{mark} 3 3 3\n1 2 1 9\n2 3 1 9\n"
    for text in (NO_HEADER, TextFormat()):
        with pytest.raises(
            GraphError, match=rf"first line begins with '{mark}'.*--comment '{mark}' ignores"
        ):
            read(tmp_path, content, "e.txt", text=text)
    built = read(tmp_path, content, "e.txt", text=TextFormat(False, comment=mark))
    assert edges_of(built) == [(1, 2), (2, 3)]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("#/x.py\n#\n1 2 3 4\n2 3\n3 1\n4\n", 4),
        ("4 4\n2 3 4\n1 3\n1 2\n1\n", 2),
        ("34 34 3\n1 2\n2 3\n3 1\n", 2),
    ],
)
def test_lines_of_neighbours_and_sizes_are_no_table(tmp_path, content, line):
    with pytest.raises(GraphError, match=rf"line {line}: \d values.*size.*adjacency list, METIS"):
        read(tmp_path, content, "e.txt", text=NO_HEADER)
    with pytest.raises(GraphError, match=r"--no-header|adjacency list, METIS"):
        read(tmp_path, content, "e.txt")


@pytest.mark.parametrize(
    "content",
    [
        '*Vertices 3\n1 "a"\n*Arcs\n1 2 1\n',
        "<?xml version='1.0'?>\n<graphml>\n",
        "graph [\n  node [\n    id 1\n  ]\n",
    ],
)
def test_files_of_one_cell_a_line_are_no_table_of_edges(tmp_path, content):
    with pytest.raises(GraphError, match=r"no column .*not divided into cells.*Pajek"):
        read(tmp_path, content, "e.txt")


def test_blanks_within_quotes_are_no_other_spelling_of_an_id(tmp_path):
    content = 'src,dst\n" a",b\na,b\n'
    with pytest.raises(GraphError, match="line 2, column 'src': ' a' begins or ends with a blank"):
        read(tmp_path, content)
    with pytest.raises(GraphError, match="column 'dst': 'b ' begins or ends"):
        read(tmp_path, 'src;dst\na;"b "\n')
    assert edges_of(read(tmp_path, "src, dst\na, b\na ,b\n")) == [("a", "b"), ("a", "b")]
    titled = read(tmp_path, 'src,dst,title\na,b," x"\n')
    assert edges_of(titled) == [("a", "b")]


def test_ids_that_are_tuples_are_not_cut_at_the_comma(tmp_path):
    with pytest.raises(GraphError, match=r"line 1, column '0': '\(0' has one bracket of two"):
        read(tmp_path, "(0, 1) (0, 2)\n(0, 2) (1, 1)\n", "e.txt", text=NO_HEADER)
    with pytest.raises(GraphError, match="one bracket of two"):
        read(tmp_path, "src,dst\n[0,1\n[1,2\n")
    whole = read(tmp_path, "(0, 1)\t(0, 2)\n(0, 2)\t(1, 1)\n", "e.txt", text=NO_HEADER)
    assert edges_of(whole) == [("(0, 1)", "(0, 2)"), ("(0, 2)", "(1, 1)")]
    assert edges_of(read(tmp_path, "src,dst\n:),a\na,b\n")) == [(":)", "a"), ("a", "b")]


@pytest.mark.parametrize(
    ("encoding", "content", "match"),
    [
        ("utf-16", b"src,dst\n1,2\n", r"cannot be read as utf-16.*utf-16-le or utf-16-be"),
        ("utf-32", b"src,dst\n1,2\n", "cannot be read as"),
        ("utf-16-le", b"\x00\xd8", "cannot be read as"),
        ("base64", b"src,dst\n", "unknown encoding 'base64'"),
        ("hex", b"src,dst\n", "unknown encoding 'hex'"),
        ("rot13", b"src,dst\n", "unknown encoding 'rot13'"),
        ("idna", b"src,dst\n1,2\n\xff,3\n", "cannot be read as|unknown encoding"),
        ("undefined", b"src,dst\n", "unknown encoding 'undefined'"),
    ],
)
def test_an_encoding_that_the_file_has_not_is_refused(tmp_path, encoding, content, match):
    with pytest.raises(GraphError, match=match):
        read(tmp_path, content, text=TextFormat(encoding=encoding))


@pytest.mark.parametrize(
    "name", ["is_fraud", "isFraud", "label", "target", "y", "Class", "train_mask", "isFlaggedFraud", "Y_1"]
)
def test_columns_that_may_be_what_a_model_predicts_are_features_only_if_named(tmp_path, caplog, name):
    nodes = f"id,amount,{name}\n1,5,0\n2,6,1\n"
    with pytest.raises(GraphError, match=f"{name}: by name what a model predicts; .*--exclude"):
        read(tmp_path, "src,dst\n1,2\n", nodes=nodes)
    read(tmp_path, "src,dst\n1,2\n", nodes=nodes, node_file={"features": ["amount", name]})
    read(tmp_path, "src,dst\n1,2\n", nodes=nodes, node_file={"exclude": [name]})
    read(tmp_path, "src,dst\n1,2\n", nodes="id,amount,yield,classic\n1,5,0,1\n2,6,1,1\n")
    assert "among the" not in caplog.text
