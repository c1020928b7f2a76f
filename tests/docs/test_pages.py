"""The quickstart, the guides and the README do what they say."""

import shutil

import pytest

from tests.docs.player import ROOT, play

GUIDES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "guides").glob("*.md"))
CONTINUES = "continues the [quickstart](../quickstart.md)"


def test_the_quickstart_works_as_written(quickstart):
    assert (quickstart / "models" / "risk" / "1" / "model.json").is_file()


@pytest.mark.parametrize("page", ["README.md", *GUIDES])
def test_a_page_works_as_written(page, check_docs, quickstart, tmp_path):
    if CONTINUES in (ROOT / page).read_text():
        for folder in ("graph", "models"):
            shutil.copytree(quickstart / folder, tmp_path / folder)
    play(check_docs, page, tmp_path)
