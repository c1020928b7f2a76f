"""Words of the command line: help of commands, flags in messages of library functions, negative numbers.

A library function says `pass overwrite=True`; a user of the command needs `--overwrite`. In
`hopline score risk -10`, the last word is a value and not an option.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from typer.core import TyperCommand, TyperOption

_NUMBER = re.compile(r"-\d[\d.,+-]*")


def summary_of(module: str) -> str:
    """The help of "`hopline NAME`: help", the first line of a command's module, which is not imported."""
    package, *names = module.split(".")
    spec = find_spec(package)  # only a package above a module would be imported
    if spec is None or not spec.submodule_search_locations:
        return ""
    path = Path(spec.submodule_search_locations[0], *names)
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    docstring = ast.get_docstring(ast.parse(source.read_bytes())) or ""
    text = docstring.partition("\n")[0].partition("`: ")[2]
    return text[:1].upper() + text[1:]


class NumbersAreValues(TyperCommand):
    """A command in which a word such as -10 or -10,-12 is a value and not an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as the base class does, with all values moved behind "--" in their order."""
        if not any(_NUMBER.fullmatch(word) for word in args):
            return super().parse_args(ctx, args)
        takes_one = {
            name
            for each in self.params
            if isinstance(each, TyperOption) and not each.is_flag
            for name in each.opts
        }
        options: list[str] = []
        values: list[str] = []
        words = iter(args)
        for word in words:
            if word == "--":
                values += words
            elif word in takes_one:
                value = next(words, None)
                if value is None:
                    return super().parse_args(ctx, [*options, word])  # reports the missing value
                options += [word, value]
            elif word.startswith("-") and word != "-" and not _NUMBER.fullmatch(word):
                options.append(word)
            else:
                values.append(word)
        return super().parse_args(ctx, [*options, "--", *values])


_ARGUMENT = re.compile(
    r"\b(?P<name>[a-z_]+)=(?P<value>True|-?\d+|'[^']*'|\"[^\"]*\"|\[[^\[\]]*\]|\{[^{}]*\}|\([^()]*\)|(?=,))"
    # as a server names a JSON field: on_missing "null"
    r"|\b(?P<field>[a-z]+_[a-z_]+) (?P<text>\"[^\"]*\")"
)


#: A way out that only some commands have.
_HINT = re.compile(r", or pass (?P<name>[a-z_]+)=True")


def flags_of(options: Sequence[Sequence[str]]) -> dict[str, str]:
    """Python name -> flag, for the options of a command, such as [["--count", "-n"]]."""
    longest = [max(names, key=len) for names in options]
    return {flag.lstrip("-").replace("-", "_"): flag for flag in longest if flag.startswith("--")}


def as_flags(text: str, flags: Mapping[str, str]) -> str:
    """A message with `overwrite=True` replaced by `--overwrite` if the command has that flag.

    If it does not have it, ", or pass overwrite=True" is left out.

    Lists and dictionaries become values of the flag: `fanouts=[10, 5]` is `--fanouts 10,5`, and
    `arguments={'w': 'edge_attr'}` is `--argument w=edge_attr`.
    """

    def worded(found: re.Match[str]) -> str:
        name, value = found["name"] or found["field"], found["value"] or found["text"] or ""
        flag = flags.get(name) or flags.get(name.removesuffix("s"))
        if flag is None:
            return found[0]
        return f"{flag} {_typed(value)}".rstrip()

    text = _HINT.sub(lambda found: found[0] if found["name"] in flags else "", text)
    return _ARGUMENT.sub(worded, text)


def _typed(value: str) -> str:
    """A Python value as typed after a flag."""
    if value == "True":
        return ""
    if value[:1] in ("'", '"'):
        return value[1:-1]
    if value[:1] == "{":
        items = (item.partition(":") for item in value[1:-1].split(","))
        return " ".join(f"{_bare(key)}{'=' if colon else ''}{_bare(item)}" for key, colon, item in items)
    if value[:1] in ("[", "("):
        return ",".join(map(_bare, value[1:-1].split(",")))
    return value


def _bare(text: Any) -> str:
    return str(text).strip().strip("'\"")
