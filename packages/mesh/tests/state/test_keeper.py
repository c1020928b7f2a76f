"""The keeper: a disk that fails costs state, not the watch."""

import threading

import numpy as np

from hopline_mesh.changes import Context
from hopline_mesh.roster import Roster
from hopline_mesh.state import StateFolder
from hopline_mesh.state.keeper import Keeper
from packages.mesh.tests.meshes import snapshot


class BrokenFolder(StateFolder):
    """Fails as long as it is told to, and can be held up."""

    broken = False

    def __init__(self, path):
        super().__init__(path, 2**20, 1e9)
        self.free = threading.Event()
        self.free.set()

    def append(self, snapshot, context):
        self.free.wait(10)
        if self.broken:
            raise OSError(28, "No space left on device")
        super().append(snapshot, context)


def test_what_is_kept_is_there_after_close(tmp_path):
    keeper = Keeper(StateFolder(tmp_path, 2**20, 1e9))
    roster = Roster()
    keeper.keep(snapshot(1.0, roster), Context())
    keeper.checkpoint({"a": 1}, {"x": np.ones(3)}, time_s=1.0, names=roster.names, shape={})
    keeper.close()
    assert keeper.gaps == ()
    state = StateFolder(tmp_path, 2**20, 1e9)
    assert next(iter(state.checkpoints())).meta == {"a": 1}
    assert [seen.snapshot.time_s for seen in state.history(Roster())] == [1.0]


def test_a_full_disk_is_said_once_and_again_when_it_is_over(tmp_path, caplog):
    caplog.set_level("INFO", "hopline_mesh")
    folder = BrokenFolder(tmp_path)
    keeper = Keeper(folder)
    folder.broken = True
    for i in range(3):
        keeper.keep(snapshot(float(i)), Context())
    keeper.settle()
    assert keeper.failures == 3
    assert [gap.what for gap in keeper.gaps] == ["state"]
    assert "No space left" in keeper.gaps[0].reason
    assert caplog.text.count("continues without saving state") == 1
    folder.broken = False
    keeper.keep(snapshot(9.0), Context())
    keeper.close()
    assert keeper.gaps == ()
    assert "is saved again" in caplog.text


def test_a_disk_that_hangs_holds_nobody_up(tmp_path):
    folder = BrokenFolder(tmp_path)
    keeper = Keeper(folder)
    folder.free.clear()
    for i in range(40):
        keeper.keep(snapshot(float(i)), Context())
    assert keeper.failures == 16
    assert "is too slow" in keeper.gaps[0].reason
    folder.free.set()
    keeper.close()


def test_a_folder_that_does_not_last_is_said_all_the_time(tmp_path):
    keeper = Keeper(StateFolder(tmp_path, 2**20, 1e9), "/var/tagae: Permission denied")
    keeper.keep(snapshot(0), Context())
    keeper.close()
    assert keeper.gaps[0].reason == "/var/tagae: Permission denied"


def test_state_that_cannot_be_written_is_said_too(tmp_path):
    keeper = Keeper(StateFolder(tmp_path, 2**20, 1e9))
    objects = np.array([object()])
    keeper.checkpoint({}, {"x": objects}, time_s=1.0, names=[], shape={})
    keeper.settle()
    assert keeper.failures == 1
    assert "booleans, integers and floats" in keeper.gaps[0].reason
    keeper.keep(snapshot(9.0), Context())
    keeper.close()
    assert keeper.gaps == ()
