"""Places of new versions: whole, or nothing at all."""

import pytest

from hopline.errors import PackagingError
from hopline.packaging.folder import check_place, new_version


def test_a_version_appears_when_the_block_ends(tmp_path):
    with new_version(tmp_path / "models", "risk", "1", overwrite=False) as place:
        (place.folder / "file").write_text("content")
        assert not place.path.exists()
    assert [path.name for path in (tmp_path / "models" / "risk").iterdir()] == ["1"]
    assert (place.path / "file").read_text() == "content"


def test_a_refusal_leaves_nothing_behind(tmp_path):
    def fail():
        with new_version(tmp_path / "a" / "models", "risk", "1", overwrite=False) as place:
            (place.folder / "file").write_text("content")
            raise PackagingError("refused")

    with pytest.raises(PackagingError, match="refused"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_refusal_leaves_what_was_there(tmp_path):
    (tmp_path / "models" / "risk").mkdir(parents=True)
    (tmp_path / "models" / "risk" / "serving.toml").write_text("")
    with (
        pytest.raises(PackagingError, match="refused"),
        new_version(tmp_path / "models", "risk", "1", overwrite=False),
    ):
        raise PackagingError("refused")
    assert [path.name for path in (tmp_path / "models" / "risk").iterdir()] == ["serving.toml"]


def test_a_refusal_leaves_an_empty_repository_that_was_there(tmp_path):
    (tmp_path / "models").mkdir()
    with (
        pytest.raises(PackagingError, match="refused"),
        new_version(tmp_path / "models", "risk", "1", overwrite=False),
    ):
        raise PackagingError("refused")
    assert list((tmp_path / "models").iterdir()) == []


def test_two_at_once_do_not_take_each_others_folder(tmp_path):
    with new_version(tmp_path / "models", "risk", "2", overwrite=False) as other:
        with (
            pytest.raises(PackagingError, match="refused"),
            new_version(tmp_path / "models", "risk", "1", overwrite=False),
        ):
            raise PackagingError("refused")
        (other.folder / "file").write_text("content")
    assert (tmp_path / "models" / "risk" / "2" / "file").is_file()


@pytest.mark.parametrize(
    ("name", "version", "message"),
    [
        ("risk", 2, 'version 2: must be text; write "2"'),
        (3, "1", "model name 3: must be text"),
        ("risk", "../2", "must start with a letter or digit"),
        ("", "1", "must start with a letter or digit"),
        (".risk", "1", "must start with a letter or digit"),
    ],
)
def test_names_that_are_none_are_refused(tmp_path, name, version, message):
    with pytest.raises(PackagingError, match=message):
        check_place(tmp_path, name, version, overwrite=False)


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "models").write_text("a file")
    with (
        pytest.raises(PackagingError, match=r"models/risk/1: cannot be written: .*(exists|directory)"),
        new_version(tmp_path / "models", "risk", "1", overwrite=False),
    ):
        pass
