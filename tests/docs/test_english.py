"""scripts/check_english.py finds what is not plain English, where it stands, and nothing else."""

import importlib.util
import sys

import pytest

from tests.docs.player import ROOT


@pytest.fixture(scope="module")
def english():
    spec = importlib.util.spec_from_file_location("check_english", ROOT / "scripts" / "check_english.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_english"] = module
    spec.loader.exec_module(module)
    return module


def _found(findings):
    return [(finding.line, finding.what) for finding in findings]


@pytest.mark.parametrize(
    ("source", "line", "what"),
    [
        ('"""A module.\n\nIt is told.\n"""\n', 3, "'told'"),
        ("a = 1  # Nobody asks.\n", 1, "'Nobody'"),
        ("# The worker lets\n# go of a row.\n", 1, "'lets go of'"),
        ('a = "a file that is no graph"\n', 1, "'that is no'"),
        ('a = (\n    "it lets "\n    "go of it"\n)\n', 2, "'lets go of'"),
        ('a = 1\nb = f"{a} is told twice"\n', 2, "'told'"),
        ('def f():\n    """Args:\n    a: A number.\n    """\n', 2, "Args:"),
        ('def f():\n    """Whether it works."""\n', 2, "Whether"),
    ],
    ids=["docstring", "comment", "comments", "string", "strings", "f-string", "section", "clause"],
)
def test_a_planted_fault_in_python_is_found(english, source, line, what):
    assert _found(english.check_python(source)) == [(line, what)]


@pytest.mark.parametrize(
    "source",
    [
        "told = whoever(shall, anew)\n",
        'a = {"told": 1}\n',
        'a = f"{told} is a name"\n',
        '"""The field `told` holds a number."""\n',
        '"""Return a number.\n\nArgs:\n    a: A number.\n"""\n',
        'a = ("it lets", 1, "go now")\n',
        '"""A file that is not a graph, or that is no longer a graph."""\n',
    ],
    ids=["names", "key", "expression", "backticks", "section later", "two strings", "not"],
)
def test_names_and_plain_texts_are_not_found(english, source):
    assert english.check_python(source) == []


@pytest.mark.parametrize(
    ("path", "source", "line"),
    [
        ("src/hopline/a.py", "def _tell():\n    pass\n", 1),
        ("src/hopline/a.py", "class AsksModels:\n    pass\n", 1),
        ("src/hopline/a.py", "def f(asked):\n    pass\n", 1),
        ("src/hopline/a.py", "a = 1\nself.is_heard = a\n", 2),
        ("src/hopline/a.py", "a = 1\n_UNTOLD: int = a\n", 2),
        ("src/hopline/a/held.py", "a = 1\n", 1),
        ("tests/a.py", "def test_a_loss_is_told():\n    pass\n", 1),
        ("src/hopline/testing/a.py", "def test_a_loss_is_told():\n    pass\n", 1),
    ],
    ids=["function", "class", "argument", "attribute", "constant", "file", "test", "suite"],
)
def test_a_planted_name_is_found(english, path, source, line):
    assert [finding.line for finding in english.check_names(path, source)] == [line]


@pytest.mark.parametrize(
    "text",
    [
        "Attributes:\n    a, b: whether it works.",
        "Returns: whether it works.",
        "It returns whether it works.",
    ],
)
def test_a_truth_value_says_when_it_is_true(english, text):
    source = f'def f():\n    """One.\n\n    {text}\n    """\n'
    assert [finding.what for finding in english.check_entries(source)] == ["whether"]
    assert english.check_entries(source.replace("whether", "True if")) == []


def test_names_of_helpers_of_tests_and_parts_of_words_are_not_found(english):
    assert english.check_names("tests/a.py", "def tell(asked):\n    heard = 1\n") == []
    assert english.check_names("src/hopline/a.py", "def tasks(masked, teller):\n    task = 1\n") == []


def test_a_planted_word_in_a_page_is_found_with_its_line(english):
    text = "# Title\n\nFine.\n\n| a | told |\n\nThe cache lets\ngo of it.\n"
    assert _found(english.check_page(text)) == [(5, "'told'"), (7, "'lets go of'")]


@pytest.mark.parametrize(
    "text",
    [
        "```text\ntold\n```\n",
        "See `told` and [a page](told.md).\n",
        "Not `http://` and not `told`.\n",
        "<!-- errors:start -->\n\n| told |\n\n<!-- errors:end -->\n",
    ],
    ids=["fence", "code and link", "address in code", "generated"],
)
def test_code_and_generated_parts_of_a_page_are_not_read(english, text):
    assert english.check_page(text) == []


def test_a_long_sentence_is_found_where_it_begins(english):
    fine = "Word" + " word" * (english.LONGEST - 1) + "."
    long = f"Another {fine}"
    assert english.check_page(f"{fine} A sentence. {fine}\n") == []
    (found,) = english.check_page(f"# Title\n\n- {fine}\n  {long}\n")
    assert (found.line, found.what) == (4, f"a sentence of {english.LONGEST + 1} words")


@pytest.mark.parametrize("frame", ["```\n{}\n```\n", "| {} |\n", "A `{}` b.\n"])
def test_code_and_tables_have_no_long_sentences(english, frame):
    words = " ".join(["word"] * 2 * english.LONGEST)
    assert english.check_page(frame.format(words)) == []


def test_paragraphs_and_items_are_sentences_of_themselves(english):
    half = " ".join(["word"] * (english.LONGEST - 5))
    assert english.check_page(f"# {half}\n{half}\n\n{half}\n- {half}\n1. {half}\n") == []


def test_pages_and_sources_are_checked_and_the_journal_is_not(english):
    files = set(english.files())
    assert {"README.md", "docs/index.md", "packages/mesh/docs/index.md", "src/hopline/errors.py"} <= files
    assert not any(name.startswith("log/") for name in files)
