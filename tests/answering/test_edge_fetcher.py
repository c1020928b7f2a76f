"""Reads of a graph store: tried again while it is away, never in vain for long, and never left out."""

import asyncio

import numpy as np

from hopline.answering.edge_fetcher import EdgeFetcher
from hopline.errors import GraphStoreError, GraphStoreUnavailable
from hopline.features.breaker import BreakerPolicy, CircuitBreaker
from hopline.graph.store_columns import FetchedEdges

WANTED = {"e": np.array([3, 5])}
FOUND = {"e": FetchedEdges(WANTED["e"], {"indices": np.array([1, 2], np.int32)})}


class Scripted:
    """A store that answers with the given outcomes in order; the last one stays."""

    kind = "scripted"

    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)
        self.num_calls = 0

    async def fetch(self, wanted, columns):
        self.num_calls += 1
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        if outcome == "hang":
            await asyncio.Event().wait()
        return outcome


def fetcher(store, timeout_s=30.0, breaker=None):
    return EdgeFetcher(store, {"e": ("indices",)}, timeout_s, None, breaker)


async def test_a_store_that_comes_back_is_called_again():
    store = Scripted(GraphStoreUnavailable("away"), GraphStoreUnavailable("away"), FOUND)
    assert await fetcher(store).fetch(WANTED) is FOUND
    assert store.num_calls == 3


async def test_a_store_that_stays_away_is_unavailable():
    store = Scripted(GraphStoreUnavailable("away"))
    found = await fetcher(store, timeout_s=0.05).fetch(WANTED)
    assert isinstance(found, GraphStoreUnavailable)
    assert "away" in str(found)
    assert "retry" in str(found)


async def test_a_store_that_hangs_is_unavailable():
    found = await fetcher(Scripted("hang"), timeout_s=0.02).fetch(WANTED)
    assert isinstance(found, GraphStoreUnavailable)
    assert "graph.fetch_timeout_ms" in str(found)


async def test_damaged_edges_are_not_requested_again():
    store = Scripted(GraphStoreError("damaged"))
    assert str(await fetcher(store).fetch(WANTED)) == "damaged"
    assert store.num_calls == 1


async def test_while_a_store_fails_reads_fail_without_asking():
    breaker = CircuitBreaker(BreakerPolicy(max_in_a_row=1, pause_s=1000.0))
    store = Scripted(GraphStoreUnavailable("away"))
    await fetcher(store, 0.01, breaker).fetch(WANTED)
    before = store.num_calls
    found = await fetcher(store, 0.01, breaker).fetch(WANTED)
    assert "paused" in str(found)
    assert store.num_calls == before
