"""Hosts that share a Redis: one state, decisions from the counts of all, and what a cut link leaves."""

import asyncio
import re
import signal
from dataclasses import dataclass, field
from typing import Any

import pytest

from hopline.errors import HoplineError, StoreUnavailable
from hopline.rollout.gates import Gates
from hopline.rollout.rollout import RolloutRequest
from hopline.rollout.store import fleet as fleet_module
from hopline.types import ScoreRequest
from tests import loaded_units_rig as rig
from tests.redis_servers import redis_process
from tests.rollout.fleet_rig import Link
from tests.rollout.stub_workers import MODEL, Host, Worker, quick, quick_redis

LOOSE = Gates(min_requests=10**6, max_disagreement=1, max_psi=1e6, max_p99_ratio=1e6, max_p50_ratio=1e6)
CANARY = RolloutRequest(MODEL, "2", steps=(50.0, 100.0), min_step_s=1e6, preflight=0, gates=LOOSE)


@pytest.fixture
def server():
    with redis_process() as running:
        yield running
        running.signal(signal.SIGCONT)


@dataclass
class Fleet:
    """Hosts of one worker each; each has a link of its own to the store."""

    server: Any
    folder: Any
    versions: list[str] = field(default_factory=lambda: ["1"])
    hosts: list[Any] = field(default_factory=list)
    links: list[Any] = field(default_factory=list)
    stores: list[Host] = field(default_factory=list)

    async def add(self, graph: str = "g") -> Worker:
        link = await Link(self.server.port).start()
        self.links.append(link)
        number = len(self.links)
        folder = self.folder / str(number)
        folder.mkdir()
        host = Host(folder, self.versions, f"redis://127.0.0.1:{link.port}/0?prefix=t:")
        host.graph = graph
        worker = Worker(host, 0, 1)
        self.hosts.append(worker)
        await worker.lifecycle.start()
        return worker

    async def close(self) -> None:
        for link in self.links:
            link.mend()
        for worker in self.hosts:
            await worker.lifecycle.close()
        for link in self.links:
            await link.close()


@pytest.fixture
async def fleet(server, tmp_path, monkeypatch):
    quick(monkeypatch.setattr)
    quick_redis(monkeypatch.setattr)
    made = Fleet(server, tmp_path)
    yield made
    server.signal(signal.SIGCONT)
    await made.close()


def is_up(worker):
    return worker.lifecycle.describe(MODEL)["store"]["up"]


async def test_a_fresh_host_takes_up_what_the_fleet_serves_and_not_the_newest(fleet):
    first = await fleet.add()
    fleet.versions[:] = ["1", "2", "3"]
    await first.lifecycle.load(MODEL, "2")
    await first.lifecycle.decide(MODEL, "rollback")
    fresh = await fleet.add()
    assert fresh.answers(40) == {"1"}
    assert fresh.view() == first.view()


async def test_a_rollout_and_its_end_hold_on_every_host_when_the_call_returns(fleet):
    first, second = await fleet.add(), await fleet.add()
    fleet.versions[:] = ["1", "2"]
    await first.lifecycle.begin(CANARY)
    third = await fleet.add()
    for worker in (first, second, third):
        assert worker.answers(64) == {"1", "2"}
    await second.lifecycle.decide(MODEL, "rollback")
    for worker in (first, second, third):
        assert worker.answers(64) == {"1"}


async def test_hosts_with_another_graph_are_reported_by_all_until_they_are_gone(fleet, monkeypatch, caplog):
    """Their answers differ under one name."""
    monkeypatch.setattr("hopline.rollout.shared_state._COMPARE_S", 0.0)
    first, same, other = await fleet.add("g+7"), await fleet.add("g"), await fleet.add("h")

    def told(worker):
        return worker.lifecycle.describe(MODEL)["store"]["differing"].get(f"{MODEL}/1", "")

    def differs(worker):
        text = worker.metrics.render().decode()
        name = rf'hopline_fleet_version_differs{{model="{MODEL}",version="1"}}'
        return int(re.search(rf"{name} (\d)", text)[1])

    await rig.until(lambda: all(told(each) for each in (first, same, other)))
    assert first.lifecycle.differing == {f"{MODEL}/1": told(first)}
    assert told(first).startswith("this worker has graph g, artifact a; ")
    assert told(first).count("graph h") == told(first).count("graph g") == 1
    assert told(other).count("graph g") == 2
    assert differs(first) == differs(other) == 1
    assert any("is not the same in all workers" in record.getMessage() for record in caplog.records)
    fleet.hosts.remove(other)
    await other.lifecycle.close()
    await rig.until(lambda: not told(first) and not told(same))
    assert differs(first) == 0


async def test_a_version_that_one_host_cannot_load_is_begun_on_none(fleet):
    first, second = await fleet.add(), await fleet.add()
    fleet.versions[:] = ["1", "2"]
    second._host.broken = {"2": {0}}
    with pytest.raises(HoplineError, match=r"by every worker: .*2 is broken here"):
        await first.lifecycle.begin(CANARY)
    for worker in (first, second):
        await rig.until(lambda worker=worker: worker.view()["loaded"] == worker.ready() == {"1"})


async def test_a_host_that_is_cut_off_gives_no_caller_the_candidate_after_the_lease(fleet):
    first, second = await fleet.add(), await fleet.add()
    fleet.versions[:] = ["1", "2"]
    await first.lifecycle.begin(CANARY)
    fleet.links[1].cut()
    await rig.until(lambda: second.answers(64) == {"1"})
    assert not is_up(second)
    assert second.lifecycle.describe(MODEL)["rollout"]["status"] == "running"  # as far as it knows
    assert first.answers(64) == {"1", "2"}
    fleet.links[1].mend()
    await rig.until(lambda: second.answers(64) == {"1", "2"})


async def test_a_rollback_reaches_a_host_that_was_cut_off_when_it_is_back(fleet):
    first, second = await fleet.add(), await fleet.add()
    fleet.versions[:] = ["1", "2"]
    await first.lifecycle.begin(CANARY)
    fleet.links[1].cut()
    async with asyncio.timeout(10):  # it does not wait for a host that is not there
        await first.lifecycle.decide(MODEL, "rollback")
    assert first.answers(64) == {"1"}
    await rig.until(lambda: not is_up(second))
    for _ in range(20):
        assert second.answers(16) == {"1"}
    fleet.links[1].mend()
    await rig.until(lambda: second.view() == first.view())
    assert second.answers(64) == {"1"}


async def test_without_the_store_requests_are_served_and_nothing_can_be_changed(fleet, server):
    first, second = await fleet.add(), await fleet.add()
    fleet.versions[:] = ["1", "2"]
    await first.lifecycle.begin(CANARY)
    server.signal(signal.SIGSTOP)
    await rig.until(lambda: not is_up(first) and not is_up(second))
    for worker in (first, second):
        assert worker.answers(16) == {"1"}
        for change in (
            worker.lifecycle.decide(MODEL, "promote"),
            worker.lifecycle.load(MODEL, "1"),
            worker.lifecycle.unload(MODEL, "2"),
        ):
            with pytest.raises(StoreUnavailable, match="requests are served meanwhile"):
                await change
    server.signal(signal.SIGCONT)
    await rig.until(lambda: first.answers(64) == second.answers(64) == {"1", "2"})
    await first.lifecycle.decide(MODEL, "promote")
    assert first.answers(64) == second.answers(64) == {"2"}


async def test_a_store_that_starts_anew_without_its_data_has_the_state_again(fleet, server):
    first, second = await fleet.add(), await fleet.add()
    fleet.versions[:] = ["1", "2", "3"]
    await first.lifecycle.load(MODEL, "2")
    before = first.view()
    server.kill()
    await rig.until(lambda: not is_up(first) and not is_up(second))
    server.start()
    await rig.until(lambda: is_up(first) and is_up(second))
    assert first.view() == second.view() == before
    fresh = await fleet.add()
    assert fresh.view() == before
    await second.lifecycle.load(MODEL, "3")
    assert first.answers() == fresh.answers() == {"3"}


async def test_a_host_that_cannot_read_what_the_fleet_serves_does_not_start(fleet, server, monkeypatch):
    monkeypatch.setattr(fleet_module, "_START_S", 0.1)
    await fleet.add()
    server.signal(signal.SIGSTOP)
    with pytest.raises(StoreUnavailable, match="does not know what its fleet serves"):
        await fleet.add()
    fleet.hosts.pop()


async def test_counts_of_all_hosts_are_judged_together(root, server, monkeypatch):
    """Two failures are no proof that more than one in a hundred fails; four are."""
    quick_redis(monkeypatch.setattr)
    faults = rig.Faults(monkeypatch)
    faults.of["3"] = "errors"
    state = {"models.state": f"{server.url}/0?prefix=t:"}
    services = [await rig.started(root, **state) for _ in range(2)]
    rig.publish(root, "3")
    canary = RolloutRequest("sage", "3", steps=(50.0, 100.0), preflight=0, min_step_s=1e6, gates=LOOSE)
    await services[0].begin_rollout(canary)

    async def fail_twice(service):
        failed = 0
        while True:
            try:
                await service.score(ScoreRequest("sage", nodes=["n1"]))
            except HoplineError:
                failed += 1
                if failed == 2:
                    return

    def rollout():
        return services[1].describe_rollout("sage")["rollout"]

    await fail_twice(services[0])
    await rig.until(lambda: rollout()["seen"]["candidate"]["errors"] == 2)
    assert rollout()["verdict"] == "wait"
    await fail_twice(services[1])
    await rig.until(lambda: all(service.describe_rollout("sage")["past"] for service in services))
    for service in services:
        (past,) = service.describe_rollout("sage")["past"]
        assert past["status"] == "rolled_back"
        assert "4 of 4 requests failed" in past["reason"]
        assert await rig.version_of(service) == "1"
    for service in services:
        await rig.stop(service)
