"""Replaces Python arguments in the messages of library functions by flags of the command.

A library function says `pass overwrite=True`; a user of the command needs `--overwrite`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

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
