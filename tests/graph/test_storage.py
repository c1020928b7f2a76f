import errno
import json
import os
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline import files
from hopline.errors import GraphError
from hopline.graph import Graph, NodeTable, storage
from tests.graphs import drawn, hetero_graph, power_law_graph


def arrays(graph):
    return storage.arrays_of(graph.nodes, graph.edges)


def assert_equal(a, b):
    assert a.schema == b.schema
    assert a.version == b.version
    assert arrays(a).keys() == arrays(b).keys()
    for name, array in arrays(a).items():
        assert array.dtype == arrays(b)[name].dtype
        np.testing.assert_array_equal(array, arrays(b)[name])
    for key, adjacency in a.edges.items():
        assert adjacency.max_degree == b.edges[key].max_degree
        assert adjacency.has_self_loops == b.edges[key].has_self_loops
        assert adjacency.has_repeated_edges == b.edges[key].has_repeated_edges


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "graph"
    power_law_graph(50, 200, 4, ids="string", times=True, weights=True, edge_attr_dim=2).save(path)
    return path


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 1000),
    ids=st.sampled_from(["range", "int", "string"]),
    times=st.booleans(),
    weights=st.booleans(),
    attr=st.integers(0, 2),
    dtype=st.sampled_from(["float32", "float16"]),
)
def test_a_graph_is_the_same_after_save_and_open(tmp_path_factory, seed, ids, times, weights, attr, dtype):
    graph = power_law_graph(
        30, 90, 3, seed, ids=ids, times=times, weights=weights, edge_attr_dim=attr, feature_dtype=dtype
    )
    folder = tmp_path_factory.mktemp("graph") / "g"
    graph.save(folder)
    assert_equal(Graph.open(folder, verify=True), graph)


def test_heterogeneous_graph_is_the_same_after_save_and_open(tmp_path):
    graph = hetero_graph()
    assert_equal(graph.save(tmp_path / "g"), graph)


def test_no_edges_and_no_features_survive_saving(tmp_path):
    graph = Graph.from_edges(np.empty((2, 0), int), num_nodes=3)
    assert_equal(graph.save(tmp_path / "g"), graph)


@pytest.mark.parametrize("name", ["a/b", "ü b", "100%", "*?", "a.."])
def test_type_names_that_no_file_may_have(tmp_path, name):
    graph = Graph.from_tables({name: NodeTable(num_nodes=1)}, {})
    assert_equal(graph.save(tmp_path / "g"), graph)


def test_an_opened_graph_is_mapped_and_cannot_be_written(folder):
    for array in arrays(Graph.open(folder)).values():
        assert type(array) is np.ndarray
        assert not array.flags.writeable
        assert array.flags.c_contiguous
        assert array.flags.aligned


def test_saved_version_is_the_one_in_memory(tmp_path):
    graph = drawn("a>b b>c")
    version = graph.version
    assert graph.save(tmp_path / "g").version == version
    assert json.loads((tmp_path / "g" / "graph.json").read_text())["version"] == version


def test_save_replaces_a_graph_only_with_overwrite_and_nothing_else(folder, tmp_path):
    with pytest.raises(GraphError, match="pass overwrite=True"):
        drawn("a>b").save(folder)
    other = tmp_path / "documents"
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    with pytest.raises(GraphError, match="exists and is not a graph"):
        drawn("a>b").save(other, overwrite=True)
    assert (other / "thesis.txt").exists()


@pytest.mark.parametrize("exchange", [True, False])
def test_overwriting_replaces_the_graph_and_leaves_open_ones_readable(folder, monkeypatch, exchange):
    if not exchange:
        monkeypatch.setattr(files, "_exchange", lambda a, b: False)
    before = Graph.open(folder)
    expected = before.edge().indices.copy()
    new = drawn("a>b").save(folder, overwrite=True)
    assert new.num_nodes == 2
    np.testing.assert_array_equal(before.edge().indices, expected)
    assert [path.name for path in folder.parent.iterdir()] == ["graph"]


@pytest.mark.parametrize("fail_at", range(8))
def test_a_write_that_fails_leaves_what_was_there_and_no_scrap(folder, monkeypatch, fail_at):
    syncs = iter(range(100))
    real = os.fsync

    def fsync(handle):
        if next(syncs) == fail_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    version = Graph.open(folder).version
    with pytest.raises(GraphError, match=r"cannot be written: .*No space left"):
        drawn("a>b b>c").save(folder, overwrite=True)
    monkeypatch.undo()
    assert Graph.open(folder, verify=True).version == version
    assert [path.name for path in folder.parent.iterdir()] == ["graph"]


def test_save_into_a_place_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(GraphError, match="cannot be written"):
        drawn("a>b").save(tmp_path / "file" / "graph")


def test_open_says_when_there_is_no_graph(tmp_path):
    with pytest.raises(GraphError, match=r"no graph\.json; is this the folder of a graph"):
        Graph.open(tmp_path)


def test_a_property_of_edges_that_earlier_releases_stored_is_left_out(folder):
    manifest = json.loads((folder / "graph.json").read_text())
    for edges in manifest["edges"].values():
        edges["has_one_way_edges"] = True
    (folder / "graph.json").write_text(json.dumps(manifest))
    assert Graph.open(folder, verify=True).version == manifest["version"]


def test_open_refuses_a_newer_format_even_if_its_fields_are_others(folder):
    (folder / "graph.json").write_text('{"format": 99, "layout": "unheard of"}')
    with pytest.raises(GraphError, match=r"format 99 is newer than 12.*upgrade hopline"):
        Graph.open(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 1}', "\x00"])
def test_open_refuses_a_damaged_manifest(folder, content):
    (folder / "graph.json").write_text(content)
    with pytest.raises(GraphError, match=r"graph\.json is damaged"):
        Graph.open(folder)


def edit(folder, change):
    manifest = json.loads((folder / "graph.json").read_text())
    change(manifest)
    (folder / "graph.json").write_text(json.dumps(manifest))


def test_open_refuses_a_manifest_whose_content_is_not_its_version(folder):
    edit(folder, lambda m: m["schema"]["node_types"]["node"].update(feature_dim=5))
    with pytest.raises(GraphError, match=r"its version is .* but its contents hash to"):
        Graph.open(folder)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda m: m["num_nodes"].update(node=49), "features .* are not"),
        (lambda m: m["num_nodes"].clear(), "does not list"),
        (lambda m: m["edges"]["node__to__node"].update(num_edges=10), "10 edges"),
        (lambda m: m["edges"].clear(), "does not list"),
        (lambda m: m["arrays"].pop("edges/node__to__node/cumweight"), "does not list 'cumweight'"),
    ],
)
def test_open_refuses_counts_that_compiled_code_would_trust(folder, change, match):
    edit(folder, change)
    with pytest.raises(GraphError, match=match):
        Graph.open(folder)


def stored_files(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*.npy"))


def test_open_refuses_absent_truncated_and_longer_files(folder):
    names = stored_files(folder)
    assert len(names) == 10
    for name in names:
        copy = folder.with_name("copy")
        for damage, match in (
            (lambda f: f.unlink(), "is missing"),
            (lambda f: os.truncate(f, f.stat().st_size - 1), "bytes, graph.json says"),
            (lambda f: os.truncate(f, 0), "has 0 bytes"),
            (lambda f: f.write_bytes(f.read_bytes() + b"\0"), "bytes, graph.json says"),
        ):
            shutil.copytree(folder, copy)
            damage(copy / name)
            with pytest.raises(GraphError, match=match) as caught:
                Graph.open(copy)
            assert str(name) in str(caught.value)
            shutil.rmtree(copy)


def test_open_refuses_a_file_whose_header_is_another(folder):
    for name in stored_files(folder):
        content = bytearray((folder / name).read_bytes())
        original = bytes(content)
        for at in (0, 8, 20):
            content[:] = original
            content[at] ^= 0x55
            (folder / name).write_bytes(content)
            with pytest.raises(GraphError, match="does not have the header of"):
                Graph.open(folder)
        (folder / name).write_bytes(original)
    Graph.open(folder)


def test_verify_finds_one_changed_bit_in_any_file(folder):
    for name in stored_files(folder):
        original = (folder / name).read_bytes()
        (folder / name).write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
        with pytest.raises(GraphError, match="its hash is") as caught:
            Graph.open(folder, verify=True)
        assert str(name) in str(caught.value)
        (folder / name).write_bytes(original)
    Graph.open(folder, verify=True)
