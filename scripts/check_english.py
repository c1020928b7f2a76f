#!/usr/bin/env python3
"""Check that docs pages and the texts in Python files are plain English.

Checked: words and phrases of `WORDS`, docstrings that begin with a section such as `Args:` or with a
clause (Whether, What, Who …), and sentences of pages that are longer than `LONGEST` words. Python texts are
docstrings, comments and string literals that have blanks in them. Names that code defines, and names of
tests, are without the words of `NAMES`. Not checked: code fences, code in backticks, link targets, and
generated tables.

    scripts/check_english.py [--count] [FILE or FOLDER ...]

Prints `file:line: what was found: what to write instead`, and exits with 1; --count prints numbers only.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
DISTRIBUTIONS = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("packages/*"))
PAGES = ("README.md", "CHANGELOG.md", "docs")
PAGES += tuple(
    f"{each}/{name}" for each in DISTRIBUTIONS for name in PAGES if (ROOT / each / name).exists()
)
SOURCES = ("src", *(f"{each}/src" for each in DISTRIBUTIONS), "benchmarks", "examples")
EXEMPT = ("src/hopline/transports/proto", "packages/mesh/src/hopline_mesh/proto")
#: Folders whose files are checked for the names of their tests only.
TESTS = ("tests", *(f"{each}/tests" for each in DISTRIBUTIONS if (ROOT / each / "tests").is_dir()))
#: Folders where code may have names with words of `NAMES`: theirs are known to users, or not changed yet.
UNNAMED = (
    "src/hopline/packaging",
    "src/hopline/testing",
    "packages/stores/src/hopline_stores/testing",
    "packages/mesh/src",
    "benchmarks",
    "examples",
)
#: Words of the longest sentence of a page; code in backticks counts as one word.
LONGEST = 35

#: Regular expression (a blank is any white space) -> what to write instead.
WORDS = {
    r"(?:that|which|what) (?:is|are) (?:none|no(?! (?:longer|more|less)\b))": "is not a …",
    r"(?:is|are|was|were|be|been) (?:not there|there(?: already)?(?=[.,;:)]))": "exists, is missing",
    r"(?:is|are|was|were|be|been|being) ended": "is stopped, is killed",
    r"nobody|somebody|anybody|everybody": "no caller, a caller, any caller, all callers",
    r"anew": "again",
    r"as (?:it is|it was|they are|they were)(?=[.,;:)])": "unchanged",
    r"aside": "in the background, separately",
    r"at once": "immediately, or: at the same time",
    r"beside": "next to, with, in addition to",
    r"brought": "fetched, moved, passed",
    r"by (?:itself|themselves)": "alone, automatically",
    r"(?:comes?|came|coming) twice": "is repeated",
    r"count(?:s|ed)? for": "counts as",
    r"embedding tables?": "state cache",
    r"(?:for so long|so long as)": "for that time, while",
    r"g(?:o|oes|oing|one) on|went on": "continues, resumes",
    r"(?:gives?|gave|given|giving) back": "returns, releases",
    r"henceforth|hitherto|lest|nonetheless|thereby|therein|thereof|whence|whereupon": "plain words",
    r"in (?:silence|vain|company)|to be had": "silently, without success, with others, available",
    r"in which case": "a new sentence: Then …",
    r"(?:keeps?|kept|rows|stored) near|kept rows|rows kept": "L1 feature cache, cached rows",
    r"ladders?|rungs?": "fallback order, fallback",
    r"(?:lets?|letting) (?:\w+ )?go(?: of)?": "releases, unloads",
    r"of (?:its|their) own": "own, separate",
    r"one after (?:another|the other)": "one at a time, in order",
    r"referees?|nursery|zygotes?|leash|late lane|known heads?": "rollout judge, fork server, …",
    r"rehears\w*": "pre-flight",
    r"says? so": "reports that …",
    r"shall": "must",
    r"st(?:ands?|ood) for": "represents, means",
    r"table files?": "precomputed answers, file of precomputed answers",
    r"table models?": "tabular model",
    r"t(?:akes?|ook) part": "is included, participates",
    r"tells? of": "reports",
    r"the same of": "as …, for …",
    r"told": "reported, configured, asked; or name the message",
    r"turn(?:s|ed|ing)? away": "reject",
    r"what concerns|otherwise than|tall(?:y|ies)": "about, differently from, counts",
    r"wherever": "where, everywhere that",
    r"whoever|whom|who asks": "the caller, the client, anyone who",
}
#: Words of names -> what to write instead.
NAMES = {
    r"tell|tells|told|untold|heard|hear|hears": "report, notify, receive",
    r"ask|asks|asked": "request, call, requested",
    r"doubts?|boarding|landed": "lagging, outbox, delivered",
}
#: Names of files that do not say what is in them.
NAMELESS = re.compile(r"(?:contents|copies|counted|direct|held|judged|needed|settled|usual|watched)\.py")
_NAMES = re.compile(r"(?:^|_)(?:" + "|".join(f"({words})" for words in NAMES) + r")(?=_|$)")
_BETTER_NAMES = tuple(NAMES.values())
_BETTER = tuple(WORDS.values())
_WORDS = re.compile(rf"\b(?:{'|'.join(f'({words})' for words in WORDS)})\b".replace(" ", r"\s+"))
_SECTION = re.compile(r"\s*(?:Args|Returns|Raises|Yields|Attributes|Examples?|Notes?):")
_CLAUSE = re.compile(r"(?:Whether|What|Which|Whose?|Where|When|How)\b")
_WHETHER = re.compile(r"(?m)^ +(?:\w+(?:, \w+)*|Returns): whether |\b[Rr]eturns? whether ")
_GENERATED = re.compile(r"<!-- ([\w-]+):start -->.*?<!-- \1:end -->", re.DOTALL)
_FENCE = re.compile(r"^ *```.*?^ *```\s*?$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`[^`]+`")
_TARGET = re.compile(r"(?<=\])\([^()\s]*\)|<!--.*?-->|https?://[^\s)>]+", re.DOTALL)
_START = re.compile(r"\s*(?:[-*+>#]+|\d+\.)\s|\s*\|")
_END = re.compile(r"[.!?][\"')*]*\s+(?=[\"'(*\[]*[A-Z0-9`])")
_QUOTES = re.compile(r"([a-zA-Z]*)(\"\"\"|'''|\"|')")


class Finding(NamedTuple):
    """One thing to mend."""

    line: int
    what: str
    better: str


def files() -> Iterator[str]:
    """Paths of all files that are checked, from the root."""
    for names, pattern in ((PAGES, "*.md"), ((*SOURCES, *TESTS), "*.py")):
        for name in names:
            place = ROOT / name
            for file in sorted(place.rglob(pattern)) if place.is_dir() else [place]:
                path = file.relative_to(ROOT).as_posix()
                if not path.startswith(EXEMPT):
                    yield path


def check_page(text: str) -> list[Finding]:
    """Words and long sentences of a Markdown page."""
    for pattern, blank in ((_GENERATED, " "), (_FENCE, " "), (_CODE, "`"), (_TARGET, " ")):
        text = pattern.sub(lambda part, to=blank: re.sub(r"[^\n]", to, part[0]), text)
    return sorted([*_words(text), *_long(text)])


def check_python(source: str) -> list[Finding]:
    """Words in docstrings, comments and strings, and docstrings that begin with a section or a clause."""
    found = list(_words(_CODE.sub(lambda part: re.sub(r"[^\n]", "`", part[0]), _texts(source))))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            begin = _SECTION.match(text) or _CLAUSE.match(text)
            if begin:
                better = "begin with a noun or a verb that says what it is"
                found.append(Finding(node.body[0].lineno, begin[0], better))
    return sorted(found)


def check_entries(source: str) -> list[Finding]:
    """Descriptions of truth values that begin with "whether", in docstrings and comments."""
    texts = _texts(source)
    return [
        Finding(texts.count("\n", 0, match.end()) + 1, "whether", "True if …")
        for match in _WHETHER.finditer(texts)
    ]


def check_names(path: str, source: str) -> list[Finding]:
    """Words of `NAMES` in the names of tests, and of all that a source file defines."""
    found: list[Finding] = []
    if NAMELESS.fullmatch(Path(path).name) and not path.startswith(UNNAMED):
        found.append(Finding(1, f"the name {Path(path).name}", "a noun that says what is in the file"))
    for node in ast.walk(ast.parse(source)):
        name = getattr(node, "name", None) or getattr(node, "arg", None)
        is_test = isinstance(name, str) and name.startswith("test_")
        if isinstance(getattr(node, "ctx", None), ast.Store):
            name = getattr(node, "id", None) or getattr(node, "attr", None)
        if isinstance(name, str) and (is_test or not path.startswith((*UNNAMED, *TESTS))):
            snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
            for match in _NAMES.finditer(snake):
                found.append(Finding(node.lineno, f"the name {name}", _BETTER_NAMES[match.lastindex - 1]))
    return found


def _words(text: str) -> Iterator[Finding]:
    for match in _WORDS.finditer(text.lower()):
        shown = " ".join(text[slice(*match.span())].split())
        yield Finding(text.count("\n", 0, match.start()) + 1, repr(shown), _BETTER[match.lastindex - 1])


def _long(text: str) -> Iterator[Finding]:
    """Sentences of paragraphs and list items; a table is neither."""
    parts: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if parts and parts[-1][1] and line.strip() and not _START.match(line):
            parts[-1] = (parts[-1][0], f"{parts[-1][1]}\n{line}")
        else:
            parts.append((number, "" if line.lstrip().startswith("|") else line))
        if line.startswith("#"):
            parts.append((number, ""))
    for number, part in parts:
        first = 0
        for end in [*(match.end() for match in _END.finditer(part)), len(part)]:
            words = sum(1 for word in part[first:end].split() if re.search(r"[\w`]", word))
            if words > LONGEST:
                line = number + part.count("\n", 0, first)
                yield Finding(line, f"a sentence of {words} words", f"at most {LONGEST}; better below 25")
            first = end


def _texts(source: str) -> str:
    """The source with `|` for each character that is not in a text; lines and columns stay."""
    shown = [re.sub(r"\S", "|", line) for line in source.splitlines(keepends=True)]
    middle = getattr(tokenize, "FSTRING_MIDDLE", None)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = token.string
        if token.type == tokenize.COMMENT:
            text = text.replace("#", " ")
        elif token.type == tokenize.STRING and " " in text:
            prefix, quotes = _QUOTES.match(text).groups()
            first = len(prefix + quotes)
            inner = text[first : -len(quotes)]
            if "f" in prefix.lower():
                inner = re.sub(r"\{[^{}]*\}", lambda part: "|" * len(part[0]), inner)
            text = " " * first + inner + " " * len(quotes)
        elif token.type != middle:
            continue
        row, column = token.start
        for offset, line in enumerate(text.split("\n")):
            at = column if offset == 0 else 0
            old = shown[row - 1 + offset]
            shown[row - 1 + offset] = old[:at] + line + old[at + len(line) :]
    return "".join(shown)


def check(path: str, text: str) -> list[Finding]:
    """All findings in a file, by the kind that its path shows."""
    if path.endswith(".md"):
        return check_page(text)
    words = [] if path.startswith(TESTS) else check_python(text)
    if not path.startswith((*UNNAMED, *TESTS)):
        words += check_entries(text)
    return sorted([*words, *check_names(path, text)])


def main() -> int:
    """Check the files of the arguments, or all; say by the exit code whether all is well."""
    arguments = [word for word in sys.argv[1:] if word != "--count"]
    chosen = [Path(word).resolve() for word in arguments] or [ROOT]
    counts: Counter[str] = Counter()
    for path in files():
        file = ROOT / path
        if not any(file == place or place in file.parents for place in chosen):
            continue
        for line, what, better in check(path, file.read_text()):
            counts[path.partition("/")[0]] += 1
            if "--count" not in sys.argv:
                print(f"{path}:{line}: {what}: {better}")
    if "--count" in sys.argv:
        print("\n".join(f"{count:6} {folder}" for folder, count in sorted(counts.items())))
    return 1 if counts else 0


if __name__ == "__main__":
    sys.exit(main())
