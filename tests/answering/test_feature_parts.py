"""Large requests read their rows in parts: each has its time limit, and others have their turn between."""

import asyncio

import numpy as np
import pytest

from hopline.answering import feature_fetcher
from hopline.answering.feature_fetcher import FeatureFetcher
from hopline.engine.source import Absent, FetchedInputs
from hopline.features.l1_rows import FetchResult

TIMEOUT_S = 0.02


class Rows:
    """Rows whose store answers as a test says: part number -> reason of its failure."""

    row_bytes = 512

    def __init__(self):
        self.sizes, self.why, self.timeouts = [], {}, []
        self.before = lambda: None

    async def fetch(self, ids, timeout_s, *, alone=False):
        self.before()
        attempt = len(self.sizes)
        self.sizes.append(len(ids))
        self.timeouts.append(timeout_s)
        await asyncio.sleep(0)
        values = np.repeat(ids[:, None], 2, 1).astype(np.float32)
        reason = self.why.get(attempt, "")
        if reason == "half":
            return FetchResult(ids[::2], values[::2], {"timeout": len(ids) // 2})
        if reason:
            return FetchResult(ids[:0], values[:0], {reason: len(ids)})
        return FetchResult(ids, values, {})


def held(fetched_rows, count):
    """Which of the rows were fetched, each with its own values."""
    out = np.full((count, 2), np.nan, np.float32)
    left = np.arange(count)
    for rows in fetched_rows:
        left = rows.take(np.arange(count), left, out, np.empty(count))
    here = np.setdiff1d(np.arange(count), left)
    assert (out[here] == here[:, None]).all()
    return here


@pytest.fixture(autouse=True)
def parts_of_512_rows(monkeypatch):
    monkeypatch.setattr(feature_fetcher, "_PART_BYTES", 2**18)
    monkeypatch.setattr(feature_fetcher, "_MIN_PART_ROWS", 512)


@pytest.fixture
def rows():
    return Rows()


async def fetch(rows, count, **options):
    fetched_rows = {"node": []}
    fetcher = FeatureFetcher({"node": rows}, TIMEOUT_S)
    why = await fetcher.fetch(Absent({"node": np.arange(count)}), fetched_rows, TIMEOUT_S, **options)
    assert len(fetched_rows["node"]) <= 1  # the engine looks through each
    return why, fetched_rows["node"]


@pytest.mark.parametrize("count", [1, 512, 513, 5000])
async def test_every_row_is_read_once_and_each_part_has_the_whole_limit(rows, count):
    why, fetched_rows = await fetch(rows, count)
    assert why == {}
    assert held(fetched_rows, count).tolist() == list(range(count))
    assert sum(rows.sizes) == count
    assert max(rows.sizes) <= 512
    assert set(rows.timeouts) == {TIMEOUT_S}


async def test_rows_of_several_types_are_parts_of_their_own_types():
    one, two = Rows(), Rows()
    one.row_bytes = 32  # parts of 8,192 rows
    fetcher = FeatureFetcher({"a": one, "b": two}, TIMEOUT_S)
    missing = {"a": np.arange(10_000), "b": np.arange(1000)}
    fetched_rows = {}
    assert await fetcher.fetch(Absent(missing), fetched_rows, TIMEOUT_S) == {}
    assert (one.sizes, two.sizes) == ([8192, 1808], [512, 488])
    for name, ids in missing.items():
        assert held(fetched_rows[name], len(ids)).shape == ids.shape


async def test_a_part_that_is_late_once_is_waited_for_again(rows):
    rows.why = {3: "timeout"}
    why, fetched_rows = await fetch(rows, 5000)
    assert why == {}
    assert held(fetched_rows, 5000).shape == (5000,)


async def test_a_part_of_which_some_rows_come_does_not_end_the_others(rows):
    rows.why = {3: "half", 4: "half"}
    why, fetched_rows = await fetch(rows, 5000)
    assert why == {"timeout": 256}
    assert held(fetched_rows, 5000).shape == (5000 - 256,)


@pytest.mark.parametrize("reason", ["timeout", "breaker_open", "unavailable", "schema"])
async def test_the_parts_behind_one_that_brings_nothing_are_given_up(rows, reason):
    rows.why = dict.fromkeys(range(3, 100), reason)
    why, fetched_rows = await fetch(rows, 5000)
    assert why == {reason: 5000 - 3 * 512}
    assert len(rows.sizes) == 5
    assert held(fetched_rows, 5000).tolist() == list(range(3 * 512))


async def test_rows_that_the_store_lacks_do_not_end_the_others(rows):
    rows.why = {3: "missing"}
    why, _ = await fetch(rows, 5000)
    assert why == {"missing": 512}
    assert len(rows.sizes) == 10


async def test_nothing_is_read_for_a_request_that_has_ended(rows):
    is_over = False

    def end():
        nonlocal is_over
        is_over = len(rows.sizes) == 3

    rows.before = end
    why, _ = await fetch(rows, 5000, is_over=lambda: is_over)
    assert why == {"timeout": 5000 - 4 * 512}
    assert len(rows.sizes) == 4


async def test_the_patience_of_a_request_does_not_end_while_parts_arrive(rows, monkeypatch):
    now = 100.0
    monkeypatch.setattr("hopline.answering.feature_fetcher.time.monotonic", lambda: now)

    def slow():
        nonlocal now
        now += 0.9 * TIMEOUT_S

    rows.before = slow
    resumed = asyncio.get_running_loop().create_future()
    fetcher = FeatureFetcher({"node": rows}, TIMEOUT_S)
    fetcher.begin(
        Absent({"node": np.arange(5000)}), FetchedInputs(), 0.0, lambda *got: resumed.set_result(got)
    )
    supply, until = await resumed
    assert not supply.is_last
    assert now == pytest.approx(100.0 + 10 * 0.9 * TIMEOUT_S)
    assert until - now == pytest.approx(0.1 * TIMEOUT_S)
