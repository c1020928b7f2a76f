"""The quickstart, the guides and the README do what they say."""

import json
import shutil
from pathlib import Path

import pytest

from tests.docs.played import COMMANDS, SLOW, digest, unchanged
from tests.docs.player import ROOT, play

GUIDES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("docs/guides", "packages/*/docs")
    for path in ROOT.glob(f"{folder}/*.md")
)
RELEASE = unchanged()
CONTINUES = "continues the [quickstart](../quickstart.md)"


def test_the_quickstart_works_as_written(quickstart):
    assert (quickstart / "models" / "risk" / "1" / "model.json").is_file()


@pytest.mark.release
def test_the_quickstart_can_be_followed_again(check_docs, quickstart, tmp_path):
    shutil.copytree(quickstart, tmp_path, dirs_exist_ok=True)
    play(check_docs, "docs/quickstart.md", tmp_path)


def test_the_readme_works_as_written_and_once_more(check_docs, tmp_path):
    for _ in range(2):
        play(check_docs, "README.md", tmp_path)


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.release) if page in RELEASE else page for page in GUIDES],
)
def test_a_page_works_as_written(page, check_docs, quickstart, tmp_path):
    if CONTINUES in " ".join((ROOT / page).read_text().split()):
        for folder in ("graph", "models"):
            shutil.copytree(quickstart / folder, tmp_path / folder)
    play(check_docs, page, tmp_path)


def test_slow_pages_are_there():
    assert set(SLOW) <= set(GUIDES)


HELP = "# Commands\n\n### hopline drift\n\nShow drift.\n\n### hopline {}\n\nShow others.\n"


@pytest.mark.parametrize(
    ("changed", "text", "played"),
    [
        ("docs/guides/drift.md", "other text", {"docs/guides/drift.md"}),
        ("docs/cli.md", HELP.format("cost").replace("drift.", "the drift."), {"docs/guides/drift.md"}),
        ("docs/cli.md", HELP.format("distill"), {"docs/guides/distill.md"}),
        ("docs/cli.md", HELP.format("cost").replace("others", "costs"), set()),
        ("docs/cli.md", "# Commands", {"docs/guides/drift.md"}),
    ],
)
def test_a_slow_page_is_left_out_until_it_or_a_command_of_its_changes(changed, text, played, tmp_path):
    for page in (*SLOW, *COMMANDS):
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / page).write_text(f"Run `hopline {Path(page).stem} --all`.")
    (tmp_path / "docs/cli.md").write_text(HELP.format("cost"))
    record = tmp_path / "played.json"
    assert unchanged(tmp_path, record) == set()
    record.write_text(json.dumps({page: digest(page, tmp_path) for page in SLOW}))
    assert unchanged(tmp_path, record) == set(SLOW)
    (tmp_path / changed).write_text(text)
    assert unchanged(tmp_path, record) == set(SLOW) - played
