"""Versions that come and go while requests are answered, in one worker and in two."""

import asyncio
import gc
import json
import re
import shutil
import weakref

import pytest

from hopline.errors import (
    ArtifactCorrupted,
    BadRequest,
    ConfigError,
    Conflict,
    HoplineError,
    ModelNotFound,
    ModelNotReady,
    StoreUnavailable,
)
from hopline.rollout.gates import Gates
from hopline.rollout.rollout import RolloutRequest
from hopline.types import ScoreRequest
from tests import loaded_units_rig as rig
from tests.engine import zoo


async def ask(service, count, **kwargs):
    """Versions that answered, and errors."""
    answers = await asyncio.gather(
        *[
            service.score(ScoreRequest("sage", nodes=[f"n{i % zoo.N}"], request_id=str(i), **kwargs))
            for i in range(count)
        ],
        return_exceptions=True,
    )
    return [getattr(answer, "version", answer) for answer in answers]


class Traffic:
    """Requests without pause in the background; every one must be answered once."""

    def __init__(self, service, at_once=8, **kwargs):
        self.versions = []
        self.errors = []
        self._service = service
        self._kwargs = kwargs
        self._running = True
        self._tasks = [asyncio.ensure_future(self._ask()) for _ in range(at_once)]

    async def _ask(self):
        number = 0
        while self._running:
            number += 1
            try:
                self.versions.append(
                    (await self._service.score(ScoreRequest("sage", nodes=[f"n{number % zoo.N}"]))).version
                )
            except HoplineError as error:
                self.errors.append(error)
            await asyncio.sleep(0)

    async def end(self):
        self._running = False
        await asyncio.gather(*self._tasks)


async def test_a_version_is_loaded_and_serves_without_a_lost_request(root):
    service = await rig.started(root)
    traffic = Traffic(service)
    rig.publish(root, "2")
    assert await service.load("sage") == "2"
    assert await rig.version_of(service) == "2"
    assert await rig.version_of(service, version="1") == "1"
    await service.unload("sage", "1")
    with pytest.raises(ModelNotFound, match="there are: 2"):
        await rig.version_of(service, version="1")
    await asyncio.sleep(0.05)
    await traffic.end()
    assert traffic.errors == []
    assert set(traffic.versions) == {"1", "2"}
    assert traffic.versions == sorted(traffic.versions)  # never back
    await rig.stop(service)


async def test_a_version_can_be_loaded_without_serving(root):
    service = await rig.started(root)
    rig.publish(root, "2")
    await service.load("sage", "2", serve=False)
    assert await rig.version_of(service) == "1"
    assert await rig.version_of(service, version="2") == "2"
    assert {row["version"]: row["state"] for row in service.index()} == {"1": "READY", "2": "READY"}
    await rig.stop(service)


async def test_a_version_that_fails_its_checks_changes_nothing_and_says_why(root):
    service = await rig.started(root)
    rig.publish(root, "2")
    file = next((root / "models" / "sage" / "2" / "layers").glob("*.onnx"))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ArtifactCorrupted, match=file.name):
        await service.load("sage", "2")
    with pytest.raises(ArtifactCorrupted):
        await service.begin_rollout(RolloutRequest("sage", "2"))
    assert await rig.version_of(service) == "1"
    assert service.describe("sage").versions == ("1",)
    assert service.describe_rollout("sage")["rollout"] is None
    await rig.stop(service)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda s: s.load("nobody"), ModelNotFound, "there are: sage"),
        (lambda s: s.load("sage", "9"), ModelNotFound, "there are: 1"),
        (lambda s: s.load("../../etc"), BadRequest, "is not a name"),
        (lambda s: s.load("sage", graph="/nowhere"), BadRequest, "not a folder"),
        (lambda s: s.unload("sage", "7"), ModelNotFound, "there are: 1"),
        (lambda s: s.unload("nobody"), ModelNotFound, "there are: sage"),
        (lambda s: s.decide_rollout("sage", "promote"), Conflict, "no rollout of sage is under way"),
        (lambda s: s.decide_rollout("sage", "rollback"), Conflict, "no version of sage served before"),
        (lambda s: s.decide_rollout("sage", "dance"), BadRequest, "promote, rollback"),
        (lambda s: s.begin_rollout(RolloutRequest("sage", "1")), Conflict, "serves already"),
        (lambda s: s.begin_rollout(RolloutRequest("sage", "2", steps=(50, 5))), BadRequest, "that grow"),
        (
            lambda s: s.begin_rollout(RolloutRequest("sage", "2", gates=Gates(max_p99_ratio=0.5))),
            BadRequest,
            "max_p99_ratio",
        ),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(root, call, kind, text):
    service = await rig.started(root)
    with pytest.raises(kind, match=text):
        await call(service)
    assert await rig.version_of(service) == "1"
    await rig.stop(service)


async def test_a_whole_model_is_unloaded_and_comes_back(root):
    service = await rig.started(root)
    await service.unload("sage")
    with pytest.raises(ModelNotFound, match="no model 'sage'"):
        await rig.version_of(service)
    assert [row["state"] for row in service.index()] == ["UNAVAILABLE"]
    await service.load("sage")
    assert await rig.version_of(service) == "1"
    await rig.stop(service)


async def test_what_was_unloaded_gives_its_memory_back(root):
    rig.publish(root, "2")
    service = await rig.started(root)
    gc.collect()
    gc.freeze()  # as a server does once it is ready: no collector looks at what was loaded by then
    await service.score(ScoreRequest("sage", nodes=["n1"], version="1"))
    model = weakref.ref(service._lifecycle.loaded.units["sage"]["1"].computer.model)
    await service.unload("sage", "1")
    await rig.until(lambda: model() is None, 60)
    await rig.stop(service)


async def test_the_version_that_serves_is_not_unloaded_beside_others(root):
    rig.publish(root, "2")
    service = await rig.started(root)
    with pytest.raises(Conflict, match="let another serve first"):
        await service.unload("sage", "2")
    await rig.stop(service)


async def test_what_was_requested_survives_a_restart(root):
    rig.publish(root, "2")
    service = await rig.started(root)
    assert await rig.version_of(service) == "2"
    await service.load("sage", "1")
    await rig.stop(service)
    service = await rig.started(root)
    assert await rig.version_of(service) == "1"
    described = await service.decide_rollout("sage", "rollback")
    assert described["serving"] == "2"
    await rig.stop(service)


async def test_a_damaged_state_file_is_reported_and_not_guessed_at(root):
    service = await rig.started(root)
    rig.publish(root, "2")
    await service.load("sage")
    await rig.stop(service)
    file = root / "models" / ".hopline" / "lifecycle.json"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(ConfigError, match="checksum"):
        await rig.started(root)


async def test_a_state_that_cannot_be_written_changes_nothing(root, monkeypatch):
    service = await rig.started(root)
    rig.publish(root, "2")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hopline.files.os.fsync", full)
    with pytest.raises(StoreUnavailable, match=r"nothing was changed: .*No space left"):
        await service.load("sage")
    assert await rig.version_of(service) == "1"
    await rig.stop(service)


async def test_a_canary_goes_through_its_steps_and_is_promoted(root):
    service = await rig.started(root)
    rig.publish(root, "3")
    traffic = Traffic(service)
    gates = Gates(min_requests=20, max_p99_ratio=100, max_p50_ratio=100)
    rollout = await service.begin_rollout(RolloutRequest("sage", "3", min_step_s=0.1, gates=gates))
    assert rollout.percent == 0
    with pytest.raises(Conflict, match="under way"):
        await service.begin_rollout(RolloutRequest("sage", "3"))
    with pytest.raises(Conflict, match="promote it or roll it back"):
        await service.load("sage", "3")
    await rig.until(lambda: service.describe_rollout("sage")["serving"] == "3")
    await traffic.end()
    (past,) = service.describe_rollout("sage")["past"]
    assert past["status"] == "promoted"
    texts = " | ".join(event["text"] for event in past["events"])
    assert [f"{percent} % of requests" in texts for percent in (5, 25, 50, 100)] == [True] * 4
    assert "pre-flight with 100 copies" in texts
    assert traffic.errors == []
    assert (await ask(service, 20)) == ["3"] * 20
    assert (
        b'hopline_rollouts_total{model="sage",kind="canary",outcome="promoted"} 1'
        in service.metrics.render()
    )
    # the version before stays loaded: going back is a switch
    await service.decide_rollout("sage", "rollback")
    assert await rig.version_of(service) == "1"
    await rig.stop(service)


@pytest.mark.sample(2)
@pytest.mark.parametrize("preflight", [0, 100])
@pytest.mark.parametrize(
    ("fault", "reason"), [("errors", "error rate"), ("shifted", "disagreement|outputs shifted")]
)
async def test_a_broken_candidate_is_rolled_back_by_its_gate(root, monkeypatch, fault, reason, preflight):
    faults = rig.Faults(monkeypatch)
    faults.of["3"] = fault
    service = await rig.started(root)
    rig.publish(root, "3")
    traffic = Traffic(service)
    gates = Gates(max_p99_ratio=100, max_p50_ratio=100)
    asked = RolloutRequest(
        "sage", "3", min_step_s=60, gates=gates, steps=(20.0, 100.0), preflight=preflight
    )
    await service.begin_rollout(asked)
    await rig.until(lambda: service.describe_rollout("sage")["past"])
    harmed = len(traffic.errors)
    await traffic.end()
    (past,) = service.describe_rollout("sage")["past"]
    assert past["status"] == "rolled_back"
    assert any(part in past["reason"] for part in reason.split("|"))
    assert len(traffic.errors) <= harmed + 8  # those under way
    if preflight:  # it never answered a caller
        assert traffic.errors == []
        assert set(traffic.versions) == {"1"}
    assert await ask(service, 20) == ["1"] * 20
    await rig.stop(service)


async def test_requests_of_one_key_stay_with_their_version(root):
    rig.publish(root, "2")
    service = await rig.started(root)
    await service.load("sage", "1")
    asked = RolloutRequest("sage", "2", kind="ab", steps=(30.0,))
    await service.begin_rollout(asked)
    seen = {}
    for _ in range(3):
        for i in range(200):
            seen.setdefault(i, set()).add(await rig.version_of(service, key=f"user-{i}"))
    assert all(len(versions) == 1 for versions in seen.values())
    share = sum("2" in versions for versions in seen.values()) / len(seen)
    assert 0.18 <= share <= 0.42
    described = service.describe_rollout("sage")["rollout"]
    assert described["seen"]["candidate"]["requests"] == pytest.approx(3 * share * 200)
    await service.decide_rollout("sage", "promote", "it sells more")
    assert await ask(service, 10) == ["2"] * 10
    await rig.stop(service)


async def test_pause_holds_and_resume_goes_on(root):
    service = await rig.started(root)
    rig.publish(root, "3")
    gates = Gates(min_requests=5, max_p99_ratio=100, max_p50_ratio=100)
    await service.begin_rollout(
        RolloutRequest("sage", "3", min_step_s=0.0, steps=(50.0, 100.0), gates=gates, preflight=0)
    )
    paused = await service.decide_rollout("sage", "pause")
    assert paused["rollout"]["status"] == "paused"
    await ask(service, 60)
    await asyncio.sleep(0.6)
    assert service.describe_rollout("sage")["rollout"]["step"] == 0
    await service.decide_rollout("sage", "resume")
    traffic = Traffic(service)
    await rig.until(lambda: service.describe_rollout("sage")["serving"] == "3")
    await traffic.end()
    await rig.stop(service)


async def test_an_interrupted_rollout_is_taken_up_again(root):
    service = await rig.started(root)
    rig.publish(root, "3")
    await service.begin_rollout(
        RolloutRequest("sage", "3", steps=(50.0, 100.0), min_step_s=60, preflight=0)
    )
    await rig.stop(service)
    service = await rig.started(root)
    rollout = service.describe_rollout("sage")["rollout"]
    assert rollout["candidate"] == "3"
    assert set(await ask(service, 60)) == {"1", "3"}
    await service.decide_rollout("sage", "promote")
    assert await rig.version_of(service) == "3"
    await rig.stop(service)


async def test_an_interrupted_rollout_whose_candidate_is_gone_is_rolled_back(root):
    service = await rig.started(root)
    rig.publish(root, "3")
    await service.begin_rollout(
        RolloutRequest("sage", "3", steps=(50.0, 100.0), min_step_s=60, preflight=0)
    )
    await rig.stop(service)
    shutil.rmtree(root / "models" / "sage" / "3")
    service = await rig.started(root)
    described = service.describe_rollout("sage")
    assert described["rollout"] is None
    assert described["past"][0]["status"] == "rolled_back"
    assert "could not be loaded" in described["past"][0]["reason"]
    assert await ask(service, 20) == ["1"] * 20
    await rig.stop(service)


async def test_the_same_version_on_a_new_graph_is_a_unit_of_its_own(root):
    zoo.homogeneous(2).save(root / "later")
    service = await rig.started(root)
    asked = RolloutRequest(
        "sage",
        "1",
        kind="blue_green",
        graph=str(root / "later"),
        gates=Gates(max_disagreement=1, max_psi=1e9),
        preflight=0,
    )
    rollout = await service.begin_rollout(asked)
    assert rollout.candidate.startswith("1@")
    result = await service.score(ScoreRequest("sage", nodes=["n1"]))
    old = await service.score(ScoreRequest("sage", nodes=["n1"], version="1"))
    assert result.version == rollout.candidate
    assert result.graph_version != old.graph_version
    await service.decide_rollout("sage", "rollback")
    assert (await service.score(ScoreRequest("sage", nodes=["n1"]))).graph_version == old.graph_version
    await rig.stop(service)


# a shadow computes only where a processor has nothing else to do
@pytest.mark.quiet
async def test_a_shadow_gets_copies_in_a_process_of_its_own_and_answers_nobody(root):
    rig.publish(root, "2")
    rig.publish(root, "3")
    service = await rig.started(root)
    await service.load("sage", "1")
    traffic = Traffic(service, at_once=2)
    loose = Gates(max_disagreement=1, max_psi=1e9, max_p99_ratio=1e6)
    rollout = await service.begin_rollout(RolloutRequest("sage", "3", kind="shadow", gates=loose))
    assert rollout.candidate == "3+shadow"
    assert (
        b'hopline_model_process_memory_bytes{model="sage",version="3+shadow"}' in service.metrics.render()
    )
    seen = lambda: service.describe_rollout("sage")["rollout"]["seen"]["candidate"]  # noqa: E731
    await rig.until(lambda: seen()["compared"] > 50)
    assert seen()["differing"] == 0
    assert seen()["requests"] > 0
    with pytest.raises(Conflict, match="cannot be promoted"):
        await service.decide_rollout("sage", "promote")
    await service.decide_rollout("sage", "end")
    await traffic.end()
    assert set(traffic.versions) == {"1"}
    assert traffic.errors == []
    assert "3+shadow" not in service.describe("sage").versions
    await rig.stop(service)


# a shadow computes only where a processor has nothing else to do
@pytest.mark.quiet
async def test_a_shadow_with_other_answers_is_found_out(root):
    rig.publish(root, "2")
    service = await rig.started(root)
    await service.load("sage", "1")
    traffic = Traffic(service, at_once=2)
    await service.begin_rollout(RolloutRequest("sage", "2", kind="shadow"))
    await rig.until(lambda: service.describe_rollout("sage")["past"])
    await traffic.end()
    assert service.describe_rollout("sage")["past"][0]["reason"].startswith("disagreement")
    assert set(traffic.versions) == {"1"}
    assert traffic.errors == []
    await rig.stop(service)


async def test_a_model_in_a_process_of_its_own_answers_the_same(root):
    service = await rig.started(root)
    inside = await service.score(ScoreRequest("sage", nodes=["n1", "n2"]))
    await rig.stop(service)
    (root / "models" / "sage" / "serving.toml").write_text('isolate = true\nmemory_bytes = "2 GiB"\n')
    service = await rig.started(root)
    apart = await service.score(ScoreRequest("sage", nodes=["n1", "n2"]))
    assert apart.version == inside.version
    assert (apart.outputs["probabilities"] == inside.outputs["probabilities"]).all()
    await rig.stop(service)


async def test_cached_answers_are_the_same_and_are_not_another_versions(root):
    (root / "models" / "sage" / "serving.toml").write_text('cache_bytes = "1 MiB"\n')
    service = await rig.started(root)
    first = await service.score(ScoreRequest("sage", nodes=["n1"]))
    again = await service.score(ScoreRequest("sage", nodes=["n1"]))
    assert (first.outputs["probabilities"] == again.outputs["probabilities"]).all()
    assert b'hopline_response_cache_hits_total{model="sage",version="1"} 1' in service.metrics.render()
    rig.publish(root, "2")
    await service.load("sage")
    other = await service.score(ScoreRequest("sage", nodes=["n1"]))
    assert other.version == "2"
    assert (first.outputs["probabilities"] != other.outputs["probabilities"]).any()
    await rig.stop(service)


async def test_all_workers_switch_before_the_call_returns(root, workers):
    first, second = workers
    rig.publish(root, "2")
    await first.load("sage")
    assert await rig.version_of(second) == "2"
    await second.load("sage", "1")
    assert await rig.version_of(first) == "1"
    await second.unload("sage", "2")
    assert first.describe("sage").versions == ("1",)


async def test_a_version_that_one_worker_cannot_load_serves_nowhere(root, workers, monkeypatch):
    first, second = workers
    rig.publish(root, "2")

    async def fails(model, unit):
        raise ModelNotReady("no memory left here")

    monkeypatch.setattr(second._loader, "load", fails)
    with pytest.raises(ModelNotReady, match="no memory left here"):
        await first.load("sage")
    for worker in workers:
        assert await rig.version_of(worker) == "1"
        assert worker.describe("sage").versions == ("1",)


async def test_workers_judge_what_all_of_them_saw(root, workers):
    rig.publish(root, "3")
    traffic = [Traffic(worker, at_once=4) for worker in workers]
    gates = Gates(min_requests=50, max_p99_ratio=100, max_p50_ratio=100)
    await workers[1].begin_rollout(
        RolloutRequest("sage", "3", min_step_s=0.1, steps=(50.0, 100.0), gates=gates)
    )
    await rig.until(lambda: all(w.describe_rollout("sage")["serving"] == "3" for w in workers))
    for each in traffic:
        await each.end()
        assert each.errors == []
        assert {"1", "3"} <= set(each.versions)
    state = json.loads((root / "models" / ".hopline" / "lifecycle.json").read_text().partition("\n")[2])
    assert state["models"]["sage"]["serving"] == "3"
    assert not list((root / "models" / ".hopline").glob("*-*.json"))  # counts are removed when it is over


async def test_a_pinned_version_serves_at_the_first_start_and_later_what_was_loaded_since(root, caplog):
    for version in ("2", "3"):
        rig.publish(root, version)
    service = await rig.started(root, **{"models.pinned": ("sage=2",)})
    assert await rig.version_of(service) == "2"
    await service.load("sage", "1")
    await rig.stop(service)
    service = await rig.started(root, **{"models.pinned": ("sage=2",)})
    assert await rig.version_of(service) == "1"
    assert "models.pinned: sage/2 is pinned, but 1 was loaded or rolled back to since" in caplog.text
    await rig.stop(service)


@pytest.mark.parametrize(
    ("pin", "told"),
    [
        ("sage=9", "sage has no version '9'; there are: 1"),
        ("other=1", "other is not served; there are: sage"),
        ("sage", "is not <model>=<version>"),
    ],
)
async def test_a_pin_that_names_nothing_is_refused(root, pin, told):
    with pytest.raises(ConfigError, match=re.escape(told)):
        await rig.started(root, **{"models.pinned": (pin,)})


async def test_a_version_that_refuses_what_callers_send_is_loaded_only_by_force(root, monkeypatch):
    service = await rig.started(root)
    for number in range(20):
        await rig.version_of(service)
        if number == 0:
            await asyncio.sleep(0.1)  # it begins to take requests with the first look at the state
    rig.publish(root, "2")
    loaded = service._lifecycle.loaded
    take = type(loaded).load

    async def spoilt(self, model, unit):
        served = await take(self, model, unit)
        if unit.version == "2":
            monkeypatch.setattr(
                loaded.served("sage", "2"),
                "accept",
                lambda work: work.deliver(BadRequest("column 'country' is missing")),
            )
        return served

    monkeypatch.setattr(type(loaded), "load", spoilt)
    with pytest.raises(Conflict, match=r"requests that 1 answered last .*column 'country' is missing"):
        await service.load("sage", "2")
    assert await rig.version_of(service) == "1"
    await service.load("sage", "2", serve=False)
    await service.load("sage", "2", force=True)
    assert service.describe_rollout("sage")["serving"] == "2"
    await service.load("sage", "1")
    await rig.stop(service)
