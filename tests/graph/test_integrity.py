"""Graphs whose hashes are right and whose numbers are not: compiled code would follow them anywhere."""

import json
import shutil

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline.errors import GraphError
from hopline.graph import Graph, GraphSchema, digest, integrity, storage
from tests.graph.unpacked import decompressed
from tests.graphs import power_law_graph
from tests.thorough import thorough

EDGES, IDS = "edges/node__to__node", "nodes/node/ids"


def forge(folder, change, name=None):
    """Change graph.json, or one array, and all hashes with it."""
    manifest = json.loads((folder / "graph.json").read_bytes())
    if name is None:
        change(manifest["edges"]["node__to__node"])
    else:
        path = folder / f"{name}.npy"
        array = np.ascontiguousarray(change(np.load(path).copy()))
        path.write_bytes(storage.header(array.dtype.str, array.shape) + array.tobytes())
        manifest["arrays"][name] = {
            "dtype": array.dtype.str,
            "shape": array.shape,
            "file_bytes": path.stat().st_size,
            "blake2b": digest.digests({name: array})[name],
        }
    schema = msgspec.convert(manifest["schema"], GraphSchema)
    hashes = {each: stored["blake2b"] for each, stored in manifest["arrays"].items()}
    manifest["version"] = digest.version_of(schema, hashes)
    (folder / "graph.json").write_text(json.dumps(manifest))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Folders of sound graphs, by form."""
    place = tmp_path_factory.mktemp("sound")
    made = {
        "plain": power_law_graph(70, 400, 3, ids="string", weights=True, edge_attr_dim=2),
        "timed": power_law_graph(70, 400, 3, ids="int", times=True, weights=True),
    }
    # Few sources among many: packed in blocks.
    near = np.stack([np.sort(np.arange(4000) // 40), np.arange(4000) % 900])
    made["packed"] = Graph.from_edges(near, num_nodes=900, edge_weight=np.ones(4000)).compressed()
    even = power_law_graph(70, 400, 3, times=True, weights=True)
    made["even"] = even.compressed()
    for name, graph in made.items():
        graph.save(place / name)
    assert len(Graph.open(place / "packed").edge().indices.offsets)
    assert not len(Graph.open(place / "even").edge().indices.offsets)
    return place


@pytest.fixture
def folder(saved, tmp_path, request):
    return shutil.copytree(saved / request.param, tmp_path / "graph")


def put(at, value):
    def change(array):
        array.reshape(-1)[at] = value
        return array

    return change


def swap(array):
    """Exchange the two numbers that differ most in the longest ascending start."""
    array[[0, -1]] = array[[-1, 0]]
    return array


DAMAGE = [
    ("plain", f"{EDGES}/indices", put(7, 2**31 - 1), r"the source of edge 7 is 2147483647, not one of 70"),
    ("plain", f"{EDGES}/indices", put(7, -1), "the source of edge 7 is -1"),
    ("plain", f"{EDGES}/indices", put(-1, 70), "the source of edge 399 is 70"),
    ("plain", f"{EDGES}/indices", lambda a: a[::-1], "is not behind the edge before .*by source"),
    ("plain", f"{EDGES}/indices", lambda a: a.astype("i8"), "indices is <i8 .* not int32"),
    ("plain", f"{EDGES}/indptr", put(3, -5), "list of destination 2"),
    ("plain", f"{EDGES}/indptr", put(3, 2**40), "list of destination 2"),
    ("plain", f"{EDGES}/indptr", put(0, 1), "list of destination 0"),
    ("plain", f"{EDGES}/weight", put(5, np.nan), "weight: that of edge 5 is nan"),
    ("plain", f"{EDGES}/weight", put(5, -1), "weight: that of edge 5 is -1"),
    ("plain", f"{EDGES}/cumweight", put(5, np.nan), "cumweight: the sum at edge 5"),
    ("plain", f"{EDGES}/cumweight", put(399, 0), "cumweight: the sum at edge 399"),
    ("plain", f"{EDGES}/attr", lambda a: a[:, :1], "attr of .* has 1 columns, not 2"),
    ("plain", f"{IDS}/offsets", put(3, 10**9), "offsets: id 2"),
    ("plain", f"{IDS}/offsets", put(3, 0), "offsets: id 2"),
    ("plain", f"{IDS}/slots", put(0, 70), "slots does not name each of 70 rows once"),
    ("plain", f"{IDS}/slots", put(0, -2), "slots does not name each of 70 rows once"),
    ("plain", f"{IDS}/slots", lambda a: np.where(a < 0, 0, a), "slots does not name each of 70 rows once"),
    ("plain", f"{IDS}/slots", lambda a: a[:100], "slots has 100 places for 70 ids"),
    ("plain", f"{IDS}/slots", lambda a: a[:64], "slots has 64 places for 70 ids"),
    ("timed", f"{EDGES}/time", lambda a: a[::-1], "is not behind the edge before .*by time"),
    ("timed", f"{IDS}/values", lambda a: a[:69], "69 ids of 'node' are not"),
    ("packed", f"{EDGES}/packed_data", put(0, 63), "block 0 does not fit"),
    ("packed", f"{EDGES}/packed_data", lambda a: a | 192, "the source of edge|by source|does not fit"),
    ("packed", f"{EDGES}/indptr_groups", put(4, 200), "list of destination|longest list"),
    ("packed", f"{EDGES}/weight_sums", put(1, 5), "weight_sums are not the sums of weight_codes"),
    ("even", f"{EDGES}/packed_data", lambda a: a | 255, "the source of edge 0 is 127, not one of 70 nodes"),
]  # fmt: skip


@pytest.mark.parametrize(("folder", "name", "change", "match"), DAMAGE, indirect=["folder"])
def test_numbers_that_lead_out_of_a_graph_are_refused_though_hashes_are_right(folder, name, change, match):
    Graph.open(folder, verify=True)
    forge(folder, change, name)
    with pytest.raises(GraphError, match=match):
        Graph.open(folder, verify=True)


@pytest.mark.parametrize(
    ("folder", "change", "match"),
    [
        ("plain", {"max_degree": 0}, "max_degree is 0, and the longest list has"),
        ("plain", {"max_degree": 10**12}, "max_degree is 1000000000000"),
        ("even", {"max_degree": 1}, "max_degree is 1"),
        ("plain", {"has_self_loops": False}, "has_self_loops is False, and there are some"),
        ("plain", {"has_repeated_edges": False}, "has_repeated_edges is False, and there are some"),
        ("timed", {"has_repeated_edges": False}, "has_repeated_edges is False, and there are some"),
        ("packed", {"has_repeated_edges": True}, "has_repeated_edges is True, and there are none"),
        ("timed", {"time_range": [0, 5]}, r"time_range is \(0, 5\), and the times are"),
        ("plain", {"num_edges": 10**12}, "1000000000000 edges"),
    ],
    indirect=["folder"],
)
def test_what_graph_json_says_of_edges_is_compared_with_them(folder, change, match):
    forge(folder, lambda edges: edges.update(change))
    with pytest.raises(GraphError, match=match):
        Graph.open(folder)


def is_sound(graph):
    """The rules of `Adjacency`, read from plain arrays by NumPy."""
    part, nodes = decompressed(graph).edge(), graph.num_nodes
    starts, rows = part.indptr, part.indices
    lists = np.diff(starts)
    owner = np.repeat(np.arange(nodes), lists)
    inside = starts[0] == 0 and starts[-1] == len(rows) and (lists >= 0).all()
    if not inside or not ((rows >= 0) & (rows < nodes)).all():
        return False
    time = np.zeros(len(rows)) if part.time is None else part.time
    ordered = (np.lexsort((rows, time, owner)) == np.arange(len(rows))).all()
    sums = np.concatenate([np.cumsum(each.astype(float)) for each in np.split(part.weight, starts[1:-1])])
    right = np.allclose(sums, part.cumweight, rtol=1e-6) and (part.weight >= 0).all()
    return bool(ordered and right and part.max_degree == lists.max())


@settings(max_examples=thorough(37, 150), deadline=None)
@given(data=st.data(), form=st.sampled_from(["plain", "timed", "packed", "even"]))
def test_any_changed_number_is_refused_or_leads_nowhere_wrong(saved, tmp_path_factory, data, form):
    folder = tmp_path_factory.mktemp("forged") / "graph"
    shutil.copytree(saved / form, folder)
    names = sorted(
        str(path.relative_to(folder))[:-4] for path in folder.rglob("*.npy") if path.parent.name != "node"
    )
    name = data.draw(st.sampled_from(names))
    size = np.load(folder / f"{name}.npy").nbytes
    if not size:
        return
    at, value = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, 255))

    def change(array):
        array.reshape(-1).view(np.uint8)[at] = value
        return array

    forge(folder, change, name)
    try:
        graph = Graph.open(folder)
    except GraphError:
        return
    assert is_sound(graph)
    known = graph.node().ids.external(np.arange(graph.num_nodes))
    found = graph.node().ids.lookup(known)
    assert ((found >= -1) & (found < graph.num_nodes)).all()


class TestNote:
    @pytest.fixture(autouse=True)
    def cache(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setattr(integrity, "_NOTED_BYTES", 1)
        return tmp_path / "cache" / "hopline" / "checked"

    @pytest.fixture
    def graph(self, saved, tmp_path):
        return shutil.copytree(saved / "plain", tmp_path / "graph")

    @pytest.fixture
    def scans(self, monkeypatch):
        counted = []
        real = integrity.wrong_edges
        monkeypatch.setattr(integrity, "wrong_edges", lambda *a: counted.append(a) or real(*a))
        return counted

    def test_a_graph_is_read_once_while_its_files_stay_the_same(self, graph, scans):
        for _ in range(3):
            Graph.open(graph)
        assert len(scans) == 1
        forge(graph, put(7, 2**31 - 1), f"{EDGES}/indices")
        for _ in range(2):
            with pytest.raises(GraphError, match="edge 7"):
                Graph.open(graph)

    def test_other_words_of_graph_json_are_read_anew(self, graph):
        Graph.open(graph)
        forge(graph, lambda edges: edges.update(max_degree=1))
        with pytest.raises(GraphError, match="max_degree is 1"):
            Graph.open(graph)

    def test_a_restart_of_the_machine_forgets(self, graph, scans, cache, monkeypatch):
        Graph.open(graph)
        monkeypatch.setattr(integrity, "boot_id", lambda: "later")
        Graph.open(graph)
        assert len(scans) == 2
        assert [path.name for path in cache.iterdir()] == ["later"]

    def test_without_a_cache_folder_it_is_read_each_time(self, graph, scans, tmp_path):
        (tmp_path / "cache").write_text("a file")
        for _ in range(2):
            Graph.open(graph)
        assert len(scans) == 2

    def test_small_graphs_leave_no_note(self, graph, cache, monkeypatch):
        monkeypatch.setattr(integrity, "_NOTED_BYTES", 1 << 30)
        Graph.open(graph)
        assert not cache.exists()
