"""Loads of a version whose files have changed since it was loaded: none reports what is not so."""

import asyncio
import os
import shutil
import signal

import msgspec
import numpy as np
import pytest

from hopline.errors import ArtifactCorrupted, ArtifactError, BadRequest, HoplineError, ModelNotReady
from hopline.rollout import shared_state
from hopline.rollout.rollout import RolloutRequest
from hopline.service import Service
from hopline.types import ScoreRequest
from tests import loaded_units_rig as rig
from tests.engine import zoo
from tests.packaged import package

CHANGED = r"sage/1 is loaded with another head\.onnx, .* than there is now"


def package_again(root, seed=2):
    """Write version 1 again, with other weights, in the place of the one that is there."""
    shutil.rmtree(root / "models" / "sage" / "1")
    zoo.torch.manual_seed(seed)
    options = {"name": "sage", "fanouts": [4, 3, 5], "task": "multiclass", "check_nodes": 20}
    graph = zoo.homogeneous(1)
    package(zoo.Sage().eval(), graph, root / "models", version="1", **options)


async def answers(service, **kwargs):
    return (await service.score(ScoreRequest("sage", nodes=["n1", "n2"], **kwargs))).outputs[
        "probabilities"
    ]


@pytest.mark.release
async def test_a_load_of_a_version_that_was_packaged_again_is_refused_with_the_way_out(root):
    service = await rig.started(root)
    before = await answers(service)
    package_again(root)
    with pytest.raises(ArtifactError, match=f"{CHANGED}.*another version, or unload 1"):
        await service.load("sage", "1")
    assert np.array_equal(await answers(service), before)
    await service.unload("sage")
    await service.load("sage", "1")
    assert not np.allclose(await answers(service), before)
    await rig.stop(service)


async def test_a_rollout_to_a_loaded_version_that_was_packaged_again_is_refused(root):
    rig.publish(root, "2")
    service = await rig.started(root)
    assert await rig.version_of(service) == "2"
    package_again(root, seed=3)
    with pytest.raises(ArtifactError, match=CHANGED):
        await service.begin_rollout(RolloutRequest("sage", "1"))
    assert service.describe_rollout("sage")["rollout"] is None
    await service.unload("sage", "1")
    await service.load("sage", "1")
    assert await rig.version_of(service) == "1"
    await rig.stop(service)


async def test_a_version_that_was_written_again_with_the_same_content_can_be_loaded(root):
    service = await rig.started(root)
    file = root / "models" / "sage" / "1" / "model.json"
    spec = msgspec.json.decode(file.read_bytes())
    del spec["digest"]  # as of an earlier Hopline: a person may change the fields
    file.write_bytes(msgspec.json.encode({**spec, "producer": {"torch": "another"}, "parity": {}}))
    assert await service.load("sage", "1") == "1"
    file.write_bytes(msgspec.json.encode({**spec, "salt": 7}))
    with pytest.raises(ArtifactError, match="sage/1 is loaded with another salt than"):
        await service.load("sage", "1")
    await rig.stop(service)


async def test_a_load_of_a_loaded_version_finds_a_damaged_file(root):
    service = await rig.started(root)
    file = root / "models" / "sage" / "1" / "head.onnx"
    content = file.read_bytes()
    file.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    with pytest.raises(ArtifactCorrupted, match=r"head\.onnx"):
        await service.load("sage", "1")
    file.write_bytes(content)
    assert await service.load("sage", "1") == "1"
    await rig.stop(service)


async def test_a_load_of_a_loaded_version_reads_serving_toml(root):
    service = await rig.started(root)
    file = root / "models" / "sage" / "serving.toml"
    file.write_text("rate_per_ss = 5\n")
    with pytest.raises(BadRequest, match="rate_per_ss: unknown key"):
        await service.load("sage", "1")
    file.write_text("rate_per_s = 5\n")
    with pytest.raises(ArtifactError, match=r"sage/1 is loaded with another serving\.toml than"):
        await service.load("sage", "1")
    file.unlink()
    assert await service.load("sage", "1") == "1"
    await rig.stop(service)


async def test_a_load_of_a_loaded_version_with_a_graph_folder_that_was_written_again_is_refused(root):
    zoo.homogeneous(2).save(root / "later")
    service = await rig.started(root)
    unit = await service.load("sage", "1", graph=str(root / "later"))
    assert await service.load("sage", "1", graph=str(root / "later")) == unit
    zoo.homogeneous(3).save(root / "later", overwrite=True)
    with pytest.raises(ArtifactError, match=f"sage/{unit} is loaded with another graph than"):
        await service.load("sage", "1", graph=str(root / "later"))
    await rig.stop(service)


async def replaced(workers, index):
    """The worker that takes the place of another one."""
    await rig.stop(workers[index])
    workers[index] = Service(workers[index].config)
    await workers[index].start()
    return workers[index]


async def test_a_worker_that_is_replaced_refuses_a_version_that_was_packaged_again(root, workers):
    rig.publish(root, "2")
    assert await workers[0].load("sage", "2") == "2"
    before = await answers(workers[0], version="1")
    package_again(root)
    later = await replaced(workers, 1)
    with pytest.raises(ModelNotReady, match=CHANGED):
        await answers(later, version="1")
    assert await rig.version_of(later) == "2"
    assert np.array_equal(await answers(workers[0], version="1"), before)
    with pytest.raises(ArtifactError, match=CHANGED):
        await workers[0].load("sage", "1")
    await workers[0].unload("sage", "1")
    await workers[0].load("sage", "1", serve=False)
    after = [await answers(worker, version="1") for worker in workers]
    assert np.array_equal(*after)
    assert not np.allclose(after[0], before)


async def test_a_worker_that_is_replaced_refuses_to_start_without_another_version(root, workers):
    before = await answers(workers[0])
    package_again(root)
    gone = workers.pop()
    await rig.stop(gone)
    with pytest.raises(ArtifactError, match=f"{CHANGED}.*another version, or unload 1"):
        await rig.begin(Service(gone.config))
    assert np.array_equal(await answers(workers[0]), before)


async def test_a_worker_that_replaces_another_waits_until_it_can_serve_and_the_others_say_why(
    root, workers, monkeypatch
):
    monkeypatch.setattr(shared_state, "_COMPARE_S", 0.1)
    package_again(root)
    gone = workers.pop()
    await rig.stop(gone)
    later = Service(gone.config.replace(worker__replaces=True))
    starting = asyncio.ensure_future(later.start())
    await rig.until(workers[0].differing)
    assert not later.ready()
    assert workers[0].ready()
    assert (
        "could not load it: artifact_error: sage/1 is loaded with another"
        in workers[0].differing()["sage/1"]
    )
    assert workers[0].describe_rollout("sage")["store"]["differing"] == workers[0].differing()
    assert 'hopline_model_unavailable{model="sage",version="1"} 1' in workers[0].metrics.render().decode()
    rig.publish(root, "2")
    await workers[0].load("sage", "2")
    await asyncio.wait_for(starting, 20)
    workers.append(later)
    for worker in workers:
        assert await rig.version_of(worker) == "2"
    assert np.array_equal(*[await answers(worker) for worker in workers])


async def test_a_worker_that_is_replaced_refuses_another_graph_under_the_same_name(root, workers):
    zoo.homogeneous(2).save(root / "graph", overwrite=True)
    gone = workers.pop()
    await rig.stop(gone)
    with pytest.raises(ArtifactError, match="sage/1 is loaded with another graph than"):
        await rig.begin(Service(gone.config))


async def test_files_that_are_put_back_are_loaded_where_they_were_refused(root, workers, tmp_path):
    rig.publish(root, "2")
    await workers[0].load("sage", "2")
    shutil.copytree(root / "models" / "sage" / "1", tmp_path / "kept")
    package_again(root)
    later = await replaced(workers, 1)
    shutil.rmtree(root / "models" / "sage" / "1")
    shutil.copytree(tmp_path / "kept", root / "models" / "sage" / "1")
    await workers[0].load("sage", "1", serve=False)
    assert np.array_equal(await answers(later, version="1"), await answers(workers[0], version="1"))


@pytest.mark.release
async def test_an_isolated_process_that_is_restarted_refuses_a_version_that_was_packaged_again(root):
    (root / "models" / "sage" / "serving.toml").write_text("isolate = true\n")
    service = await rig.started(root)
    await answers(service)
    package_again(root)
    served = service._lifecycle.loaded.served("sage", "1")
    os.kill(served.pid, signal.SIGKILL)
    await rig.until(lambda: "than there is now" in service.describe("sage").reason)
    with pytest.raises(HoplineError, match=CHANGED):
        await answers(service)
    await rig.stop(service)


async def test_a_version_that_changes_while_it_is_loaded_is_refused(root, monkeypatch):
    from hopline.models.graph_kind import GraphKind

    load = GraphKind.load

    async def slow(*arguments):
        await load(*arguments)
        package_again(root)

    monkeypatch.setattr(GraphKind, "load", slow)
    with pytest.raises(ArtifactError, match=CHANGED):
        await rig.started(root)
