"""A log has an id, which all its workers and readers see, and no copy of it has."""

import shutil
from concurrent.futures import ThreadPoolExecutor

from hopline.records.names import id_of, made_id


def test_an_id_is_made_once(tmp_path):
    assert id_of(tmp_path) == ""
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(made_id, [tmp_path] * 32))
    (made,) = found
    assert len(made) == 32
    assert id_of(tmp_path) == made
    assert [path.name for path in tmp_path.iterdir()] == ["log.id"]


def test_a_file_of_the_log_has_its_id(tmp_path):
    made = made_id(tmp_path)
    (tmp_path / "predictions.jsonl").touch()
    assert id_of(tmp_path / "predictions.jsonl") == made


def test_a_moved_log_keeps_its_id_and_a_copy_is_another_log(tmp_path):
    folder = tmp_path / "log"
    folder.mkdir()
    made = made_id(folder)
    shutil.copytree(folder, tmp_path / "copy")
    assert id_of(tmp_path / "copy") == ""
    other = made_id(tmp_path / "copy")
    assert other not in ("", made)
    assert id_of(tmp_path / "copy") == other
    folder.rename(tmp_path / "moved")
    assert id_of(tmp_path / "moved") == made


def test_a_folder_that_cannot_be_written_has_none(tmp_path):
    assert made_id(tmp_path / "absent") == ""
    (tmp_path / "log.id").write_bytes(b"\xff\xfe")
    assert id_of(tmp_path) == ""
