"""The quickstart, the guides and the README do what they say."""

import shutil

import pytest

from tests.docs.player import ROOT, play

GUIDES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("docs/guides", "packages/*/docs")
    for path in ROOT.glob(f"{folder}/*.md")
)
CONTINUES = "continues the [quickstart](../quickstart.md)"


def test_the_quickstart_works_as_written(quickstart):
    assert (quickstart / "models" / "risk" / "1" / "model.json").is_file()


def test_the_quickstart_can_be_followed_again(check_docs, quickstart, tmp_path):
    shutil.copytree(quickstart, tmp_path, dirs_exist_ok=True)
    play(check_docs, "docs/quickstart.md", tmp_path)


def test_the_readme_works_as_written_and_once_more(check_docs, tmp_path):
    for _ in range(2):
        play(check_docs, "README.md", tmp_path)


@pytest.mark.parametrize("page", GUIDES)
def test_a_page_works_as_written(page, check_docs, quickstart, tmp_path):
    if CONTINUES in " ".join((ROOT / page).read_text().split()):
        for folder in ("graph", "models"):
            shutil.copytree(quickstart / folder, tmp_path / folder)
    play(check_docs, page, tmp_path)
