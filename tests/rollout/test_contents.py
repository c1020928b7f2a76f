"""Units of one name and different contents are found, and named for people."""

from __future__ import annotations

from hopline.rollout.shared_state import differences, failures
from hopline.rollout.store.fleet import Ack

MINE = {"m/1": "graph g, artifact a", "m/2": "graph g, artifact b"}


def test_only_units_that_both_have_with_other_contents_differ() -> None:
    others = {
        "same": Ack(1, 1, {}, dict(MINE)),
        "other": Ack(1, 1, {}, {"m/2": "graph h, artifact b", "m/3": "graph g, artifact c"}),
        "older": Ack(1, 1, {}),  # a Hopline that does not report contents
    }
    assert differences(MINE, others) == {
        "m/2": "this worker has graph g, artifact b; worker other has graph h, artifact b"
    }


def test_all_members_that_differ_are_named() -> None:
    others = {name: Ack(1, 1, {}, {"m/1": f"graph {name}, artifact a"}) for name in ("y", "x")}
    text = differences(MINE, others)["m/1"]
    assert text.endswith("; worker x has graph x, artifact a; worker y has graph y, artifact a")


def test_what_another_member_could_not_load_is_named() -> None:
    others = {"a": Ack(1, 1, {"m/1": "graph_error: x.npy is damaged", "m/9": "unknown here"}, {})}
    assert failures(MINE, others) == {"m/1": "worker a could not load it: graph_error: x.npy is damaged"}
