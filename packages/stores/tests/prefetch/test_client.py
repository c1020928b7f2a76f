"""Both ends of the socket in one loop: what is said, and what happens when one end misbehaves."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from importlib.metadata import EntryPoints

import numpy as np
import pytest

from hopline.config.reader import load_config
from hopline.errors import ConfigError
from hopline.features.l1_rows import FetchResult
from hopline.features.prefetcher import PrefetchResponse, Wanted, open_prefetcher
from hopline.observe.metrics import Metrics
from hopline.process.wire import Refusal
from hopline.sampling.keyed import NO_CUT
from hopline.service import Service
from hopline_stores.prefetch import client as client_module
from hopline_stores.prefetch import process, wire
from hopline_stores.prefetch.client import PrefetcherClient
from hopline_stores.prefetch.server import FetchCounts, PrefetchServer

N = 1000
HERE = wire.Identity("v1", (1, 2))
IDS = np.arange(3)


class Near:
    """Rows that come when they are asked for, but for those of `lost`."""

    def __init__(self) -> None:
        self.here = np.zeros(N, bool)
        self.lost = np.zeros(N, bool)
        self.asked: list[list[int]] = []
        self.delay_s = 0.0
        self.gate = asyncio.Event()
        self.gate.set()

    def probe(self, ids):
        return np.flatnonzero(~self.here[ids])

    async def fetch(self, ids, timeout_s, *, alone=False):
        self.asked.append(ids.tolist())
        await self.gate.wait()
        await asyncio.sleep(min(self.delay_s, timeout_s))
        if self.delay_s > timeout_s:
            return FetchResult(ids[:0], np.empty((0, 1)), {"timeout": len(ids)})
        found = ids[~self.lost[ids]]
        self.here[found] = True
        why = {"missing": len(ids) - len(found)} if len(found) < len(ids) else {}
        return FetchResult(found, np.empty((len(found), 1)), why)


class Neighbors:
    """The neighbourhood of v is v and the 40 after it."""

    seed_types = frozenset({"node"})

    def __init__(self, near: Near) -> None:
        self._l1_rows = near

    def lacking(self, seeds, as_of):
        ids = np.unique((seeds["node"][:, None] + np.arange(41)).ravel())
        return {"node": ids[~self._l1_rows.here[ids]]}


def wanted(*seeds: int, model: str = "m") -> Wanted:
    return Wanted(model, "1", NO_CUT, {"node": np.array(seeds)})


class Ends:
    def __init__(self, path, near: Near) -> None:
        self.path, self.near, self.metrics = path, near, Metrics()
        self.server = PrefetchServer(
            {"node": near}, {("m", "1"): Neighbors(near)}, HERE, {"node": N}, FetchCounts(Metrics())
        )
        self.link = PrefetcherClient(path, HERE, 0, 0.2, self.metrics)

    async def until(self, is_up: bool) -> None:
        for _ in range(2500):
            if self.link.is_up == is_up:
                return
            await asyncio.sleep(0.002)
        raise AssertionError(f"the link is {'not ' if is_up else ''}up")

    def count(self, outcome: str) -> int:
        line = f'hopline_prefetch_requests_total{{outcome="{outcome}"}} '
        for sample in self.metrics.render().decode().splitlines():
            if sample.startswith(line):
                return int(float(sample.rpartition(" ")[2]))
        return 0

    def ask(self, ids=IDS, about=None, timeout_s: float = 0.4):
        return asyncio.ensure_future(self.link.fetch({"node": np.asarray(ids)}, about, timeout_s))


@pytest.fixture
async def ends(tmp_path):
    found = Ends(tmp_path / "socket", Near())
    await found.server.listen(found.path)
    found.link.start()
    await found.until(True)
    yield found
    await found.link.close()
    await found.server.drain(1)


async def test_rows_are_brought(ends):
    told = await ends.ask()
    assert told == PrefetchResponse({}, "")
    assert ends.near.here[IDS].all()
    assert ends.count("done") == 1


async def test_requests_of_one_turn_of_the_loop_go_as_one_message(ends):
    await asyncio.gather(*[ends.ask([i, i + 1]) for i in range(20)])
    assert ends.near.asked == [list(range(21))]
    assert ends.server.counts.messages == 1


async def test_seeds_are_said_where_they_are_shorter_than_rows(ends):
    await ends.ask(np.arange(41), wanted(0))
    assert ends.near.asked == [list(range(41))]
    assert ends.server.counts.seeds == 1
    # most of the neighbourhood is not needed: exactly what is goes over
    await ends.ask([200, 201], wanted(200))
    assert ends.near.asked[1:] == [[200, 201]]
    assert ends.server.counts.seeds == 1


async def test_rows_that_cannot_be_had_are_reported_with_their_reason(ends):
    ends.near.lost[1] = True
    told = await ends.ask()
    assert told is not None
    assert told.lacking is not None
    assert told.lacking["node"].tolist() == [1]
    assert told.reason == "missing"


async def test_a_slow_store_is_reported_in_time_and_is_no_reason_to_give_the_prefetcher_up(ends):
    ends.near.delay_s = 60
    told = await ends.ask(timeout_s=2)
    assert told is not None
    assert told.reason == "timeout"
    assert told.lacking is not None  # the prefetcher's answer, and not the end of the worker's patience
    assert ends.link.is_up


async def test_an_unknown_model_sends_the_worker_to_fetch_by_itself(ends):
    assert await ends.ask(np.arange(41), wanted(0, model="other")) is None
    assert ends.link.is_up
    assert ends.count("problem") == 1


async def test_ids_that_are_no_nodes_are_refused_and_others_still_served(ends):
    assert await ends.ask([N]) is None
    assert await ends.ask([-1]) is None
    assert await ends.ask() is not None


async def test_a_lost_connection_sends_everybody_away_at_once_and_is_made_again(ends):
    ends.near.delay_s = 5
    asks = [ends.ask([i], timeout_s=4) for i in range(5)]
    await asyncio.sleep(0.02)
    for writer in ends.server._talks.values():
        writer.transport.abort()
    assert await asyncio.wait_for(asyncio.gather(*asks), 1) == [None] * 5
    assert ends.link.was_lost
    ends.near.delay_s = 0
    await ends.until(True)
    assert await ends.ask() is not None


async def test_while_it_is_away_nothing_waits_for_it(ends):
    await ends.server.drain(1)
    await ends.until(False)
    assert await ends.ask() is None
    assert ends.count("down") == 1


async def test_a_drain_answers_what_it_has_taken(ends):
    ends.near.delay_s = 0.1
    ask = ends.ask()
    await asyncio.sleep(0.02)
    await ends.server.drain(1)
    assert await ask == PrefetchResponse({}, "")


async def test_one_that_says_nothing_is_given_up_at_half_the_patience(ends, tmp_path, monkeypatch):
    assert client_module._SHARE == 0.25  # until the ping, and then as long again
    monkeypatch.setattr(client_module, "_SHARE", 0.0025)
    path = tmp_path / "mute"
    pongs = asyncio.Event()

    async def mute(reader, writer):
        await wire.receive(reader, wire.from_worker)
        writer.write(wire.frame(wire.Welcome()))
        await pongs.wait()
        writer.write(wire.frame(wire.Pong()))
        with contextlib.suppress(EOFError, OSError):
            await reader.read(-1)
        writer.close()

    listener = await asyncio.start_unix_server(mute, path)
    quiet = Ends(path, ends.near)
    quiet.link.start()
    await quiet.until(True)
    began = time.monotonic()
    assert await quiet.ask(timeout_s=60) is None
    assert 0.28 < time.monotonic() - began < 20
    monkeypatch.undo()
    began = time.monotonic()
    assert await quiet.ask(timeout_s=60) is None  # nobody waits a second time
    assert time.monotonic() - began < 20
    pongs.set()
    await quiet.until(True)
    await quiet.link.close()
    listener.close()
    await listener.wait_closed()


async def test_what_does_not_fit_waits_and_goes_together(ends, monkeypatch):
    monkeypatch.setattr(client_module, "_MAX_PENDING", 2)
    ends.near.gate.clear()
    asks = []
    for i in range(10):
        asks.append(ends.ask([i], timeout_s=20))
        await asyncio.sleep(0.001)
    ends.near.gate.set()
    assert all(told is not None for told in await asyncio.gather(*asks))
    assert [len(ids) for ids in ends.near.asked] == [1, 1, 8]


@pytest.mark.parametrize(
    ("identity", "why"),
    [(wire.Identity("v2", (1, 2)), "graph"), (wire.Identity("v1", (1, 3)), "shared_file")],
)
async def test_a_worker_of_another_server_is_refused(ends, identity, why):
    reader, writer = await asyncio.open_unix_connection(ends.path)
    writer.write(wire.frame(wire.Hello(wire.PROTOCOL, identity, 0)))
    answer = await wire.receive(reader, wire.from_prefetcher)
    assert isinstance(answer, Refusal)
    assert why in answer.text
    writer.close()


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        b"\x03\x00\x00\x00abc",
        wire.frame(wire.Ping()),
        wire.frame(wire.Hello(99, HERE, 0)),
    ],
)
async def test_nonsense_ends_its_own_connection_only(ends, data):
    reader, writer = await asyncio.open_unix_connection(ends.path)
    writer.write(data)
    await asyncio.wait_for(reader.read(-1), 2)
    writer.close()
    assert await ends.ask() is not None


async def test_the_socket_is_its_owners_and_a_dead_ones_is_taken_over(ends, tmp_path):
    assert ends.path.stat().st_mode & 0o077 == 0
    with pytest.raises(ConfigError, match=r"^features.prefetcher: another prefetcher"):
        await Ends(ends.path, ends.near).server.listen(ends.path)
    left = tmp_path / "left"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(left))
    other = Ends(left, ends.near)
    await other.server.listen(left)
    await other.server.drain(1)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match=r"^features.prefetcher: .* no socket"):
        await other.server.listen(tmp_path / "file")
    with pytest.raises(ConfigError, match=r"^features.prefetcher: cannot listen"):
        await other.server.listen(tmp_path / ("x" * 200))


@pytest.mark.parametrize("name", ["store", "shared_file", "prefetcher"])
def test_a_prefetcher_without_a_setting_that_it_needs_names_it(tmp_path, name):
    given = {"store": "memory:", "shared_file": tmp_path / "rows", "prefetcher": tmp_path / "socket"}
    given[name] = ""
    config = load_config(overrides={f"features.{key}": value for key, value in given.items()})
    with pytest.raises(ConfigError, match=rf"^features.{name}: not set"):
        process.run(config, [])


async def test_a_server_with_a_prefetcher_but_no_shared_file_names_the_setting(packaged, tmp_path):
    graph, models, _ = packaged
    settings = {
        "graph.path": graph,
        "models.repository": models,
        "features.store": "memory:",
        "features.prefetcher": tmp_path / "socket",
    }
    service = Service(load_config(overrides=settings))
    with pytest.raises(ConfigError, match=r"^features.prefetcher: set features.shared_file"):
        await service.start()
    await service.close()


def test_without_the_package_the_error_names_the_command_that_installs_it(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: EntryPoints())
    with pytest.raises(ConfigError, match=r"features\.prefetcher: .*pip install 'hopline\[redis\]'"):
        open_prefetcher(tmp_path / "p.sock", "a", (1, 2), load_config(), Metrics())
