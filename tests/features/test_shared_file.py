"""One file for L1: who may map it, and when it is made anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hopline.errors import ConfigError
from hopline.features import shared_file
from hopline.features.shared_file import HEADER_BYTES, SharedFile

LAYOUT = {"graph.path": "v1", "server.workers": "2"}
OTHER = {**LAYOUT, "server.workers": "3"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows"


def put(file: SharedFile, data: bytes) -> None:
    os.pwrite(file.fd, data, HEADER_BYTES)


def got(file: SharedFile, count: int) -> bytes:
    return os.pread(file.fd, count, HEADER_BYTES)


def test_it_is_made_whole_zero_and_private(path):
    file = SharedFile.join(path, LAYOUT, 10_000, 0)
    assert path.stat().st_size == HEADER_BYTES + 10_000
    assert path.stat().st_mode & 0o777 == 0o600
    assert not any(got(file, 10_000))
    file.close()


def test_writers_of_one_layout_share_it_and_it_outlives_them(path):
    first, second = (SharedFile.join(path, LAYOUT, 100, writer) for writer in (0, 1))
    assert first.identity == second.identity
    put(first, b"row")
    first.close()
    assert got(second, 3) == b"row"
    second.close()
    third = SharedFile.join(path, LAYOUT, 100, 0)
    assert got(third, 3) == b"row"
    third.close()


def test_another_layout_is_refused_while_somebody_uses_it(path):
    first = SharedFile.join(path, LAYOUT, 100, 0)
    put(first, b"row")
    with pytest.raises(
        ConfigError, match=r"^features.shared_file: .*server.workers is 2 in the file, 3 in this process"
    ):
        SharedFile.join(path, OTHER, 100, 1)
    assert got(first, 3) == b"row"
    first.close()


def test_what_others_left_with_another_layout_is_made_anew(path):
    first = SharedFile.join(path, LAYOUT, 100, 0)
    put(first, b"row")
    first.close()
    second = SharedFile.join(path, OTHER, 100, 0)
    assert got(second, 3) == bytes(3)
    second.close()


def test_rows_of_another_boot_are_not_used(path, monkeypatch):
    first = SharedFile.join(path, LAYOUT, 100, 0)
    put(first, b"row")
    first.close()
    monkeypatch.setattr(shared_file, "boot_id", lambda: "another")
    second = SharedFile.join(path, LAYOUT, 100, 0)
    assert got(second, 3) == bytes(3)
    second.close()


def test_a_number_is_given_once(path):
    first = SharedFile.join(path, LAYOUT, 100, 0)
    with pytest.raises(ConfigError, match=r"^features.shared_file: another process .* writer 0"):
        SharedFile.join(path, LAYOUT, 100, 0)
    first.close()
    SharedFile.join(path, LAYOUT, 100, 0).close()


def test_a_file_of_somebody_else_is_left_alone(path):
    path.write_text("dear diary")
    with pytest.raises(ConfigError, match=r"^features.shared_file: .* not a file of Hopline"):
        SharedFile.join(path, LAYOUT, 100, 0)
    assert path.read_text() == "dear diary"


def test_a_half_made_file_is_made_anew(path):
    path.write_bytes(bytes(5000))
    file = SharedFile.join(path, LAYOUT, 100, 0)
    file.close()
    SharedFile.join(path, LAYOUT, 100, 0).close()


def test_a_path_that_cannot_be_opened_names_the_setting(path):
    with pytest.raises(ConfigError, match=r"^features.shared_file: .* No such file"):
        SharedFile.join(path / "no" / "folder", LAYOUT, 100, 0)


def test_too_little_room_names_the_size(path):
    with pytest.raises(ConfigError, match=r"features.memory_bytes"):
        SharedFile.join(path, LAYOUT, 2**60, 0)
    SharedFile.join(path, LAYOUT, 100, 0).close()  # nothing is left of it
