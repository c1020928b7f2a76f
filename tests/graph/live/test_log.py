"""The log: what was made durable is there, and what is not as it was written is refused or cut off."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hopline.errors import GraphError, LogDamaged, LogFailed, LogFull
from hopline.files import draft_of
from hopline.graph.live import segment
from hopline.graph.live.log import Log, replay
from tests.graph.live.conftest import SmallDisk
from tests.thorough import thorough

LINEAGE = "0123456789abcdef"


def payload(sequence: int, size: int = 40) -> bytes:
    return (b"%d/" % sequence * size)[: size + sequence % 7]


def write(log: Log, count: int, size: int = 40, *, together: int = 1) -> None:
    """`together` records are made durable at once."""
    for i in range(1, count + 1):
        log.append(log.last + 1, payload(log.last + 1, size))
        if i % together == 0:
            log.sync()


def read(folder: Path, begin: int = 1) -> list[int]:
    """Sequences that are there; each with what was written."""
    found = list(replay(folder, begin, LINEAGE))
    for sequence, data in found:
        assert data == payload(sequence, 4 * len(data))[: len(data)]
    return [sequence for sequence, _ in found]


def files(folder: Path) -> list[int]:
    return [first for first, _ in segment.list_segments(folder)]


def end_of(path: Path) -> int:
    return [record.end for record in segment.read_records(path, segment.read_header(path))][-1]


def test_what_was_made_durable_is_read_again_over_several_files(tmp_path: Path) -> None:
    log = Log.open(tmp_path, LINEAGE, segment_bytes=1000)
    write(log, 100)
    assert len(files(tmp_path)) > 5
    assert read(tmp_path) == list(range(1, 101))  # while it is written
    log.close()
    again = Log.open(tmp_path, LINEAGE, segment_bytes=1000)
    assert (again.last, again.synced, again.torn) == (100, 100, None)
    write(again, 20)
    assert [sequence for sequence, _ in again.replay(95)] == list(range(95, 121))
    again.close()


def test_a_closed_file_has_no_zeros_at_its_end(tmp_path: Path) -> None:
    log = Log.open(tmp_path, LINEAGE)
    write(log, 3)
    (_, path) = segment.list_segments(tmp_path)[0]
    assert path.stat().st_size > 2**20
    log.close()
    assert path.stat().st_size == end_of(path)


def test_files_are_dropped_once_a_snapshot_has_what_they_hold(tmp_path: Path) -> None:
    log = Log.open(tmp_path, LINEAGE, segment_bytes=500)
    write(log, 50)
    before = files(tmp_path)
    assert log.truncate_before(25) > 0
    left = files(tmp_path)
    assert left == before[-len(left) :]
    assert left[0] <= 25 < left[1]
    assert read(tmp_path, 25) == list(range(25, 51))
    with pytest.raises(LogDamaged, match=f"begins with sequence {left[0]}, but 3 is needed"):
        read(tmp_path, 3)
    assert log.truncate_before(10**9) == len(left) - 1  # never the one that is written
    write(log, 1)
    assert read(tmp_path, 51) == [51]
    log.close()


def crashed(folder: Path, count: int = 10, *, together: int = 1, segment_bytes: int = 2**26) -> Path:
    """The newest file of a log whose writer has gone without closing it."""
    log = Log.open(folder, LINEAGE, segment_bytes=segment_bytes)
    write(log, count, together=together)
    os.close(log._fd)
    log._fd = -1
    return segment.list_segments(folder)[-1][1]


@pytest.mark.parametrize("cut", [1, 8, 31, 32, 33, 60])
def test_a_torn_last_record_is_cut_off_and_reported(
    tmp_path: Path, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = crashed(tmp_path)
    whole = end_of(path)
    data = segment.encode_record(segment.read_header(path), 11, 10, payload(11))
    with path.open("r+b") as file:
        file.seek(whole)
        file.write(data[:cut])
    with caplog.at_level(logging.WARNING):
        log = Log.open(tmp_path, LINEAGE)
    assert log.torn is not None
    assert (log.torn.offset, log.torn.sequence) == (whole, 11)
    assert f"truncated {log.torn.num_bytes} bytes at byte {whole}: record 11" in caplog.text
    assert 0 < log.torn.num_bytes <= cut
    write(log, 5)
    log.close()
    assert read(tmp_path) == list(range(1, 16))


@pytest.mark.parametrize("cut", range(1, 8))
def test_what_follows_a_record_that_lost_some_of_its_padding_is_not_lost(tmp_path: Path, cut: int) -> None:
    log = Log.open(tmp_path, LINEAGE)
    write(log, 2)
    log.append(3, payload(1, 40))
    log.close()
    (path,) = (path for _, path in segment.list_segments(tmp_path))
    os.truncate(path, path.stat().st_size - cut)  # a crash, before the file's size was on the disk
    log = Log.open(tmp_path, LINEAGE)
    assert log.last == 2
    write(log, 4)
    log.close()
    assert read(tmp_path) == list(range(1, 7))


@given(data=st.data())
@settings(
    max_examples=thorough(15, 60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_a_flipped_byte_is_refused_unless_it_is_of_the_last_record(
    tmp_path: Path, data: st.DataObject
) -> None:
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    crashed(folder, 12, segment_bytes=400)
    paths = [path for _, path in segment.list_segments(folder)]
    chosen = data.draw(st.sampled_from(paths))
    end = end_of(chosen)
    at = data.draw(st.integers(0, end - 1))
    with chosen.open("r+b") as file:
        file.seek(at)
        (old,) = file.read(1)
        file.seek(at)
        file.write(bytes([old ^ data.draw(st.integers(1, 255))]))
    in_last = chosen == paths[-1] and at >= segment.HEADER_BYTES
    refusal, found = "", []
    try:
        log = Log.open(folder, LINEAGE, segment_bytes=400)
        found = [sequence for sequence, _ in log.replay(1)]
        log.close()
    except LogDamaged as error:
        refusal = str(error)
    if refusal:
        assert str(chosen) in refusal
        assert ("byte" in refusal and "restore" in refusal) or "upgrade" in refusal
    else:
        # The last record may have been torn: nothing tells otherwise. Bytes that pad say nothing.
        assert found == list(range(1, 13)) or (in_last and found == list(range(1, 12)))


def test_records_that_were_not_synced_may_be_lost_in_any_order(tmp_path: Path) -> None:
    """After a loss of power the disk may have record 8 of a group, but not 7."""
    path = crashed(tmp_path, 9, together=3)
    records = list(segment.read_records(path, segment.read_header(path)))
    with path.open("r+b") as file:
        file.seek(records[6].begin)
        file.write(bytes(records[6].end - records[6].begin))
    log = Log.open(tmp_path, LINEAGE)
    assert (log.last, log.torn is not None) == (6, True)
    log.close()
    with path.open("r+b") as file:  # of a group that a later one says was on the disk
        file.seek(records[4].begin)
        file.write(bytes(records[4].end - records[4].begin))
    assert Log.open(tmp_path, LINEAGE).last == 4  # 6 says that 3 was synced: 5 may be lost
    with path.open("r+b") as file:
        file.seek(records[1].begin)
        file.write(bytes(records[1].end - records[1].begin))
    with pytest.raises(LogDamaged, match=rf"record 2 at byte {records[1].begin} .* from 3 on"):
        # 4, which would say that 3 was synced
        Log.open(tmp_path, LINEAGE)


def test_a_gap_between_files_is_refused(tmp_path: Path) -> None:
    log = Log.open(tmp_path, LINEAGE, segment_bytes=400)
    write(log, 30)
    log.close()
    segments = segment.list_segments(tmp_path)
    segments[2][1].unlink()
    with pytest.raises(
        LogDamaged, match=f"record {segments[2][0]} at byte .*continues with {segments[3][0]}"
    ):
        read(tmp_path)


def test_a_log_of_another_graph_is_refused(tmp_path: Path) -> None:
    crashed(tmp_path)
    with pytest.raises(GraphError, match=f"belongs to graph {LINEAGE}, this one is other"):
        Log.open(tmp_path, "other")


def test_a_newer_format_says_upgrade(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "FORMAT", 2)
    crashed(tmp_path)
    monkeypatch.setattr(segment, "FORMAT", 1)
    with pytest.raises(LogDamaged, match="upgrade hopline"):
        Log.open(tmp_path, LINEAGE)


def test_a_log_that_ends_before_the_snapshot_goes_on_after_it(tmp_path: Path) -> None:
    crashed(tmp_path, 5)
    log = Log.open(tmp_path, LINEAGE, next_sequence=9)
    write(log, 2)
    log.close()
    assert read(tmp_path, 9) == [9, 10]
    with pytest.raises(LogDamaged, match="continues with 9"):
        read(tmp_path, 5)


def test_a_draft_of_a_file_is_swept_away(tmp_path: Path) -> None:
    crashed(tmp_path)
    draft = draft_of(tmp_path / segment.name_of(11))
    draft.write_bytes(b"half")
    Log.open(tmp_path, LINEAGE).close()
    assert not draft.exists()


@pytest.mark.parametrize("size", [100, 30_000])
def test_a_full_disk_refuses_a_record_whole_and_takes_more_once_there_is_room(
    small_disk: SmallDisk, size: int
) -> None:
    folder = small_disk.folder / "log"
    log = Log.open(folder, LINEAGE, segment_bytes=2**23)
    with pytest.raises(LogFull, match=r"up to sequence \d+ are kept; make room on the disk"):
        write(log, 60_000, size)
    refused = log.last + 1
    assert refused > 2**21 / (size + 40)  # what was free was used
    assert read(folder) == list(range(1, refused))
    with pytest.raises(LogFull):
        write(log, 1, 2**20)
    assert log.synced == refused - 1
    small_disk.grow()
    write(log, 10, size)
    log.close()
    assert read(folder) == list(range(1, refused + 10))


def test_a_full_disk_where_another_file_should_begin_is_refused_too(small_disk: SmallDisk) -> None:
    folder = small_disk.folder / "log"
    log = Log.open(folder, LINEAGE, segment_bytes=1)
    if small_disk.mounted:  # a limit on the size of files would let any number of them begin
        with pytest.raises(LogFull):
            write(log, 60_000)
    last = log.last
    small_disk.grow()
    write(log, 3)
    log.close()
    assert read(folder) == list(range(1, last + 4))


class FailingSync:
    """os.fdatasync that fails, and drops what it should have written, as kernels do."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, drop: Callable[[int], None] = lambda _: None
    ) -> None:
        self.left = 0
        self._real, self._drop = os.fdatasync, drop
        monkeypatch.setattr(os, "fdatasync", self)

    def __call__(self, fd: int) -> None:
        if self.left:
            self.left -= 1
            self._drop(fd)
            raise OSError(errno.EIO, "Input/output error")
        self._real(fd)


@pytest.mark.parametrize("failures", [1, 2])
@pytest.mark.parametrize("before", [0, 6])
def test_after_a_failed_fdatasync_the_log_goes_on_in_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, failures: int
) -> None:
    log = Log.open(tmp_path, LINEAGE)
    write(log, before)
    failing = FailingSync(monkeypatch)
    log.append(before + 1, b"lost")
    log.append(before + 2, b"lost, too")
    failing.left = failures
    with pytest.raises(LogFailed, match=f"sequences {before + 1} to {before + 2} did not reach") as info:
        log.sync()
    assert ("unless the machine stops" in str(info.value)) == (failures == 2)
    assert (log.last, log.synced) == (before, before)
    write(log, 4)
    log.close()
    assert read(tmp_path) == list(range(1, before + 5))
    assert files(tmp_path) == sorted({1, before + 1})


def _remove_folder(folder: Path) -> None:
    shutil.rmtree(folder)


def _remove_file(folder: Path) -> None:
    next(folder.glob("*.wal")).unlink()


def _replace_folder(folder: Path) -> None:
    shutil.copytree(folder, folder.with_name("copy"))
    folder.rename(folder.with_name("moved"))
    folder.with_name("copy").rename(folder)


@pytest.mark.parametrize("remove", [_remove_folder, _remove_file, _replace_folder])
@pytest.mark.parametrize("segment_bytes", [1000, 2**20])
def test_nothing_is_acknowledged_that_goes_to_a_removed_file(
    tmp_path: Path, remove: Callable[[Path], None], segment_bytes: int
) -> None:
    folder = tmp_path / "log"
    log = Log.open(folder, LINEAGE, segment_bytes=segment_bytes)
    write(log, 6)
    remove(folder)
    for _ in range(30):  # also where a new file would begin
        with pytest.raises(LogFailed, match="was removed or replaced while it was written"):
            write(log, 1, 400)
        log.drop_unsynced()
        assert (log.last, log.synced) == (6, 6)
    with pytest.raises(LogFailed, match="was removed or replaced"):
        log.check_present()


def test_a_folder_that_is_moved_back_is_used_again(tmp_path: Path) -> None:
    folder, away = tmp_path / "log", tmp_path / "away"
    log = Log.open(folder, LINEAGE)
    write(log, 2)
    folder.rename(away)
    with pytest.raises(LogFailed, match="was removed or replaced"):
        write(log, 1)
    away.rename(folder)
    write(log, 3)
    log.close()
    assert read(folder) == [1, 2, 3, 4, 5]


def test_records_that_failed_and_could_not_be_cut_off_are_void(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log.open(tmp_path, LINEAGE)
    write(log, 3)
    failing = FailingSync(monkeypatch)
    log.append(4, b"lost")

    def cannot(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    failing.left = 1
    with monkeypatch.context() as broken:
        broken.setattr(os, "ftruncate", cannot)
        with pytest.raises(LogFailed):
            log.sync()
    write(log, 2)
    log.close()
    (_, old), _ = segment.list_segments(tmp_path)
    assert [r.payload for r in segment.read_records(old, segment.read_header(old))][-1] == b"lost"
    assert read(tmp_path) == [1, 2, 3, 4, 5]


def test_durable_records_that_are_gone_after_a_failure_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log.open(tmp_path, LINEAGE)
    write(log, 3)
    failing = FailingSync(monkeypatch, lambda fd: os.ftruncate(fd, segment.HEADER_BYTES + 10))
    log.append(4, b"lost")
    failing.left = 1
    with pytest.raises(LogDamaged, match="records 1 to 3 were on the disk and cannot be read"):
        log.sync()


def test_a_write_that_fails_for_another_reason_leaves_the_log_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log.open(tmp_path, LINEAGE)
    write(log, 3)
    real = os.pwrite

    def halfway(fd: int, data: memoryview, at: int) -> int:
        if len(data) > 1:
            return real(fd, data[: len(data) // 2], at)
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", halfway)
        with pytest.raises(LogFailed, match="up to sequence 3 are kept"):
            log.append(4, payload(4))
    write(log, 2)
    log.close()
    assert read(tmp_path) == [1, 2, 3, 4, 5]


def test_a_payload_that_looks_like_a_record_is_none(tmp_path: Path) -> None:
    """Who sends changes cannot know the salt of the file they end up in."""
    fake = segment.encode_record(segment.SegmentHeader(1, LINEAGE, 0), 99, 98, b"gotcha")
    log = Log.open(tmp_path, LINEAGE)
    log.append(1, fake * 3)
    log.sync()
    log.append(2, fake * 3)
    os.pwrite(log._fd, b"\xff", log._end - len(fake))
    os.close(log._fd)
    log = Log.open(tmp_path, LINEAGE)
    assert (log.last, log.torn is not None) == (1, True)
    log.close()
