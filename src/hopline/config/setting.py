"""Declares one setting and reads a value for it.

Knows types, ranges and messages; no particular setting of Hopline (those are in `schema.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
import math
import re
import types
import typing
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from hopline.errors import ConfigError
from hopline.files import expanded

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_BOOLS = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}


def setting(
    default: Any,
    help: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    memory_share: float = 0.0,
    auto: bool = False,
    hidden: bool = False,
    internal: bool = False,
) -> Any:
    """A dataclass field with the metadata that the docs and the checks use.

    Integer settings whose name ends in `_bytes` also accept sizes such as "512 MiB". Choices are read
    from a `Literal` annotation.

    Args:
        default: used where no source sets the value.
        help: one line for `hopline config show` and the docs table.
        minimum, maximum: inclusive bounds of numbers.
        memory_share: the default is at most this share of the memory that the process may use; 0 is any.
        auto: the value "auto" is accepted; the reader replaces it by a number of CPUs.
        hidden: left out of tables.
        internal: set only by Hopline, between its processes; hidden, and refused from every other source.
    """
    if memory_share:
        help += f"; the default is at most 1/{1 / memory_share:g} of the memory that the process may use"
    metadata = {"help": help, "minimum": minimum, "maximum": maximum, "memory_share": memory_share}
    metadata |= {"auto": auto, "hidden": hidden or internal, "internal": internal}
    return dataclasses.field(default=default, metadata=metadata)


def read_value(value: Any, annotation: Any, path: str, field: dataclasses.Field[Any], source: str) -> Any:
    """Turn a raw value (TOML, environment string, flag) into the setting's type.

    Args:
        value: what the source holds.
        annotation: the field's resolved type.
        path: "section.key", named in errors.
        field: its metadata holds the bounds.
        source: origin of the value, named in errors.

    Raises:
        ConfigError: wrong type, out of bounds or not one of the choices.
    """

    def wrong(expected: str) -> ConfigError:
        return ConfigError(f"{path}: {value!r} ({source}) is not {expected}")

    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        inner = [part for part in typing.get_args(annotation) if part is not types.NoneType]
        if value is None or value == "":
            return None
        if inner == [Path, str] and isinstance(value, str) and "://" in value:
            return value  # the setting accepts a URL or a path
        return read_value(value, inner[0], path, field, source)
    if origin is Literal:
        choices = typing.get_args(annotation)
        if value not in choices:
            raise wrong(f"one of {', '.join(map(repr, choices))}{did_you_mean(str(value), choices)}")
        return value
    if origin is tuple:
        if isinstance(value, str) and value.lstrip().startswith("["):  # as in a file
            with contextlib.suppress(ValueError):
                value = json.loads(value)
        elif isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        if isinstance(value, list | tuple) and all(isinstance(part, str) for part in value):
            return tuple(value)
        raise wrong("a list of strings (or one string with commas)")
    if annotation is bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.strip().lower() in _BOOLS:
            return _BOOLS[value.strip().lower()]
        raise wrong("true or false")
    if annotation is int:
        number = _read_int(value, is_size=path.endswith("_bytes"))
        if number is None:
            integer = "an integer or 'auto'" if field.metadata["auto"] else "an integer"
            raise wrong("a size such as 1048576 or '512 MiB'" if path.endswith("_bytes") else integer)
        return _bounded(number, field, wrong)
    if annotation is float:
        number_f = _read_float(value)
        if number_f is None or not math.isfinite(number_f):
            raise wrong("a number")
        return _bounded(number_f, field, wrong)
    if annotation is Path:
        if not isinstance(value, str | Path):
            raise wrong("a path")
        return expanded(value, path)
    if not isinstance(value, str):
        raise wrong("a string")
    return value


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the closest known name, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def type_name(annotation: Any) -> str:
    """Name of a setting's type in the docs table."""
    if typing.get_origin(annotation) is Literal:
        return " | ".join(map(repr, typing.get_args(annotation)))
    if isinstance(annotation, type) and typing.get_origin(annotation) is None:
        return {"str": "string", "int": "integer", "float": "number", "Path": "path"}.get(
            annotation.__name__, annotation.__name__
        )
    if typing.get_origin(annotation) is tuple:
        return "list of strings"
    return " or ".join(
        type_name(part) for part in typing.get_args(annotation) if part is not types.NoneType
    )


def bounds_text(field: dataclasses.Field[Any]) -> str:
    """Bounds of a setting, for errors and the docs table: "between 4 and 100"; "" if it has none."""
    minimum, maximum = field.metadata.get("minimum"), field.metadata.get("maximum")
    if minimum is None:
        return "" if maximum is None else f"at most {maximum}"
    return f"at least {minimum}" if maximum is None else f"between {minimum} and {maximum}"


def read_size(text: str, what: str) -> int:
    """Bytes of a size such as "512 MiB", for a flag that is not a setting.

    Raises:
        ConfigError: not a size; the message starts with `what`.
    """
    size = _read_int(text, is_size=True)
    if size is None:
        raise ConfigError(f"{what}: {text!r} is not a size such as 1048576 or '512 MiB'")
    return size


def read_number(text: str) -> float | None:
    """A number in a text, such as "1", "-2.5e3", "nan" or "inf"; None if the text is not a number.

    Python's `float` also accepts "_" between digits, and digits of other scripts.
    """
    if "_" in text or not text.isascii():
        return None
    try:
        return float(text)
    except ValueError:
        return None


def _read_float(value: Any) -> float | None:
    if isinstance(value, str):
        return read_number(value)
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _read_int(value: Any, *, is_size: bool) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if not isinstance(value, str):
        return None
    if is_size:
        match = re.fullmatch(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([a-zA-Z]*)\s*", value)
        unit = _UNITS.get(match[2].lower()) if match else None
        return None if match is None or unit is None else int(float(match[1]) * unit)
    return int(value) if re.fullmatch(r"\s*[+-]?[0-9]{1,30}\s*", value) else None


def _bounded(number: Any, field: dataclasses.Field[Any], wrong: Any) -> Any:
    minimum, maximum = field.metadata.get("minimum"), field.metadata.get("maximum")
    if (minimum is not None and number < minimum) or (maximum is not None and number > maximum):
        raise wrong(bounds_text(field))
    return number


def named_values(items: Iterable[str], setting: str, known: Sequence[str]) -> dict[str, str]:
    """Read "name=value" items of a setting. Raises: ConfigError: another form, or an unknown name."""
    found = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not value:
            raise ConfigError(f'{setting}: {item!r} is not of the form "name=value"')
        if name not in known:
            raise ConfigError(f"{setting}: {name!r} is unknown{did_you_mean(name, known)}")
        found[name] = value
    return found
