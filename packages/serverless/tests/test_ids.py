"""Look-ups without compiled code find what the engine's index finds."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hopline.engine.precomputed_file.identity import id_hashes
from hopline.errors import BadRequest, GraphError
from hopline.graph import Graph
from hopline.graph.ids import IdIndex, RangeIds
from hopline_serverless.ids import HashedIds, PlainHashTable, id_hash, ids_of_graph
from tests.thorough import thorough

INTS = st.integers(-(2**63), 2**63 - 1)


def looked_up(index, wanted):
    """Row numbers from compiled code, and from `PlainHashTable`."""
    plain = IdIndex.from_arrays(index.kind, len(index), index.arrays())
    plain.find = PlainHashTable
    return index.lookup(wanted).tolist(), plain.lookup(wanted).tolist()


@settings(max_examples=thorough(12, 50), deadline=None)
@given(st.lists(INTS, min_size=1, max_size=40, unique=True), st.lists(st.integers(-(2**70), 2**70)))
@example([0, -1, 2**63 - 1, -(2**63), 1 - 2**63], [1, 2**63, 2**64, -(2**64), 2**64 - 1])
def test_integers_are_found_as_by_compiled_code(known, others):
    compiled, plain = looked_up(IdIndex.build(known, "ids"), [*known[::-1], *others])
    assert plain == compiled
    assert plain[: len(known)] == list(range(len(known)))[::-1]


@settings(max_examples=thorough(12, 50), deadline=None)
@given(st.lists(st.text(max_size=30), min_size=1, max_size=40, unique=True), st.lists(st.text(max_size=12)))
@example(["", "12345678", "123456789", "ÿ" * 8], ["\x00", "1234567"])
def test_strings_are_found_as_by_compiled_code(known, others):
    compiled, plain = looked_up(IdIndex.build(known, "ids"), [*known[::-1], *others])
    assert plain == compiled
    assert plain[: len(known)] == list(range(len(known)))[::-1]


@given(st.integers(1, 9), st.lists(st.integers(-(2**70), 2**70)))
def test_row_numbers_are_found_as_by_compiled_code(num_nodes, others):
    wanted = [0, num_nodes - 1, num_nodes, -1, *others]
    compiled, plain = looked_up(RangeIds(num_nodes), wanted)
    assert plain == compiled == [value if 0 <= value < num_nodes else -1 for value in wanted]


@given(st.lists(INTS, max_size=20))
def test_hashes_of_integers_are_those_of_table_files(values):
    assert [id_hash(value) for value in values] == id_hashes(np.array(values, np.int64)).tolist()


@given(st.lists(st.text(max_size=30), max_size=20))
def test_hashes_of_strings_are_those_of_table_files(values):
    assert [id_hash(value) for value in values] == id_hashes(values).tolist()


@pytest.mark.parametrize(
    "known", [list(range(50)), [7 * i - 100 for i in range(50)], [f"n{i}" for i in range(50)]]
)
def test_a_table_alone_knows_its_nodes_by_their_hashes(known):
    ids = HashedIds(id_hashes(np.array(known) if isinstance(known[0], int) else known))
    unknown = 10**6 if isinstance(known[0], int) else "nobody"
    wanted = [known[3], unknown, known[49], known[3], known[0]]
    assert ids.lookup(wanted).tolist() == [3, -1, 49, 3, 0]
    assert ids.lookup([known[20]]).tolist() == [20]
    assert ids.lookup([unknown]).tolist() == [-1]


@pytest.mark.parametrize(
    ("ids", "wrong"), [(None, "a"), ([5, 9, 2], "a"), (["a", "b", "c"], 5)], ids=["range", "int", "string"]
)
def test_a_snapshot_is_read_as_the_graph_reads_it(tmp_path, ids, wrong):
    features = np.arange(6, dtype=np.float32).reshape(3, 2)
    edges = np.array([(ids or [0, 1, 2])[:2], (ids or [0, 1, 2])[1:]])
    graph = Graph.from_edges(edges, features, ids=ids).save(tmp_path / "graph")
    version, found, rows = ids_of_graph(tmp_path / "graph", "node")
    wanted = [*(ids or [0, 1, 2])][::-1]
    assert version == graph.version
    assert found.lookup(wanted).tolist() == [2, 1, 0]
    assert (rows == features).all()
    with pytest.raises(BadRequest) as mine:
        found.lookup([wrong])
    with pytest.raises(BadRequest) as engines:
        graph.nodes["node"].ids.lookup([wrong])
    assert str(mine.value) == str(engines.value)


def test_what_is_no_graph_is_reported(tmp_path):
    with pytest.raises(GraphError, match="cannot be read"):
        ids_of_graph(tmp_path, "node")
    (tmp_path / "graph.json").write_text("{}")
    with pytest.raises(GraphError, match="damaged"):
        ids_of_graph(tmp_path, "node")
