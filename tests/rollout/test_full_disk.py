"""A rollout whose state cannot be written: a candidate that fails its gates answers no caller."""

import errno
import os

from hopline.rollout.gates import Gates
from hopline.rollout.rollout import RolloutRequest
from tests import loaded_units_rig as rig
from tests.rollout.test_lifecycle import Traffic


class FullDisk:
    """The folder of the state is on a full disk: nothing new can be written, as the kernel says it."""

    def __init__(self, monkeypatch):
        self.is_full = False
        whole = os.open

        def open_file(path, flags, *args, **kwargs):
            if self.is_full and flags & os.O_CREAT and "draft" in str(path):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            return whole(path, flags, *args, **kwargs)

        monkeypatch.setattr("hopline.files.os.open", open_file)


async def test_a_candidate_that_fails_on_a_full_disk_answers_no_caller(root, monkeypatch, caplog):
    disk = FullDisk(monkeypatch)
    service = await rig.started(root)
    rig.publish(root, "3")
    traffic = Traffic(service)
    gates = Gates(max_p99_ratio=100, max_p50_ratio=100)
    asked = RolloutRequest("sage", "3", min_step_s=60, gates=gates, steps=(20.0, 100.0), preflight=0)
    await service.begin_rollout(asked)
    await rig.until(lambda: "3" in traffic.versions)
    disk.is_full = True
    rig.spoil(service._lifecycle.loaded.units["sage"]["3"], "errors")
    await rig.until(lambda: not service._lifecycle._state.is_confirmed())
    await rig.until(lambda: "no caller gets a rollout's candidate" in caplog.text)
    harmed, answered = len(traffic.errors), len(traffic.versions)
    await rig.until(lambda: len(traffic.versions) > answered + 400)
    assert len(traffic.errors) <= harmed + 8  # those under way
    disk.is_full = False
    await rig.until(lambda: service.describe_rollout("sage")["past"])
    assert service.describe_rollout("sage")["past"][0]["status"] == "rolled_back"
    await traffic.end()
    await rig.stop(service)
