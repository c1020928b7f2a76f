from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hopline_mesh.detect.blame import suspects
from hopline_mesh.detect.clues import Clue
from packages.mesh.tests.detect.meshes import paths_of

FRONT, CART, STORE, PAY = range(4)
CALLS = [(FRONT, CART), (PAY, STORE), (CART, STORE), (FRONT, PAY)]
PATHS = paths_of(CALLS)
FEATURES = {
    "request_rate": "load",
    "error_share": "errors",
    "p99_ms": "latency",
    "client_ms": "outgoing",
    "server_ms": "latency",
    "cpu_cores": "resource",
    "memory_bytes": "memory",
    "connections": "traffic",
    "calls_per_request": "calls",
    "crash_loop": "trouble",
}


def clue(feature: str, service: int, caller: int = -1, *, is_up: bool = True, score: float = 2.0) -> Clue:
    return Clue(service, caller, feature, FEATURES[feature], score, is_up, True, 1.0, 2.0)


def test_calls_that_are_missing_on_one_path_are_its_callers():
    found = suspects([clue("request_rate", STORE, CART, is_up=False)], PATHS)
    assert found[0].service == CART
    assert PAY not in [blame.service for blame in found]


def test_requests_that_are_missing_at_a_service_may_be_any_callers():
    found = suspects([clue("request_rate", STORE, is_up=False)], PATHS)
    assert {blame.service for blame in found} >= {CART, PAY}


def test_nobody_is_to_blame_for_answering_faster():
    assert (
        suspects([clue("p99_ms", CART, is_up=False), clue("server_ms", CART, FRONT, is_up=False)], PATHS)
        == []
    )


clues = st.builds(
    lambda feature, path, on_path, is_up, score: clue(
        feature, path[1], path[0] if on_path else -1, is_up=is_up, score=score
    ),
    st.sampled_from(sorted(FEATURES)),
    st.sampled_from(CALLS),
    st.booleans(),
    st.booleans(),
    st.floats(1.0, 6.0),
)


@given(st.lists(clues, min_size=1, max_size=8))
def test_whoever_is_suspected_is_so_for_something_that_was_seen(given_clues):
    for blame in suspects(given_clues, PATHS):
        assert blame.clues
        near = {blame.service} | {b for a, b in CALLS if a == blame.service}
        near |= {a for a, b in CALLS if b == blame.service}
        assert all({each.service, each.caller} & near for each in blame.clues)
