"""Loads of a version whose files have changed since it was loaded: none reports what is not so."""

import shutil

import msgspec
import numpy as np
import pytest

from hopline.errors import ArtifactCorrupted, ArtifactError, BadRequest
from hopline.rollout.rollout import RolloutRequest
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
