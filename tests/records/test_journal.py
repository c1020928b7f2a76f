"""Files: finished by size and age, converted, deleted when old, whole after kill -9, in order when read."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hopline.config.reader import load_config
from hopline.errors import BadRequest
from hopline.records.entry import Entry, EntryWriter
from hopline.records.journal import Journal, delete_oldest
from hopline.records.names import log_files
from hopline_drift.convert import convert
from hopline_drift.log_reader import LogReader

ROOT = Path(__file__).resolve().parents[2]


def settings(folder, **changes):
    overrides = {"prediction_log.path": folder, "prediction_log.rotate_bytes": 4096}
    overrides |= {f"prediction_log.{name}": value for name, value in changes.items()}
    return load_config(overrides=overrides).prediction_log


def opened(folder, worker=0, clock=time.time, **changes):
    journal = Journal(settings(folder, **changes), worker, clock)
    journal.open()
    return journal


def line(number, at=None):
    buffer = bytearray()
    EntryWriter(lambda: None).append(
        Entry(f"r{number}", float(number if at is None else at), "m", "1"), buffer
    )
    return bytes(buffer)


def numbers(folder):
    return [int(entry.request_id[1:]) for entry in LogReader(folder)]


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_files_are_finished_by_size_in_the_form_requested(form, tmp_path):
    journal = opened(tmp_path, format=form)
    for number in range(250):
        journal.write(line(number), number)
    assert journal.close(120)
    files = log_files(tmp_path)
    assert len(files) > 2
    assert {file.form for file in files} == {f".{form}"}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(file.path.name for file in files)
    if form == "jsonl":
        assert max(file.path.stat().st_size for file in files) < 4096 + 200
    assert numbers(tmp_path) == list(range(250))


def test_files_are_finished_by_age(tmp_path):
    now = [1000.0]
    journal = opened(tmp_path, clock=lambda: now[0], rotate_s=60)
    journal.write(line(1), 1)
    now[0] += 59
    journal.turn()
    journal.write(line(2), 2)
    now[0] += 2
    journal.turn()
    journal.write(line(3), 3)
    journal.close(5)
    assert [numbers(file.path) for file in log_files(tmp_path)] == [[1, 2], [3]]


def test_a_file_is_seen_under_its_name_only_when_it_is_finished(tmp_path):
    journal = opened(tmp_path)
    journal.write(line(1), 1)
    (file,) = log_files(tmp_path)
    assert file.form == ".jsonl.part"
    assert numbers(tmp_path) == [1]  # readers look into it all the same
    journal.close(5)
    (file,) = log_files(tmp_path)
    assert file.form == ".jsonl"


def test_the_oldest_files_are_deleted_and_never_one_that_is_written(tmp_path):
    journal = opened(tmp_path, keep_bytes=20_000)
    for number in range(2000):
        journal.write(line(number), number)
    journal.close(5)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 20_000
    kept = numbers(tmp_path)
    assert kept == list(range(kept[0], 2000))
    assert len(kept) > 100
    journal = opened(tmp_path)
    journal.write(line(5000), 5000)
    delete_oldest(tmp_path, 0)
    assert numbers(tmp_path) == [5000]
    journal.close(5)


def test_workers_never_share_a_file_and_are_read_in_order_of_time(tmp_path):
    journals = [opened(tmp_path, worker) for worker in range(3)]
    for number in range(300):
        journals[number % 3].write(line(number), number)
    twins = [opened(tmp_path, 7) for _ in range(2)]  # even with the same number, at the same time
    for twin in twins:
        twin.write(line(1000), 1000)
    for journal in (*journals, *twins):
        journal.close(5)
    assert numbers(tmp_path) == [*range(300), 1000, 1000]


def test_a_reader_opens_files_when_their_time_comes(tmp_path):
    journal = opened(tmp_path)
    for number in range(500):
        journal.write(line(number), number)
    journal.close(5)
    reader = LogReader(tmp_path)
    assert len(reader.files) > 4
    next(iter(reader))
    assert len(reader._opened) == 1
    assert reader.done < 0.3


def test_the_last_entries_are_read_without_the_rest(tmp_path):
    journals = [opened(tmp_path, worker) for worker in range(2)]
    for number in range(500):
        journals[number % 2].write(line(number), number)
    for journal in journals:
        journal.close(5)
    for file in log_files(tmp_path):
        last = max(entry.time for entry in LogReader(file.path))
        os.utime(file.path, (last, last))
    reader = LogReader(tmp_path)
    assert [entry.request_id for entry in reader.last(7)] == [f"r{number}" for number in range(493, 500)]
    assert len(reader._opened) < len(reader.files)
    assert [entry.request_id for entry in reader.last(10**6)] == [f"r{number}" for number in range(500)]
    assert reader.last(5, lambda entry: entry.model == "other") == []


_WRITER = """
import sys, time
from tests.records.test_journal import *
journal = opened(Path(sys.argv[1]), rotate_bytes=2**20)
number = 0
while True:
    lines = b"".join(line(number + i) for i in range(50))
    journal.write(lines, number)
    number += 50
    print(number, flush=True)
"""


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_only_the_server_s_user_can_read_entries(form, tmp_path):
    folder = tmp_path / "log"
    before = os.umask(0o022)
    try:
        journal = opened(folder, format=form)
        for number in range(100):
            journal.write(line(number), number)
        written = []
        for path in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # it has got its final name meanwhile
                written.append(path.stat().st_mode & 0o777)
        assert journal.close(120)
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert written
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} | set(written) == {0o600}


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_what_a_killed_writer_wrote_is_whole(form, tmp_path):
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    with writer.stdout:
        for _ in range(20):
            written = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    *_, file = log_files(tmp_path)  # a new one begins with each hour
    assert file.form == ".jsonl.part"
    with file.path.open("ab") as torn:
        torn.write(line(99)[:-20])
    reader = LogReader(tmp_path)
    found = [int(entry.request_id[1:]) for entry in reader]
    assert reader.num_torn == 1
    assert found == list(range(len(found)))
    assert len(found) >= written
    opened(tmp_path, format=form).close(30)  # the next start finishes the file
    assert {file.form for file in log_files(tmp_path)} == {f".{form}"}
    reader = LogReader(tmp_path)
    assert [int(entry.request_id[1:]) for entry in reader] == found
    assert reader.num_torn == 0


def test_a_file_whose_writer_lives_is_left_to_it(tmp_path):
    journal = opened(tmp_path)
    journal.write(line(1), 1)
    opened(tmp_path, 1).close(5)
    (file,) = log_files(tmp_path)
    assert file.form == ".jsonl.part"
    journal.write(line(2), 2)
    journal.close(5)
    assert numbers(tmp_path) == [1, 2]


def test_a_crash_within_a_conversion_shows_no_entry_twice(tmp_path):
    journal = opened(tmp_path)
    journal.write(line(1), 1)
    journal.close(5)
    (file,) = log_files(tmp_path)
    before = file.path.read_bytes()
    assert convert(file.path, file.path.with_suffix(".parquet"))
    file.path.write_bytes(before)  # as if it had died before it deleted this
    (tmp_path / (file.stem + ".parquet.draft")).write_bytes(b"half")
    assert numbers(tmp_path) == [1]
    opened(tmp_path, format="parquet").close(30)
    assert [path.name for path in tmp_path.iterdir()] == [file.stem + ".parquet"]


def test_a_conversion_that_fails_leaves_the_file_readable(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("hopline.records.journal._CONVERT", (sys.executable, "-c", "exit('no room')"))
    journal = opened(tmp_path, format="parquet")
    journal.write(line(1), 1)
    assert journal.close(120)
    assert "no room" in caplog.text
    assert numbers(tmp_path) == [1]


def test_a_reader_finds_files_that_are_finished_while_it_reads(tmp_path):
    journal = opened(tmp_path)
    journal.write(line(1), 1)
    reader = LogReader(tmp_path)
    journal.close(5)
    (file,) = log_files(tmp_path)
    assert convert(file.path, tmp_path / (file.stem + ".parquet"))
    assert [entry.request_id for entry in reader] == ["r1"]


def test_lines_that_are_no_entries_are_counted(tmp_path):
    path = tmp_path / "predictions-20260101T000000.000000Z-w0-1.jsonl"
    path.write_bytes(line(1) + b"garbage\n" + line(2) + b"{}\n")
    reader = LogReader(tmp_path)
    assert [entry.request_id for entry in reader] == ["r1", "r2"]
    assert (reader.num_bad, reader.num_torn) == (2, 0)


def test_a_torn_parquet_file_is_counted(tmp_path):
    (tmp_path / "predictions-20260101T000000.000000Z-w0-1.parquet").write_bytes(b"PAR1 and no more")
    reader = LogReader(tmp_path)
    assert list(reader) == []
    assert reader.num_torn == 1


def test_what_is_no_log_is_reported(tmp_path):
    with pytest.raises(BadRequest, match="no such file"):
        LogReader(tmp_path / "nothing")
    with pytest.raises(BadRequest, match="is not a prediction log"):
        LogReader(tmp_path)
