"""One state for all workers: decisions on the newest one, and what a change that is refused leaves."""

import asyncio
import contextlib
import json
import shutil
import threading

import pytest

from hopline.errors import Conflict, HoplineError, ModelNotFound, StoreUnavailable
from hopline.rollout.gates import Gates
from hopline.rollout.rollout import RolloutRequest
from hopline.service import Service
from tests import loaded_units_rig as rig
from tests.rollout.stub_workers import MODEL, Host, Worker, quick

PATIENCE_S = 10.0


def in_file(root):
    """What the file says of the model, read as a person would."""
    text = (root / "models" / ".hopline" / "lifecycle.json").read_text()
    return json.loads(text.partition("\n")[2])["models"]["sage"]


async def outcomes(*calls):
    async with asyncio.timeout(PATIENCE_S):  # a worker that does not follow is waited for 120 s
        return await asyncio.gather(*calls, return_exceptions=True)


async def answering(worker, count=40):
    return {await rig.version_of(worker) for _ in range(count)}


def canary(version="3"):
    loose = Gates(min_requests=10**6, max_disagreement=1, max_psi=1e6, max_p99_ratio=1e6, max_p50_ratio=1e6)
    return RolloutRequest("sage", version, steps=(50.0, 100.0), min_step_s=600, preflight=0, gates=loose)


async def test_a_rollback_sent_to_all_workers_at_once_takes_the_candidate_from_all(root, workers):
    rig.publish(root, "3")
    await workers[0].begin_rollout(canary())
    for worker in workers:
        assert await answering(worker) == {"1", "3"}
    found = await outcomes(*[worker.decide_rollout("sage", "rollback") for worker in workers])
    assert sorted(type(each).__name__ for each in found) == ["Conflict", "dict"]
    for worker in workers:
        assert await answering(worker) == {"1"}
        assert worker.describe_rollout("sage")["rollout"] is None


async def test_a_change_that_is_refused_leaves_its_worker_following(root, workers):
    rig.publish(root, "2")
    for _ in range(3):
        found = await outcomes(
            workers[0].load("sage", "2"), workers[1].unload("sage", "2"), workers[0].unload("sage", "9")
        )
        assert all(each is None or isinstance(each, str | Conflict | ModelNotFound) for each in found)
        await outcomes(workers[1].load("sage", "1"))
        for worker in workers:
            assert await answering(worker, 3) == {"1"}
            assert worker.describe_rollout("sage")["units"] == workers[0].describe_rollout("sage")["units"]


async def test_a_rollback_that_is_repeated_does_not_go_back_further(root, workers):
    rig.publish(root, "2")
    rig.publish(root, "3")
    first, second = workers
    await first.load("sage", "2")  # 1 served before
    await first.begin_rollout(canary())
    await first.decide_rollout("sage", "rollback")
    with pytest.raises(Conflict, match="rolled back already, and 2 serves"):
        await second.decide_rollout("sage", "rollback")
    assert await answering(second) == {"2"}


@pytest.mark.parametrize("over", ["rollback", "promote"])
async def test_a_load_can_be_rolled_back_whatever_became_of_an_earlier_rollout(root, workers, over):
    rig.publish(root, "2")
    rig.publish(root, "3")
    first, second = workers
    await first.begin_rollout(canary())
    await first.decide_rollout("sage", over)
    await first.load("sage", "2")
    await first.load("sage", "1")  # what served when the rollout ended
    assert (await second.decide_rollout("sage", "rollback"))["serving"] == "2"
    with pytest.raises(Conflict, match="no version of sage served before 2"):
        await first.decide_rollout("sage", "rollback")
    assert await answering(second) == {"2"}


async def test_going_back_after_a_switch_happens_once(root, workers):
    rig.publish(root, "2")
    first, second = workers
    await first.load("sage", "2")
    found = await outcomes(*[worker.decide_rollout("sage", "rollback") for worker in (*workers, second)])
    assert sorted(type(each).__name__ for each in found) == ["Conflict", "Conflict", "dict"]
    for worker in workers:
        assert await answering(worker, 3) == {"1"}


@pytest.mark.parametrize("verb", ["load", "begin"])
async def test_a_model_is_unloaded_whatever_another_worker_adds_meanwhile(root, workers, verb):
    rig.publish(root, "2")
    first, second = workers
    second._lifecycle._task.cancel()  # it has not looked at the file since
    adding = first.load("sage", "2") if verb == "load" else first.begin_rollout(canary("2"))
    loading = asyncio.ensure_future(adding)
    await rig.until(lambda: (root / "models" / ".hopline" / "lifecycle.json").exists())
    unloading = asyncio.ensure_future(second.unload("sage"))
    await asyncio.sleep(0)  # it has begun, on what it knows
    second._lifecycle._task = asyncio.ensure_future(second._lifecycle._follow())
    await outcomes(unloading, loading)
    left = in_file(root)
    assert not left.get("units") or left.get("serving"), left
    if left.get("units"):
        for worker in workers:
            assert await answering(worker, 3) == {left["serving"]}


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(4))
async def test_loads_and_unloads_from_several_callers_leave_one_state(root, workers, seed):
    rig.publish(root, "2")
    first, second = workers if seed % 2 else reversed(workers)
    for _ in range(3):
        found = await outcomes(
            first.load("sage", "2"),
            second.unload("sage"),
            second.load("sage", "1"),
            first.unload("sage", "1"),
        )
        for each in found:
            assert not isinstance(each, BaseException) or isinstance(each, HoplineError), repr(each)
        await outcomes(second.load("sage", "1"))  # one more, so that both have followed
        left = in_file(root)
        assert left["serving"] == "1"
        for worker in workers:
            assert await answering(worker, 3) == {"1"}
            assert sorted(worker.describe("sage").versions) == sorted(u["version"] for u in left["units"])


async def test_nobody_waits_for_another_models_load_to_roll_back(root, workers, monkeypatch):
    rig.publish(root, "2")
    rig.publish(root, "3")
    await workers[0].begin_rollout(canary())
    gate = rig.Gate(monkeypatch, "2", workers={1})
    monkeypatch.setattr("hopline.rollout.changes.check_no_rollout", lambda state, model: None)
    loading = asyncio.ensure_future(workers[0].load("sage", "2", serve=False))
    await rig.until(lambda: gate.held)  # the other worker loads, for as long as it takes
    async with asyncio.timeout(PATIENCE_S):
        await workers[0].decide_rollout("sage", "rollback")
    assert await answering(workers[1]) == {"1"}
    gate.open()
    await loading


async def test_a_worker_that_starts_anew_has_what_was_loaded_since_the_server_started(root, workers):
    shutil.copytree(root / "models" / "sage" / "1", root / "models" / "later" / "1")
    file = root / "models" / "later" / "1" / "model.json"
    file.write_text(file.read_text().replace('"name": "sage"', '"name": "later"'))
    await workers[0].load("later")
    config = workers[1].config
    await rig.stop(workers.pop())
    workers.append(Service(config))
    await workers[1].start()
    assert workers[1].describe("later").versions == ("1",)


async def test_a_damaged_state_refuses_changes_until_it_is_moved_away(root, workers, caplog):
    """Callers get the current version, none the candidate, and one line in the log says why."""
    rig.publish(root, "2")
    rig.publish(root, "3")
    first, second = workers
    await first.load("sage", "2")
    await first.begin_rollout(canary())
    file = root / "models" / ".hopline" / "lifecycle.json"
    damaged = root / "damaged.json"
    damaged.write_bytes(file.read_bytes()[:-3])
    damaged.replace(file)
    async with asyncio.timeout(PATIENCE_S):
        while await answering(first) | await answering(second) != {"2"}:
            pass
    for worker in workers:
        with pytest.raises(StoreUnavailable, match=r"lifecycle.json is damaged .*move it away"):
            await worker.decide_rollout("sage", "rollback")
    async with asyncio.timeout(PATIENCE_S):  # a worker reports it when it next looks at the state
        while sum(each.levelname == "ERROR" for each in caplog.records) < len(workers):
            for worker in workers:
                await answering(worker)
    assert sum(each.levelname == "ERROR" for each in caplog.records) == len(workers)
    file.unlink()
    async with asyncio.timeout(PATIENCE_S):
        while not file.exists():
            await answering(first, 1)
    async with asyncio.timeout(PATIENCE_S):
        while True:  # the other worker looks again soon
            with contextlib.suppress(StoreUnavailable):
                await second.decide_rollout("sage", "rollback")
                break
            await answering(second, 1)
    assert await answering(first) == await answering(second) == {"2"}


async def test_models_that_the_settings_leave_out_stay_out_whatever_changes(root):
    shutil.copytree(root / "models" / "sage" / "1", root / "models" / "other" / "1")
    file = root / "models" / "other" / "1" / "model.json"
    file.write_text(file.read_text().replace('"name": "sage"', '"name": "other"'))
    service = await rig.started(root)
    rig.publish(root, "2")
    await service.load("other", "1")
    await rig.stop(service)
    service = await rig.started(root, **{"models.names": ["sage"]})
    await service.load("sage", "2")
    assert service.model_names() == ("sage",)
    await service.load("other", "1")  # until somebody asks for it
    assert sorted(service.model_names()) == ["other", "sage"]
    await rig.stop(service)


async def test_another_change_does_not_hide_that_a_worker_cannot_load_a_version(tmp_path, monkeypatch):
    """That change has workers try again what failed; until they have, it has failed."""
    quick(monkeypatch.setattr)
    host = Host(tmp_path, ["1"])
    asyncio.get_running_loop().set_task_factory(host.make_task)
    first, second = [Worker(host, index, 2) for index in range(2)]
    for worker in (first, second):
        await worker.run(worker.lifecycle.start)
    host.versions, host.broken = ["1", "3", "5"], {"5": {1}}
    # The first worker looks at what the second one says only after the other change was made.
    may_look, fleet = threading.Event(), first.lifecycle._state.fleet
    read = fleet.acknowledgements
    monkeypatch.setattr(fleet, "acknowledgements", lambda: read() if may_look.wait(PATIENCE_S) else {})
    beginning = asyncio.ensure_future(first.run(lambda: first.lifecycle.load(MODEL, "5")))
    await rig.until(lambda: (MODEL, "5") in second.lifecycle.loaded.failed)
    host.turns = 20_000  # trying again takes long
    loading = asyncio.ensure_future(second.run(lambda: second.lifecycle.load(MODEL, "3", serve=False)))
    await rig.until(lambda: "3" in second.lifecycle.loaded.model(MODEL).wanted)
    may_look.set()
    try:
        with pytest.raises(HoplineError, match=r"by every worker: .*5 is broken here"):
            await beginning
        await loading
        await rig.until(lambda: all(worker.answers(8) == {"1"} for worker in (first, second)))
    finally:
        for worker in (first, second):
            await worker.lifecycle.close()
