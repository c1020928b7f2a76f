"""Where the graph model runs: settings reach the detector, and what is missing is said at the start."""

import os

import pytest
import torch

from hopline.errors import ConfigError
from hopline_mesh.settings import load_settings
from hopline_mesh.simulate import MeshPlan, simulate
from hopline_mesh.state import StateFolder
from hopline_mesh.state.checkpoint import read_checkpoint
from hopline_mesh.tagae import TagaeSettings
from hopline_mesh.watch.child import Task, train
from hopline_mesh.watch.parts import detector_settings
from hopline_mesh.watch.run import watch


def test_settings_reach_the_detector():
    asked = load_settings(
        env={
            "HOPLINE_MESH__DETECTOR__DEVICE": "cuda",
            "HOPLINE_MESH__DETECTOR__PARTITION_ABOVE": "500",
            "HOPLINE_MESH__DETECTOR__THREADS": "4",
        }
    )
    found = detector_settings(asked)
    assert (found.device, found.partition_above, found.threads) == ("cuda", 500, 4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
async def test_a_watch_without_the_device_that_it_is_to_use_does_not_start(tmp_path):
    settings = load_settings(flags={"device": "cuda", "state_dir": tmp_path / "state"})
    with pytest.raises(ConfigError, match="no CUDA device"):
        await watch(settings, lambda _: None)
    assert not (tmp_path / "state").exists()


def test_a_training_leaves_the_gpu_to_the_watch(tmp_path):
    state = StateFolder(tmp_path / "state", 2**24, 1e9)
    for snapshot, context in simulate(MeshPlan(services=3, hours=30 * 15 / 3600), 2):
        state.append(snapshot, context)
        last = snapshot
    state.close()
    task = Task(
        folder=str(state.folder),
        out=os.open(tmp_path / "trained", os.O_WRONLY | os.O_CREAT),  # closed by the training
        names=list(last.roster.names),
        schema=last.schema,
        since_s=0.0,
        until_s=last.time_s,
        without=[],
        detector=TagaeSettings(model="untrained", device="cuda"),
    )
    assert train(task) == 30
    header, _ = read_checkpoint(tmp_path / "trained")
    assert header["meta"]["settings"]["device"] == "cpu"
