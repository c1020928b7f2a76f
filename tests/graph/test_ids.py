import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline.errors import BadRequest, GraphError
from hopline.graph import Graph, IdIndex, id_values
from hopline.graph.id_values import integer_id
from hopline.graph.ids import IntIds, RangeIds, StringIds
from tests.thorough import thorough

INT64 = st.integers(-(2**63), 2**63 - 1)
EDGES = [-(2**63), -(2**63) + 1, -1, 0, 1, 2**31, 2**32, 2**63 - 2, 2**63 - 1]


@settings(max_examples=thorough(25, 100), deadline=None)
@given(st.lists(INT64 | st.sampled_from(EDGES), unique=True), st.lists(INT64 | st.sampled_from(EDGES)))
def test_int_lookup_equals_a_dict(ids, others):
    index = IntIds.of(np.array(ids, np.int64), "ids")
    rows = {value: row for row, value in enumerate(ids)}
    wanted = ids + others
    assert index.lookup(wanted).tolist() == [rows.get(value, -1) for value in wanted]
    assert index.external(np.arange(len(ids))).tolist() == ids


@settings(max_examples=thorough(25, 100), deadline=None)
@given(st.lists(st.text(), unique=True), st.lists(st.text()))
def test_string_lookup_equals_a_dict(ids, others):
    index = StringIds.of(ids, "ids")
    rows = {value: row for row, value in enumerate(ids)}
    wanted = ids + others
    assert index.lookup(wanted).tolist() == [rows.get(value, -1) for value in wanted]
    assert index.external(np.arange(len(ids))) == ids


@given(INT64)
def test_an_integer_id_has_one_way_to_be_written(value):
    assert integer_id(str(value)) == value


@pytest.mark.parametrize("text", ["1_0", "010", "+1", " 1", "1.0", "1e1", "-0x1", "٣", "-", ""])
def test_other_ways_to_write_a_number_are_no_id(text):
    with pytest.raises(ValueError, match="is not an integer id"):
        integer_id(text)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 1000, 1024, 1025])
def test_every_id_is_found_at_every_load_of_the_table(count):
    ids = np.arange(count) * 4096
    index = IdIndex.build(ids, "ids")
    np.testing.assert_array_equal(index.lookup(ids), np.arange(count))
    assert (index.lookup(ids + 1) == -1).all()
    names = [f"account-{i}" for i in range(count)]
    assert IdIndex.build(names, "ids").lookup(names[::-1]).tolist() == list(range(count))[::-1]


def test_range_ids_are_row_numbers():
    index = RangeIds(3)
    assert index.lookup([2, 0, 3, -1, 2**63 - 1]).tolist() == [2, 0, -1, -1, -1]
    assert index.external(np.array([1, 2])).tolist() == [1, 2]


@pytest.mark.parametrize("index", [RangeIds(3), IntIds.of(np.array([0, 5, -1]), "ids")])
def test_integers_beyond_int64_are_unknown_not_wrong(index):
    assert index.lookup([0, 2**63, -(2**70)]).tolist() == [0, -1, -1]
    assert index.lookup(np.array([0, 2**64 - 1], np.uint64)).tolist() == [0, -1]


def test_strings_that_only_differ_late_or_in_zero_bytes_are_distinguished():
    ids = ["", "\0", "\0\0", "a" * 8, "a" * 9, "a" * 16 + "b", "a" * 16 + "c", "ü", "u\u0308"]
    index = IdIndex.build(ids, "ids")
    assert index.lookup(ids).tolist() == list(range(len(ids)))


def test_lone_surrogates_are_refused_because_no_client_could_send_them():
    for lone in ("\ud800", "caf\udce9", "\udc00\ud800"):
        with pytest.raises(
            GraphError, match=f"^ids: .*{re.escape(ascii(lone))} in row 1 .*lone surrogate.*UTF-8"
        ):
            IdIndex.build(["ä", lone, "b", "\ud800"], "ids")
        with pytest.raises(GraphError, match=r"ids of node type 'node': .*row 2 .*lone surrogate"):
            Graph.from_edges(np.zeros((2, 1), int), np.ones((3, 1)), ids=["a", "b", lone], by_row=True)
    assert len(IdIndex.build(["\U0001f600", "é", "\0"], "ids")) == 3


def test_ids_of_older_graphs_may_have_lone_surrogates():
    index = StringIds.of(["\ud800", "b"], "ids")
    assert index.lookup(["b", "\ud800"]).tolist() == [1, 0]
    assert index.external(np.array([0])) == ["\ud800"]
    assert index.select(np.array([0]), "ids").external(np.array([0])) == ["\ud800"]


def test_ids_may_be_arrays_tuples_or_numpy_scalars():
    index = IdIndex.build(np.array(["x", "y"]), "ids")
    assert index.kind == "string"
    assert index.lookup(np.array(["y"], object)).tolist() == [1]
    assert index.lookup((np.str_("x"),)).tolist() == [0]
    ints = IdIndex.build((np.int32(4), 7), "ids")
    assert ints.lookup(np.array([7, 4], np.int16)).tolist() == [1, 0]


def test_duplicates_and_nothing_are_looked_up_too():
    index = IdIndex.build([4, 7], "ids")
    assert index.lookup([7, 7, 4]).tolist() == [1, 1, 0]
    assert index.lookup([]).tolist() == []
    assert IdIndex.build(["a"], "ids").lookup([]).tolist() == []


@pytest.mark.parametrize(
    ("wanted", "match"),
    [
        (["a"], "integers here; got the string 'a'"),
        ([1.0], r"got 1.0 \(float\)"),
        ([True], r"got True \(bool\)"),
        ([None], "got None"),
        ([1, "a"], "got both"),
        (np.array([1.5]), "got 1.5"),
        ([[1]], r"got \[1\] \(list\)"),
    ],
)
@pytest.mark.parametrize("index", [RangeIds(3), IntIds.of(np.array([1, 2]), "ids")])
def test_wrong_kinds_are_bad_requests(index, wanted, match):
    with pytest.raises(BadRequest, match=match):
        index.lookup(wanted)


def test_integers_are_bad_requests_where_ids_are_strings():
    index = IdIndex.build(["1"], "ids")
    with pytest.raises(BadRequest, match="strings here; got the integer 1"):
        index.lookup([1])
    with pytest.raises(BadRequest, match="strings here"):
        index.lookup(np.array([1]))


@pytest.mark.parametrize("ids", [None, [10, -5, 2**60], ["a", "ß", ""]])
def test_index_survives_saving(tmp_path, ids):
    graph = Graph.from_edges([[], []], num_nodes=3, ids=ids)
    opened = graph.save(tmp_path / "graph")
    wanted = list(graph.node().ids.external(np.arange(3)))
    assert opened.node().ids.lookup(wanted).tolist() == [0, 1, 2]
    assert list(opened.node().ids.external(np.array([2, 0]))) == [wanted[2], wanted[0]]
    assert opened.node().ids.kind == ("range" if ids is None else "string" if "a" in ids else "int")


@pytest.mark.parametrize("ids", [{"b", "a"}, frozenset("ab"), {"b": 0, "a": 1}])
def test_ids_without_an_order_are_refused(ids):
    with pytest.raises(
        BadRequest, match=f"must be a list, in the order of their rows; got a {type(ids).__name__}"
    ):
        id_values.typed(ids)
    with pytest.raises(GraphError, match="in the order of their rows"):
        Graph.from_edges([[0], [1]], ids=ids, by_row=True)
    assert id_values.typed({"b": 0, "a": 1}.keys()) == ("string", ["b", "a"])
