"""The store of one host."""

import errno
import itertools
import os
import shutil
import subprocess

import pytest

from hopline.errors import ConfigError, StoreUnavailable
from hopline.rollout.store import fleet as fleet_module
from hopline.rollout.store.base import MAX_AGE_S
from hopline.rollout.store.fleet import Ack, Fleet
from hopline.rollout.store.folder import FolderStore
from tests.state_stores import StateStoreSuite, eventually, serving


@pytest.fixture
def join(tmp_path, monkeypatch):
    monkeypatch.setattr(FolderStore, "beat_s", 0.005)
    monkeypatch.setattr(fleet_module, "_JUDGE_READ_S", 0.0)
    monkeypatch.setattr(fleet_module, "_READ_S", 0.0)
    fleets, numbers = [], itertools.count()

    def join():
        fleet = Fleet(FolderStore(tmp_path / "state", index=next(numbers), count=8))
        fleet.open()
        fleets.append(fleet)
        return fleet

    yield join
    for fleet in fleets:
        fleet.close()


def test_a_member_joins_while_another_one_leaves(tmp_path, monkeypatch):
    """Its file is gone between the list of files and a look at it."""
    listed = FolderStore._files
    monkeypatch.setattr(FolderStore, "_files", lambda *names: [*listed(*names), tmp_path / "a.outcomes"])
    FolderStore(tmp_path, index=0, count=8).open()


class TestFolderStore(StateStoreSuite):
    @pytest.fixture
    def join(self, join):
        return join


class FullDisk:
    """Nothing can be written while `is_full`."""

    def __init__(self, monkeypatch):
        self.is_full = False
        opened = os.open

        def open_file(path, flags, *args, **options):
            if self.is_full and flags & os.O_CREAT and str(path).endswith("draft"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            return opened(path, flags, *args, **options)

        monkeypatch.setattr("hopline.files.os.open", open_file)


def test_a_worker_that_cannot_write_counts_as_cut_off_until_it_can(join, monkeypatch):
    disk = FullDisk(monkeypatch)
    first, second = join(), join()
    for worker in (first, second):
        worker.publish_counts("a-0", b"1")
    eventually(lambda: list(second.counts("a-0")) == [b"1"])
    disk.is_full = True
    first.publish_counts("a-0", b"2")
    first.acknowledge(Ack(1, 1, {}))
    with pytest.raises(StoreUnavailable, match=r"nothing was changed: .*No space left"):
        first.check_up()
    eventually(lambda: not first.status()["up"])
    assert "No space left on device" in first.status()["why"]
    assert not first.leads()
    assert list(second.counts("a-0")) == [b"1"]
    with pytest.raises(StoreUnavailable, match=r"nothing was changed: .*requests are served meanwhile"):
        first.check_up()
    disk.is_full = False
    eventually(lambda: first.status()["up"])
    first.check_up()
    assert second.acknowledgements() == {first.store.member: Ack(1, 1, {})}
    eventually(lambda: list(second.counts("a-0")) == [b"2"])


def test_a_change_is_refused_if_the_disk_became_full_since_the_last_write(join, monkeypatch):
    """The other workers would wait for an acknowledgement that cannot be written."""
    disk = FullDisk(monkeypatch)
    worker = join()
    worker.acknowledge(Ack(1, 1, {}))
    worker.check_up()
    disk.is_full = True
    with pytest.raises(StoreUnavailable, match=r"nothing was changed: .*No space left"):
        worker.check_up()
    disk.is_full = False
    worker.check_up()


def test_a_worker_that_writes_nothing_new_does_not_write(join, tmp_path):
    """Workers without a rollout leave the disk alone."""
    worker = join()
    worker.acknowledge(Ack(1, 1, {}))
    worker.flush()
    before = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "state").iterdir()}
    beats = worker._num_beats
    eventually(lambda: worker._num_beats > beats + 5)
    assert {file.name: file.stat().st_mtime_ns for file in (tmp_path / "state").iterdir()} == before


def test_a_worker_whose_process_ended_is_no_member(join, tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    worker, other = join(), join()
    other.acknowledge(Ack(1, 1, {}))
    other.flush()
    left = tmp_path / "state" / f"5-{ended.pid}.member"
    left.write_bytes(b"1 rubbish")
    assert worker.acknowledgements().keys() == {other.store.member}
    assert worker.gone({left.stem}) == {left.stem}
    assert not left.exists()


def test_counts_that_nobody_removed_are_gone_after_a_day(join, tmp_path):
    first = join()
    for step in ("a-0", "a-1"):
        first.publish_counts(step, b"1")
    first.flush()
    old, new = sorted((tmp_path / "state").glob("*.outcomes"))
    draft = old.with_name(f".{old.name}.1234.draft")
    draft.touch()
    for file in (old, draft):
        os.utime(file, (0, new.stat().st_mtime - MAX_AGE_S - 60))
    join()
    assert [file for file in (old, draft, new) if file.exists()] == [new]


@pytest.mark.parametrize("lost", ["folder", "file", "newer content"])
def test_workers_write_again_what_the_folder_lost(join, tmp_path, caplog, lost):
    """A worker that starts later serves what the others serve, not what the repository alone gives."""
    place = tmp_path / "state"
    first = join()
    first.update(serving("1"))
    older = (place / "lifecycle.json").read_bytes()
    after = first.update(serving("2"))
    other = join()
    assert other.newest().state == after

    def lose():
        if lost == "folder":
            shutil.rmtree(place)
        elif lost == "file":
            (place / "lifecycle.json").unlink()
        else:
            (place / "lifecycle.json").write_bytes(older)

    with first._beating, other._beating:
        lose()
    eventually(lambda: other.newest().stored == first.newest().stored == first.store.read())
    assert first.newest().state == other.newest().state == after
    assert "writing it again" in caplog.text
    late = join()
    assert late.newest().state == after
    with first._beating, other._beating, late._beating:
        lose()
        assert first.update(serving("3")).generation == 3
    eventually(lambda: other.newest().state.models["m"].serving == "3")


def test_a_state_of_another_format_is_refused(join, tmp_path):
    place = tmp_path / "state"
    place.mkdir()
    for content, text in [
        (b'{"generation": 3, "models": {}, "format": 1}', "is damaged .*move it away"),
        (b'{"sha256": "0"}\n{}', "is damaged .*move it away"),
        (b"", "is damaged .*move it away"),
    ]:
        (place / "lifecycle.json").write_bytes(content)
        with pytest.raises(ConfigError, match=text):
            join()
        assert (place / "lifecycle.json").read_bytes() == content
