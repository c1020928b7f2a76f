"""The state folder: what a kill, a torn file, another version or a full disk leave."""

import errno
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from hopline.files import draft_of, is_draft
from hopline_mesh.changes import Context
from hopline_mesh.detect import MeshDetector
from hopline_mesh.errors import StateDamaged
from hopline_mesh.roster import Roster
from hopline_mesh.settings import MeshSettings
from hopline_mesh.simulate import MeshPlan, simulate
from hopline_mesh.state import StateFolder
from hopline_mesh.state.checkpoint import read_checkpoint, write_checkpoint
from hopline_mesh.state.folder import PACKED
from hopline_mesh.state.segment import read_segment
from packages.mesh.tests.meshes import same, snapshot

MIB = 2**20
SHAPE = {"window_size": 120}


def folder(path, limit=8 * MIB, keep_s=1e9):
    return StateFolder(path, limit, keep_s)


def save(state, number, size=1000):
    arrays = {"level": np.full(size, number, np.float32), "none": np.zeros((0, 3), np.int32)}
    return state.save({"number": number}, arrays, time_s=number, names=["a"], shape=SHAPE)


def newest(state):
    return next((each.meta["number"] for each in state.checkpoints()), None)


def test_checkpoints_come_back_newest_first_and_two_are_kept(tmp_path):
    state = folder(tmp_path)
    for number in range(4):
        save(state, number)
    found = list(folder(tmp_path).checkpoints())
    assert [each.meta["number"] for each in found] == [3, 2]
    assert found[0].arrays["level"].tolist() == [3.0] * 1000
    assert found[0].arrays["none"].shape == (0, 3)
    assert found[0].names == ("a",)
    assert found[0].shape == SHAPE
    found[0].arrays["level"][0] = 1  # is the reader's to change


def test_a_checkpoint_may_have_any_name(tmp_path):
    names = ("ns/\ud800", "ns/\x00\u202e", "ns/" + "x" * 5000)
    state = folder(tmp_path)
    state.save({"shown": names[0]}, {"level": np.ones(3)}, time_s=1.0, names=names, shape={})
    found = next(iter(folder(tmp_path).checkpoints()))
    assert (found.names, found.meta) == (names, {"shown": names[0]})


def test_history_goes_over_many_files_and_comes_back_in_order(tmp_path):
    state, roster = folder(tmp_path, limit=MIB), Roster()
    written = [snapshot(15.0 * i, roster, services=20, edges=60) for i in range(100)]
    for each in written:
        state.append(each, Context())
    state.close()
    assert len(list(tmp_path.glob("history-*"))) > 3
    found = [seen.snapshot for seen in folder(tmp_path, limit=MIB).history(Roster())]
    assert all(map(same, found, written[-len(found) :]))
    assert len(found) == 100
    late = list(folder(tmp_path).history(Roster(), after_s=15.0 * 90))
    assert [seen.snapshot.time_s for seen in late] == [15.0 * i for i in range(91, 100)]


def test_history_of_an_earlier_process_goes_too(tmp_path):
    before, roster = folder(tmp_path, limit=MIB, keep_s=600.0), Roster()
    for number in range(40):
        before.append(snapshot(15.0 * number, roster, services=20, edges=60), Context())
    before.close()
    old = set(tmp_path.glob("history-*"))
    sorted(old)[0].write_bytes(b"torn")
    after = folder(tmp_path, limit=MIB, keep_s=600.0)
    assert list(after.history(roster, after_s=15.0 * 35))  # as a restart reads it
    for number in range(40, 120):
        after.append(snapshot(15.0 * number, roster, services=20, edges=60), Context())
    assert not old & set(tmp_path.glob("history-*"))
    after.close()


def test_history_that_is_too_old_goes(tmp_path):
    state, roster = folder(tmp_path, limit=MIB, keep_s=300), Roster()
    for i in range(200):
        state.append(snapshot(15.0 * i, roster, services=20, edges=60), Context())
    oldest = next(iter(state.history(Roster()))).snapshot.time_s
    state.close()
    assert 15.0 * 199 - 300 - 15 * 60 < oldest <= 15.0 * 199 - 300


def test_files_never_take_more_room_than_they_may(tmp_path):
    state, roster = folder(tmp_path, limit=MIB), Roster()
    for i in range(300):
        state.append(snapshot(15.0 * i, roster, services=30, edges=200), Context())
        if i % 20 == 19:
            save(state, i, size=60_000)  # 240 kB, of which three do fit
        assert state.size <= MIB
    state.close()
    assert newest(state) == 299
    assert len(list(state.history(Roster()))) > 10


def test_a_checkpoint_that_does_not_fit_is_refused_and_the_old_one_stays(tmp_path):
    state = folder(tmp_path, limit=MIB)
    save(state, 1)
    with pytest.raises(OSError, match=r"fit|that are left") as caught:
        save(state, 2, size=10**6)
    assert caught.value.errno == errno.ENOSPC
    assert newest(folder(tmp_path)) == 1


def test_a_checkpoint_that_packs_badly_costs_history_and_is_written(tmp_path):
    state, roster = folder(tmp_path, limit=MIB), Roster()
    for i in range(900):
        state.append(snapshot(15.0 * i, roster, services=20, edges=60), Context())
    noise = np.random.default_rng(1).integers(0, 2**63, 45_000)
    assert PACKED * noise.nbytes < MIB / 4 < noise.nbytes
    size = state.save({"number": 1}, {"noise": noise}, time_s=1.0, names=[], shape={})
    assert size > PACKED * noise.nbytes
    assert newest(state) == 1
    assert state.size <= MIB
    state.close()


@pytest.mark.parametrize("kind", ["checkpoint-0000000007.state", "history-0000000007.log"])
@pytest.mark.parametrize("make", [os.mkdir, lambda path: os.symlink("nowhere", path)])
def test_what_only_has_the_name_of_a_file_of_the_state_is_left_alone(tmp_path, kind, make):
    make(tmp_path / kind)
    state, roster = folder(tmp_path, limit=MIB), Roster()
    for number in range(4):
        state.append(snapshot(15.0 * number, roster), Context())
        save(state, number)
    state.write_note({"a": 1})
    assert newest(folder(tmp_path)) == 3
    assert len(list(folder(tmp_path).history(Roster()))) == 4
    state.clear()
    assert [path.name for path in tmp_path.iterdir()] == [kind]


def test_a_full_disk_costs_the_older_checkpoint_where_little_history_is_left(tmp_path, monkeypatch):
    state = folder(tmp_path)
    state.append(snapshot(15.0, Roster()), Context())
    state.close()
    save(state, 1)
    save(state, 2)
    failures = [OSError(errno.ENOSPC, "No space left on device")]
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda handle: real(handle) if not failures else _raise(failures.pop())
    )
    save(state, 3)
    assert [each.meta["number"] for each in folder(tmp_path).checkpoints()] == [3, 2]
    save(state, 4)
    failures.append(OSError(errno.ENOSPC, "No space left on device"))
    state.write_note({"a": 1})
    assert state.note() == {"a": 1}
    assert newest(folder(tmp_path)) == 4
    assert len(list(folder(tmp_path).history(Roster()))) == 1


def _raise(error):
    raise error


def test_a_full_disk_costs_history_first(tmp_path, monkeypatch):
    state, roster = folder(tmp_path, limit=MIB), Roster()
    for i in range(100):
        state.append(snapshot(15.0 * i, roster, services=20, edges=60), Context())
    state.close()
    files = len(list(tmp_path.glob("history-*")))
    failures = [OSError(errno.ENOSPC, "No space left on device")]
    real = os.fsync

    def fsync(handle):
        if failures:
            raise failures.pop()
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    save(state, 1)
    assert newest(state) == 1
    assert len(list(tmp_path.glob("history-*"))) < files
    failures += [OSError(errno.ENOSPC, "No space left on device")] * 2
    with pytest.raises(OSError, match="No space"):
        save(state, 2)
    assert newest(folder(tmp_path)) == 1
    assert not [path for path in tmp_path.iterdir() if is_draft(path)]


def test_a_disk_that_stays_full_leaves_no_files_without_an_interval(tmp_path, monkeypatch):
    state, roster = folder(tmp_path), Roster()
    state.append(snapshot(0.0, roster), Context())
    with monkeypatch.context() as patch:

        def full(handle):
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(os, "fdatasync", full)
        for number in range(1, 6):
            with pytest.raises(OSError, match="No space"):
                state.append(snapshot(15.0 * number, roster), Context())
    assert len(list(tmp_path.glob("history-*"))) == 1
    state.append(snapshot(90.0, roster), Context())
    state.close()
    times = [seen.snapshot.time_s for seen in folder(tmp_path).history(Roster())]
    assert (times[0], times[-1]) == (0.0, 90.0)


def test_a_disk_that_stays_full_costs_half_of_the_history_once(tmp_path, monkeypatch):
    state, roster = folder(tmp_path), Roster()
    for number in range(8):
        state.append(snapshot(15.0 * number, roster), Context())
        state.close()
    with monkeypatch.context() as patch:
        patch.setattr(
            os, "fdatasync", lambda handle: _raise(OSError(errno.ENOSPC, "No space left on device"))
        )
        for number in range(8, 14):
            with pytest.raises(OSError, match="No space"):
                state.append(snapshot(15.0 * number, roster), Context())
    assert len(list(tmp_path.glob("history-*"))) == 4
    state.append(snapshot(300.0, roster), Context())  # there is room again; the next time costs again
    state.close()
    assert len(list(folder(tmp_path).history(Roster()))) == 5


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "version", "other"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, damage, caplog):
    state = folder(tmp_path)
    save(state, 1)
    save(state, 2)
    path = max(tmp_path.glob("checkpoint-*"))
    data = bytearray(path.read_bytes())
    match damage:
        case "flip":
            data[len(data) // 2] ^= 1
        case "cut":
            del data[len(data) // 2 :]
        case "empty":
            data.clear()
        case "version":
            data[7] = ord("9")
        case "other":
            data[:] = os.urandom(len(data))
    path.write_bytes(data)
    assert newest(folder(tmp_path)) == 1
    assert path.name in caplog.text


def test_every_cut_and_many_flips_of_a_checkpoint_are_noticed(tmp_path):
    path = tmp_path / "one.state"
    size = write_checkpoint(path, {"a": 1}, {"x": np.arange(10.0), "y": np.arange(5)})
    assert size == path.stat().st_size
    data = path.read_bytes()
    for cut in range(size):
        path.write_bytes(data[:cut])
        with pytest.raises(StateDamaged, match=r"one\.state"):
            read_checkpoint(path)
    for bit in random.Random(1).sample(range(8 * size), 200):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        with pytest.raises(StateDamaged):
            read_checkpoint(path)


def test_a_large_checkpoint_is_smaller_than_its_arrays_and_comes_back_as_it_was(tmp_path):
    rng = np.random.default_rng(1)
    arrays = {
        "window": rng.normal(0, 100, (3000, 7, 120)).astype(np.int16),
        "level": rng.random((5, 3)).astype(np.float32),
        "flags": np.array([True, False]),
        "none": np.zeros((0, 4), np.float64),
        "big": np.arange(2_500_000, dtype=np.int32),  # more than one piece, the last one cut
    }
    state = folder(tmp_path, limit=32 * MIB)
    size = state.save({}, arrays, time_s=1.0, names=[], shape={})
    assert size == state.size < 0.7 * sum(array.nbytes for array in arrays.values())
    found = next(iter(state.checkpoints())).arrays
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
        assert found[name].flags.writeable


def test_room_for_a_checkpoint_of_the_largest_mesh_is_within_the_default_limit():
    settings = MeshSettings()
    run = list(simulate(MeshPlan(services=10, spares=0, hours=0.6), 1))
    detector = MeshDetector()
    detector.fit(*zip(*run, strict=True))
    _, arrays = detector.export()
    services, paths = arrays["nodes.level"].shape[0], arrays["pairs.src"].shape[0]
    size = 0.0
    for array in arrays.values():
        for count, most in ((services, settings.source.max_services), (paths, settings.source.max_edges)):
            if count in array.shape[:2]:
                size += array.nbytes / count * most
                break
    assert size > 500 * MIB
    assert PACKED * size < settings.state.state_bytes


def test_objects_are_not_written(tmp_path):
    with pytest.raises(TypeError, match="booleans, integers and floats"):
        write_checkpoint(tmp_path / "x", {}, {"x": np.array([object()])})


def test_damaged_history_costs_what_follows_in_its_file_only(tmp_path):
    state, roster = folder(tmp_path, limit=MIB), Roster()
    for i in range(100):
        state.append(snapshot(15.0 * i, roster, services=20, edges=60), Context())
    state.close()
    first, second, *_, last = sorted(tmp_path.glob("history-*"))
    data = bytearray(second.read_bytes())
    data[len(data) // 2] ^= 1
    second.write_bytes(data)
    last.write_bytes(last.read_bytes()[:-7])
    times = [seen.snapshot.time_s for seen in folder(tmp_path).history(Roster())]
    assert times == sorted(set(times))
    assert 85 < len(times) < 99
    kept = len(list(read_segment(first)))
    assert times[:kept] == [15.0 * i for i in range(kept)]


def test_a_file_in_the_way_and_partial_files_are_no_obstacle(tmp_path):
    draft_of(tmp_path / "checkpoint-0000000007.state").write_bytes(b"x")
    (tmp_path / "notes.txt").write_text("mine")
    state = folder(tmp_path)
    save(state, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-0000000001.state", "notes.txt"]


_WRITER = """
import sys, numpy as np
from pathlib import Path
from hopline_mesh.changes import Context
from hopline_mesh.roster import Roster
from hopline_mesh.state import StateFolder
from packages.mesh.tests.meshes import snapshot
state = StateFolder(Path(sys.argv[1]), 2**20, 1e9)
first, roster = int(sys.argv[2]), Roster()
for number in range(first, first + 10_000):
    state.append(snapshot(float(number), roster), Context())
    if number % 5 == 0:
        arrays = {"level": np.full(20_000, number, np.float32)}
        state.save({"number": number}, arrays, time_s=number, names=roster.names, shape={})
    print(number, flush=True)
"""


def test_a_process_that_is_killed_at_any_moment_leaves_state(tmp_path):
    rng, first = random.Random(3), 1
    for _ in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(tmp_path), str(first)], stdout=subprocess.PIPE, text=True
        )
        said = [int(process.stdout.readline())]
        time.sleep(rng.uniform(0.01, 0.15))
        process.send_signal(signal.SIGKILL)
        said += [int(line) for line in process.stdout.read().splitlines()]
        process.wait()
        process.stdout.close()
        state = folder(tmp_path)
        seen = list(state.history(Roster()))
        assert seen[-1].snapshot.time_s in (said[-1], said[-1] + 1)
        assert same(seen[-1].snapshot, snapshot(seen[-1].snapshot.time_s))
        if (due := said[-1] // 5 * 5) >= first:  # an earlier process may have been killed before its own
            found = next(iter(state.checkpoints()))
            assert found.meta["number"] >= due
            assert set(found.arrays["level"].tolist()) == {float(found.meta["number"])}
        first = said[-1] + 2
