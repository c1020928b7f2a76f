"""From labels to slots."""

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hopline_mesh.collect.builder import fill, share
from hopline_mesh.collect.istio import istio
from hopline_mesh.collect.owners import Owners
from hopline_mesh.collect.places import NAMELESS, NO_ROOM, UNWATCHED, Places
from hopline_mesh.roster import Roster
from hopline_mesh.scope import Scope

PATHS = next(query for query in istio() if query.name == "edge.request_rate")
SERVICES = istio()[0]


def places(*, include=(), exclude=(), room=1000):
    roster = Roster()
    return roster, Places(roster, Scope(include, exclude), Owners(), room)


def path(caller, callee, called=None, space="shop"):
    """Labels of a call; without a callee it never arrived."""
    there = callee or "unknown"
    return json.dumps(
        {
            "source_workload": caller,
            "source_workload_namespace": space,
            "destination_workload": there,
            "destination_workload_namespace": space if callee else "unknown",
            "destination_service_name": called or callee,
            "destination_service_namespace": space,
        }
    ).encode()


def find(where, query, labels):
    return where.find(query, where.recall(query, labels)).tolist()


def test_a_call_that_was_lost_belongs_to_what_answers_there_whichever_series_comes_first():
    roster, where = places()
    found = find(where, PATHS, [path("web", None, "cart"), path("web", "cart-v1", "cart")])
    assert found[0] == found[1] == 0 << 32 | 1
    assert list(roster.names) == ["shop/web", "shop/cart-v1"]
    # and does so when all calls are lost
    assert find(where, PATHS, [path("web", None, "cart")]) == found[:1]


def test_a_call_that_was_lost_belongs_to_the_name_where_several_answer():
    roster, where = places()
    labels = [path("web", "cart-v1", "cart"), path("web", "cart-v2", "cart"), path("web", None, "cart")]
    found = find(where, PATHS, labels)
    assert len(set(found)) == 3
    assert roster.names[found[2] & 0xFFFFFFFF] == "shop/cart"


def test_what_is_not_watched_gets_no_slot():
    roster, where = places(include=("shop",), exclude=("sys",))
    found = find(where, PATHS, [path("a", "b", space="other"), path("a", "b", space="sys"), b"{}", b"7"])
    assert found == [UNWATCHED, UNWATCHED, NAMELESS, NAMELESS]
    assert len(roster) == 0


def test_a_full_roster_takes_no_new_names_and_knows_the_old():
    roster, where = places(room=2)
    assert find(where, PATHS, [path("a", "b"), path("a", "c"), path("b", "a")]) == [1, NO_ROOM, 1 << 32]
    assert len(roster) == 2


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("abcdef")), max_size=40))
def test_what_is_remembered_changes_nothing(pairs):
    roster, where = places()
    labels = [path(caller, callee) for caller, callee in pairs]
    first = find(where, PATHS, labels)
    assert find(where, PATHS, labels) == first
    where.begin(0)
    assert find(where, PATHS, labels) == first
    for (caller, callee), place in zip(pairs, first, strict=True):
        assert roster.name(place >> 32) == f"shop/{caller}"
        assert roster.name(place & 0xFFFFFFFF) == f"shop/{callee}"


def test_labels_are_forgotten_when_far_more_are_known_than_there_are():
    _, where = places(room=10**6)
    crowd = [
        f'{{"destination_workload":"s{i}","destination_workload_namespace":"a"}}'.encode()
        for i in range(60_000)
    ]
    before = find(where, SERVICES, crowd)
    where.begin(10)
    assert len(where.recall(SERVICES, crowd).new) == len(crowd)
    assert find(where, SERVICES, crowd) == before


values = st.floats(0, 1e6) | st.just(float("nan"))


@given(
    st.sets(st.integers(0, 20)),
    st.lists(st.tuples(st.integers(0, 25), values), max_size=60),
    st.sampled_from(("sum", "max")),
)
def test_several_values_become_one(rows, series, combine):
    ordered = np.array(sorted(rows), np.int64)
    ids = np.array([one for one, _ in series], np.int64)
    column = fill(ordered, ids, np.array([value for _, value in series]), combine)
    for row, result in zip(ordered.tolist(), column.tolist(), strict=True):
        own = [value for one, value in series if one == row and not np.isnan(value)]
        expected = (sum(own) if combine == "sum" else max(own)) if own else float("nan")
        assert np.allclose(result, expected, equal_nan=True)


def test_a_share_of_nothing_is_not_known():
    nan = float("nan")
    part, whole = np.array([1.0, nan, 3.0, nan, 1.0]), np.array([4.0, 4.0, 2.0, nan, 0.0])
    assert np.allclose(share(part, whole), [0.25, 0.0, 1.0, nan, nan], equal_nan=True)
