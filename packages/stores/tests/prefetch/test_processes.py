"""Real processes: servers, a prefetcher and a Redis."""

from __future__ import annotations

import asyncio
import signal
import threading
import time

import httpx
import numpy as np
import pytest

from hopline.features.base import FeatureGroup
from hopline.features.registry import open_store
from packages.stores.tests.prefetch.conftest import N, Places, Process, running, scores, spawn

UP = "hopline_prefetch_up"
DONE = 'hopline_prefetch_requests_total{outcome="done"}'
DOWN = 'hopline_prefetch_requests_total{outcome="down"}'
#: Outcomes of requests that were sent to the prefetcher.
ASKED = [
    f'hopline_prefetch_requests_total{{outcome="{each}"}}' for each in ("done", "silent", "late", "lost")
]
#: Where all rows shall come in time: a machine that others share may stand still for half a second.
PATIENT = {"features__fetch_timeout_ms": 4000.0}


def check(places: Places, server: Process, nodes: list[int], client: httpx.Client | None = None) -> None:
    """The answer is bit-equal to that of features in the graph, and at full quality."""
    answer = scores(server, nodes, client)
    assert not answer.get("degraded"), answer
    assert (np.array(answer["outputs"]["logits"]) == places.expected[nodes]).all()


def keys_read(places: Places) -> int:
    """Rows that Redis was asked for."""
    info = dict(
        line.split(":", 1)
        for line in places.redis.call("INFO", "stats").decode().split("\r\n")
        if ":" in line
    )
    return int(info["keyspace_hits"]) + int(info["keyspace_misses"])


def test_answers_are_bit_equal_and_every_row_comes_through_the_prefetcher(places: Places) -> None:
    settings = places.settings(**PATIENT)
    with running("prefetch", settings), running("serve", settings) as server:
        server.wait_for_metric(UP, 1)
        for i in range(0, N, 7):
            check(places, server, [i])
        check(places, server, list(range(N)))
        assert server.metric(DONE) > 0
        assert server.metric("hopline_prefetch_rows_total") == N
        assert server.metric('hopline_feature_rows_total{tier="origin",result="found"}') == 0


@pytest.mark.release
def test_with_two_workers_each_row_crosses_the_network_once(places: Places) -> None:
    settings = places.settings(server__workers=2, **PATIENT)
    with running("serve", settings) as server, running("prefetch", settings):  # whichever comes first
        server.wait_for_metric(UP, 2)
        places.redis.call("CONFIG", "RESETSTAT")
        errors: list[BaseException] = []

        def load(first: int) -> None:
            try:
                with httpx.Client() as client:  # a connection of its own: some go to either worker
                    for i in range(first, N + first, 3):
                        check(places, server, [i % N, (7 * i) % N], client)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=load, args=(first,)) for first in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors[0]
        assert keys_read(places) == N
        server.wait_for_metric("hopline_prefetch_rows_total", N)
        assert server.metric('hopline_feature_rows_total{tier="origin",result="found"}') == 0


class Load:
    """Requests, one after another, about rows that L1 never keeps for long; each is checked."""

    def __init__(self, places: Places, server: Process) -> None:
        self.num_answers = 0
        self.errors: list[BaseException] = []
        self._places, self._server = places, server
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(first,)) for first in range(4)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self.errors, self.errors[0]

    def _run(self, first: int) -> None:
        try:
            with httpx.Client() as client:
                i = first
                while not self._stop.is_set():
                    check(self._places, self._server, [i % N, (3 * i + 1) % N], client)
                    self.num_answers += 1
                    i += 4
                    time.sleep(0.002)
        except BaseException as error:
            self.errors.append(error)

    def more(self, count: int) -> None:
        """Wait for so many more answers."""
        wanted = self.num_answers + count
        while self.num_answers < wanted and not self.errors:
            time.sleep(0.005)

    def until_more_than(self, before: float, metric: str) -> None:
        """Wait for a metric that counts requests for rows: those that are fresh are not asked for."""
        for _ in range(40):
            self.more(50)
            if self._server.metric(metric) > before:
                return
        raise AssertionError(f"{metric} is {before} after 2,000 more answers")


#: Rows are fetched all the time.
SHORT_LIVED = {"features__ttl_s": 0.6}


@pytest.mark.release
def test_a_prefetcher_that_ends_under_load_costs_no_answer_and_no_quality(places: Places) -> None:
    settings = places.settings(server__workers=2, **SHORT_LIVED, **PATIENT)
    with running("serve", settings) as server, Load(places, server) as load:
        load.more(20)  # nobody there yet
        with running("prefetch", settings) as prefetcher:
            server.wait_for_metric(UP, 2)
            load.until_more_than(server.metric(DONE), DONE)
            prefetcher.kill()
            load.more(100)
            server.wait_for_metric(UP, 0)
        with running("prefetch", settings) as prefetcher:
            server.wait_for_metric(UP, 2)
            load.until_more_than(server.metric(DONE), DONE)
            prefetcher.signal(signal.SIGTERM)
            assert prefetcher.popen.wait(10) == 0
            load.more(50)
        prefetcher.wait_for("messages of ")
        assert not (places.folder / "socket").exists()
        assert server.metric('hopline_feature_rows_total{tier="origin",result="found"}') > 0
    assert load.num_answers >= 320


def test_workers_do_not_wait_for_a_stopped_prefetcher(places: Places) -> None:
    settings = places.settings(**SHORT_LIVED, **PATIENT)
    with running("prefetch", settings) as prefetcher, running("serve", settings) as server:
        server.wait_for_metric(UP, 1)
        with Load(places, server) as load:
            load.more(50)
            prefetcher.signal(signal.SIGSTOP)
            try:
                server.wait_for("is silent")
                load.more(4)  # those that waited
                asked, passed = [server.metric(each) for each in ASKED], server.metric(DOWN)
                load.until_more_than(passed, DOWN)
                assert [server.metric(each) for each in ASKED] == asked
            finally:
                prefetcher.signal(signal.SIGCONT)
            server.wait_for("responds again")
            load.until_more_than(server.metric(DONE), DONE)


@pytest.mark.release
def test_a_row_that_the_store_lacks_is_reported_and_not_requested_again(places: Places) -> None:
    settings = places.settings(features__groups="node=few", **PATIENT)

    async def few() -> None:
        store = open_store(places.redis.url)
        await store.open()
        await store.create(FeatureGroup("few", 6))
        await store.close()

    asyncio.run(few())
    with running("prefetch", settings), running("serve", settings) as server:
        server.wait_for_metric(UP, 1)
        answer = scores(server, [5])
        assert answer["degraded"]
        assert server.metric(DONE) > 0
        # the prefetcher asked, the worker did not ask again
        assert server.metric('hopline_feature_rows_total{tier="origin",result="missing"}') == 0


@pytest.mark.release
def test_rows_outlive_a_restart_and_another_layout_does_not_touch_them(places: Places) -> None:
    settings = places.settings()
    with running("serve", settings) as server:
        check(places, server, list(range(N)))
    with running("serve", settings) as server:
        check(places, server, list(range(N)))
        assert server.metric('hopline_feature_rows_total{tier="origin",result="found"}') == 0
        popen = spawn("prefetch", places.settings(server__workers=2))
        _, error = popen.communicate(timeout=30)
        assert popen.returncode == 1
        assert "features.shared_file" in error
        assert "server.workers is 1 in the file, 2 in this process" in error
