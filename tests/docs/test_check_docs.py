"""scripts/check_docs.py passes, and would notice."""

import hashlib

import pytest


def test_the_documentation_is_complete_and_current(check_docs):
    assert check_docs.problems() == []


def test_every_kind_of_route_is_found(check_docs):
    found = check_docs.routes()
    assert {
        "/",
        "/v1/models/<model>/score",
        "/v1/models/<model>/versions/<version>/score",
        "/v2/health/live",
        "/v2/models/<model>",
        "/v2/models/<model>/infer",
        "/v2/models/<model>/versions/<version>/stats",
        "/v2/repository/models/<model>/unload",
    } <= set(found)


@pytest.mark.parametrize(
    ("page", "cut", "said"),
    [
        ("docs/index.md", "`hopline.Client`", "public name"),
        ("docs/http-api.md", "`/v2/models/<model>/stats`", "route"),
        ("docs/grpc-api.md", "`ModelStreamInfer`", "method"),
        ("docs/operations.md", "`hopline_queue_rows`", "metric"),
        ("packages/mesh/docs/api.md", "`/v1/mesh/incidents/<id>`", "route"),
        ("packages/mesh/docs/api.md", "`GetGraph`", "method"),
        ("packages/mesh/docs/operations.md", "`hopline_mesh_score`", "metric"),
    ],
)
def test_what_is_left_out_is_named(check_docs, page, cut, said):
    texts = {name: file.read_text() for name, file in check_docs.pages().items()}
    texts[page] = texts[page].replace(cut, "")
    found = list(check_docs.check_mentions(texts))
    assert len(found) == 1
    assert said in found[0]
    assert cut in found[0]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("files.py        files", "", "lacks files.py"),
        ("jobs/batch/ ", "", "lacks jobs/batch/"),
        ("lifecycle.py, loaded_units.py", "lifecycle.py, fleet.py", "has fleet.py at rollout/"),
        ("sampling/ ", "samples/ ", "has samples/, which is not there"),
    ],
)
def test_a_module_that_the_list_lacks_or_invents_is_named(check_docs, old, new, said):
    page = "docs/architecture.md"
    text = (check_docs.ROOT / page).read_text()
    assert old in text
    found = list(check_docs.check_modules({page: text.replace(old, new)}))
    assert any(said in each for each in found)


@pytest.mark.parametrize("page", ["docs/index.md", "docs/packaging.md", "docs/architecture.md"])
def test_lists_of_convolutions_are_those_of_the_code(check_docs, page):
    texts = {name: file.read_text() for name, file in check_docs.pages().items()}
    texts[page] = texts[page].replace("TransformerConv", "EdgeConv")
    assert list(check_docs.check_convolutions(texts)) == [
        f"{page}: TransformerConv is not in the list of convolutions that are split",
        f"{page}: EdgeConv is in the list of convolutions that are split, and has no dense form",
    ]


def test_a_file_that_a_page_for_developers_invents_is_named(check_docs):
    found = list(check_docs.check_files({"CONTRIBUTING.md": "`engine/plan.py` and `engine/absent.py`"}))
    assert found == ["CONTRIBUTING.md: engine/absent.py is not there"]


@pytest.mark.parametrize(
    "text", ["[a](absent.md)", "[a](docs/index.md#absent)", "[a](#absent)", "# A\n\n[a](#b)"]
)
def test_a_link_to_nowhere_is_named(check_docs, text):
    assert len(list(check_docs.check_links({"README.md": text}))) == 1


def test_links_to_headings_and_the_web_are_fine(check_docs):
    text = "[a](docs/bad-input.md#over-http) [b](https://example.org)\n```\n[c](absent.md)\n```\n"
    assert list(check_docs.check_links({"README.md": text})) == []


@pytest.mark.parametrize("tag", ["python3", "pyhton"])
def test_an_unknown_tag_is_named(check_docs, tag):
    found = list(check_docs.check_blocks({"a.md": f"```{tag}\n1\n```\n"}))
    assert found == [f"a.md:2: tag {tag!r}; `python` or `py` is right"]


@pytest.mark.parametrize("tag", ["python no-run", "bash extra"])
def test_a_tag_of_two_words_is_named(check_docs, tag):
    assert any("one word" in line for line in check_docs.check_blocks({"a.md": f"```{tag}\n1\n```\n"}))


def test_a_page_that_is_not_in_the_navigation_is_named(check_docs):
    texts = {name: file.read_text() for name, file in check_docs.pages().items()}
    assert list(check_docs.check_nav(texts)) == []
    found = list(check_docs.check_nav(texts | {"docs/guides/new.md": "# New\n"}))
    assert found == ["zensical.toml: docs/guides/new.md is not in nav"]
    del texts["docs/glossary.md"]
    assert list(check_docs.check_nav(texts)) == [
        "zensical.toml: nav has docs/glossary.md, which is not there"
    ]


def test_a_picture_of_an_older_text_and_one_on_no_page_are_named(check_docs, tmp_path, monkeypatch):
    folder = tmp_path / "docs" / "pictures"
    folder.mkdir(parents=True)
    (folder / "a.dot").write_text("digraph { a }")
    monkeypatch.setattr(check_docs, "ROOT", tmp_path)
    wrong = "docs/pictures/a.dot: the drawing is of another text: run scripts/pictures"
    assert list(check_docs.check_pictures({"p.md": "![a](pictures/a.svg)"})) == [wrong]
    (folder / "a.svg").write_text(hashlib.sha256(b"digraph { a }").hexdigest())
    assert list(check_docs.check_pictures({"p.md": ""})) == ["docs/pictures/a.svg: it is on no page"]
    assert list(check_docs.check_pictures({"p.md": "![a](pictures/a.svg)"})) == []


def test_an_empty_default_is_none(check_docs):
    shown = check_docs.commands_table() + check_docs.settings_table() + check_docs.limits_table()
    assert "Default: ." not in shown
    assert "``" not in shown


def test_a_syntax_error_is_named_with_its_line(check_docs):
    found = list(check_docs.check_blocks({"a.md": "text\n\n```python\na = 1\nb = = 2\n```\n"}))
    assert [line.partition(":")[2].partition(":")[0] for line in found] == ["5"]


def test_an_option_that_a_command_lacks_is_named(check_docs):
    text = "```bash\nhopline serve --graph g --grahp h\nhopline sreve\n```\n"
    found = list(check_docs.check_commands({"a.md": text}))
    assert ["--grahp" in found[0], "sreve" in found[1]] == [True, True]


def test_anchors_are_those_of_github(check_docs):
    text = "# `Code` and, more!\n## Same\n## Same\n```\n# no heading\n```\n"
    assert check_docs.anchors(text) == {"code-and-more", "same", "same-1"}
