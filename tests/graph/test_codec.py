"""Packed neighbours read back as they were; packed weights within the error that is promised."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline.errors import GraphError
from hopline.graph import Graph, codec
from hopline.graph.codec import PackedBounds, PackedIds, PackedWeights
from hopline.graph.extent import NO_RECORDS, degrees
from hopline.jobs.batch.changes import changed_lists, match
from tests.graph.unpacked import decompress, decompressed
from tests.graphs import hetero_graph, power_law_graph
from tests.thorough import thorough

_LARGEST = 2**31 - 1


@st.composite
def rows(draw):
    """Lists one after the other: ascending or not, with repetitions, of any range, and how many sources."""
    largest = draw(st.sampled_from([0, 1, 5, 63, 1000, 2**20, 2**26 - 1, 2**26 + 1, _LARGEST - 1]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    parts = []
    for _ in range(draw(st.integers(0, 6))):
        values = rng.integers(0, largest + 1, draw(st.sampled_from([0, 1, 2, 20, 63, 64, 65, 400])))
        kind = draw(st.sampled_from(["any", "sorted", "dense", "equal"]))
        if kind == "dense":
            values = np.sort(values % min(largest + 1, 90))
        elif kind == "equal":
            values[:] = values[0] if len(values) else 0
        parts.append(np.sort(values) if kind == "sorted" else values)
    return np.concatenate([*parts, np.empty(0, int)]).astype(np.int32), largest + 1


@settings(max_examples=thorough(15, 60), deadline=None)
@given(given_rows=rows(), seed=st.integers(0, 99))
def test_any_neighbor_reads_back_alone_and_all_of_them_together(given_rows, seed):
    indices, num_sources = given_rows
    bits = codec.bits_of(num_sources)
    positions = np.random.default_rng(seed).integers(0, max(len(indices), 1), 50)[: 50 * bool(len(indices))]
    forms = PackedIds.evenly(indices, bits), PackedIds.in_blocks(indices, bits)
    for packed in (*forms, PackedIds.pack(indices, num_sources)):
        assert len(packed) == len(indices)
        np.testing.assert_array_equal(np.asarray(packed), indices)
        np.testing.assert_array_equal(packed[positions], indices[positions])
        np.testing.assert_array_equal(packed[3:70], indices[3:70])
    assert packed.nbytes <= 1.16 * min(form.nbytes for form in forms) + 20  # padding


@settings(max_examples=thorough(15, 60), deadline=None)
@given(
    count=st.sampled_from([0, 1, 15, 16, 17, 31, 32, 400]),
    longest=st.sampled_from([0, 1, 255, 256, 257, 2_000_000]),
    seed=st.integers(0, 2**32),
)
def test_bounds_of_lists_short_and_long_read_back(count, longest, seed):
    rng = np.random.default_rng(seed)
    degree = rng.integers(0, min(longest, 255) + 1, count)
    degree[rng.random(count) < 0.02] = longest
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(degree)])
    packed = PackedBounds.pack(indptr)
    assert packed.shape == indptr.shape
    np.testing.assert_array_equal(np.asarray(packed), indptr)
    np.testing.assert_array_equal(np.diff(packed), degree)
    assert packed[-1] == indptr[-1]
    found = np.empty(count, np.int64)
    degrees(packed.kernel, NO_RECORDS, 0, np.arange(count), found)
    np.testing.assert_array_equal(found, degree)


def test_a_graph_of_short_lists_keeps_its_bounds_in_a_byte_and_a_quarter_each():
    packed = PackedBounds.pack(np.arange(0, 8 * 10_001, 8))
    assert packed.nbytes < 1.26 * 10_001


def test_positions_outside_are_refused_and_negative_ones_count_from_the_end():
    packed = PackedIds.pack(np.arange(70, dtype=np.int32), 70)
    assert packed[-1] == 69
    assert packed[np.array([[0, 1], [2, -2]])].tolist() == [[0, 1], [2, 68]]
    for outside in (70, -71, [0, 70]):
        with pytest.raises(IndexError, match="0 to 69"):
            packed[outside]


@settings(max_examples=thorough(25, 100), deadline=None)
@given(
    largest=st.sampled_from([1e-45, 1e-38, 1e-6, 1.0, 255.0, 3.0e7, 1e38]),
    count=st.integers(0, 600),
    seed=st.integers(0, 99),
)
def test_weights_are_off_by_half_a_step_and_none_above_0_vanishes(largest, count, seed):
    rng = np.random.default_rng(seed)
    weight = (rng.random(count) ** 6 * largest).astype(np.float32)
    weight[rng.random(count) < 0.1] = 0
    packed = PackedWeights.pack(weight, signed=False)
    scale = packed.scale[0]
    read = np.asarray(packed).astype(np.float64)
    np.testing.assert_array_equal(read, packed.codes * scale)  # exact in float32
    assert ((weight > 0) == (read > 0)).all()
    error = abs(read - weight)
    assert (error[packed.codes > 1] <= scale / 2).all()
    assert (error <= scale).all()
    if count and weight.max() > 3e-39:  # below, weights have too few bits for it
        assert scale <= weight.max() / 255 * (1 + 2**-13)


def test_running_sums_are_exact():
    weight = np.random.default_rng(1).random(5000).astype(np.float32)
    packed = PackedWeights.pack(weight, signed=False)
    sums = np.cumsum(np.asarray(packed), dtype=np.float64)
    np.testing.assert_array_equal(sums, np.cumsum(packed.codes.astype(np.int64)) * packed.scale[0])


def test_too_large_weights_are_refused():
    with pytest.raises(GraphError, match="the limit is 1e\\+38"):
        PackedWeights.pack(np.array([3e38], np.float32), signed=False)


@pytest.mark.parametrize("graph", [power_law_graph(200, 3000, 4, times=True, weights=True, edge_attr_dim=2),
                                   power_law_graph(200, 3000, 4), hetero_graph()])  # fmt: skip
def test_a_compressed_graph_is_the_same_after_saving_and_in_plain_arrays(graph, tmp_path):
    packed = graph.compressed()
    saved = packed.save(tmp_path / "g")
    assert saved.is_compressed
    assert not graph.is_compressed
    assert Graph.open(tmp_path / "g", verify=True).version == packed.version != graph.version
    plain = decompressed(saved)
    for key, edges in graph.edges.items():
        np.testing.assert_array_equal(plain.edges[key].indices, edges.indices)
        np.testing.assert_array_equal(plain.edges[key].indptr, edges.indptr)
        np.testing.assert_array_equal(saved.edges[key].neighbors(3), edges.neighbors(3))
        if edges.weight is None:
            assert plain.edges[key].weight is None
        else:
            assert abs(plain.edges[key].weight - edges.weight).max() <= edges.weight.max() / 255
    assert not plain.is_compressed
    if all(edges.weight is None for edges in graph.edges.values()):
        assert plain.version == graph.version


def test_no_edges_at_all(tmp_path):
    saved = Graph.from_edges(np.empty((2, 0), int), num_nodes=3).compressed().save(tmp_path / "g")
    assert saved.edge().num_edges == 0
    assert saved.edge().neighbors(1).tolist() == []


def test_subgraphs_of_a_compressed_graph_are_those_of_the_plain_one():
    graph = power_law_graph(300, 3000, 4, times=True)
    rows = np.unique(graph.edge().indices[:200])
    assert graph.compressed().subgraph(rows).version == graph.subgraph(rows).version


@pytest.fixture
def folder(tmp_path):
    power_law_graph(100, 2000, 4, weights=True).compressed().save(tmp_path / "g")
    return tmp_path / "g"


def _rewrite(folder, name, change):
    """Change a stored array and its entry of graph.json, all but the digest."""
    path = folder / "edges" / "node__to__node" / f"{name}.npy"
    np.save(path, change(np.load(path)))
    manifest = json.loads((folder / "graph.json").read_text())
    manifest["arrays"][f"edges/node__to__node/{name}"] |= {
        "shape": list(np.load(path).shape),
        "dtype": np.load(path).dtype.str,
        "file_bytes": path.stat().st_size,
    }
    (folder / "graph.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("packed_offsets", lambda a: a[:-1]),
        ("packed_offsets", lambda a: a.astype(np.int64)),
        ("packed_offsets", lambda a: np.where(np.arange(len(a)) == 3, a[-1], a).astype(a.dtype)),
        ("packed_offsets", lambda a: a[::-1].copy()),
        ("packed_data", lambda a: a[:-1]),
        ("weight_codes", lambda a: a[:-1]),
        ("weight_scale", lambda a: a * np.nan),
        ("weight_scale", lambda a: a * 0),
        ("weight_scale", lambda a: np.array([2e36])),
        ("weight_sums", lambda a: a[:-1]),
        ("indptr_groups", lambda a: a[:-1]),
        ("indptr_groups", lambda a: a.astype(np.int16)),
        ("indptr_groups", lambda a: np.where(np.arange(20) == 3, 128, a).astype(a.dtype)),
        ("indptr_longs", lambda a: np.zeros((9, 17), np.int32)),
        ("indptr_longs", lambda a: a.astype(np.int64)),
    ],
)
def test_files_that_disagree_are_refused_by_name(folder, name, change):
    _rewrite(folder, name, change)
    with pytest.raises(GraphError, match=f"node__to__node.*{name}"):
        Graph.open(folder)


def test_a_torn_file_is_refused_by_name_and_a_changed_one_by_verify(folder):
    path = folder / "edges" / "node__to__node" / "packed_data.npy"
    content = path.read_bytes()
    path.write_bytes(content[:-100])
    with pytest.raises(GraphError, match=r"packed_data\.npy has"):
        Graph.open(folder)
    path.write_bytes(content[:200] + b"\xff" + content[201:])
    with pytest.raises(GraphError, match=r"packed_data\.npy is damaged: its hash"):
        Graph.open(folder, verify=True)


def test_edges_packed_in_the_way_of_an_older_format_are_refused(folder):
    manifest = json.loads((folder / "graph.json").read_text())
    assert manifest["format"] == 3
    (folder / "graph.json").write_text(json.dumps(manifest | {"format": 2}))
    with pytest.raises(GraphError, match=r"packed in format 2.*build the graph again"):
        Graph.open(folder)


def test_compressing_twice_changes_nothing():
    packed = power_law_graph(100, 2000, 4).compressed()
    assert packed.compressed().edge().indices is packed.edge().indices
    assert decompress(decompressed(packed).edge()).indices.dtype == np.int32


def test_a_snapshot_compared_with_its_compressed_form_has_no_changed_lists():
    plain, other = (power_law_graph(200, 2000, 4, seed, times=True) for seed in (0, 3))
    same = match(plain.node(), plain.node())
    assert not changed_lists(plain.edge(), plain.compressed().edge(), same, same).any()
    assert changed_lists(plain.compressed().edge(), other.compressed().edge(), same, same).any()
