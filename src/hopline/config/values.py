"""Sets values in a tree of settings: a frozen dataclass of sections, which are dataclasses of settings.

Knows paths ("section.key") and the source of each value; no particular tree.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from hopline.config.setting import did_you_mean, read_value
from hopline.errors import ConfigError

Tree = TypeVar("Tree")


@functools.cache
def fields(tree: type) -> dict[str, tuple[dataclasses.Field[Any], Any]]:
    """Path -> field and its resolved type, in declaration order."""
    found = {}
    for section, section_type in typing.get_type_hints(tree).items():
        hints = typing.get_type_hints(section_type)
        for item in dataclasses.fields(section_type):
            found[f"{section}.{item.name}"] = (item, hints[item.name])
    return found


def apply(tree: Tree, values: Mapping[str, tuple[Any, str]]) -> Tree:
    """A copy of the tree with these values.

    Args:
        values: path -> (raw value, source of the value).

    Raises: ConfigError: a path that is not in the tree, or an invalid value.
    """
    kind: Any = type(tree)
    known = fields(kind)
    changes: dict[str, dict[str, Any]] = {}
    for path, (value, source) in values.items():
        if path not in known:
            raise ConfigError(f"{path}: unknown setting ({source}){_suggestion(kind, path)}")
        item, annotation = known[path]
        section, key = path.split(".")
        changes.setdefault(section, {})[key] = read_value(value, annotation, path, item, source)
    sections = {name: dataclasses.replace(getattr(tree, name), **new) for name, new in changes.items()}
    return dataclasses.replace(tree, **sections)  # type: ignore[type-var]


def flatten(tree: Mapping[str, Any], source: str) -> dict[str, tuple[Any, str]]:
    """Nested tables -> "section.key": (value, source)."""
    flat: dict[str, tuple[Any, str]] = {}
    for section, values in tree.items():
        if isinstance(values, Mapping):
            flat.update({f"{section}.{key}": (value, source) for key, value in values.items()})
        else:
            flat[section] = (values, source)
    return flat


def flags(values: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    """Path -> (value, source) of the flags that are given."""
    return {path: (value, "flag") for path, value in values.items() if value is not None}


def _suggestion(tree: type, path: str) -> str:
    """The closest setting, by its whole path or by its last part."""
    visible = [name for name, (item, _) in fields(tree).items() if not item.metadata["hidden"]]
    key = path.rpartition(".")[2]
    same_key = [name for name in visible if name.rpartition(".")[2] == key]
    if same_key:
        return f"; did you mean {same_key[0]!r}?"
    guess = did_you_mean(path, visible)
    if not guess and "." not in path:
        sections = sorted({name.partition(".")[0] for name in visible})
        return did_you_mean(path, sections) or f"; sections are {', '.join(sections)}"
    return guess
