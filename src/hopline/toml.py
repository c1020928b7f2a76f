"""The reader of all TOML files.

Python's parser fails with other errors than its own on integers of thousands of digits and on deep nesting.
It also accepts integers of any size, and dotted keys of any depth, which fail later, in code that converts,
prints or walks the values.
"""

from __future__ import annotations

import tomllib
from tomllib import TOMLDecodeError
from typing import Any

__all__ = ["TOMLDecodeError", "parse_toml"]

#: TOML requires integers of 64 bits, and an error for those that a reader cannot represent.
_LEAST, _MOST = -(2**63), 2**63 - 1
#: Most tables and lists within each other; the files of Hopline have up to five.
_MAX_DEPTH = 100


def parse_toml(text: str) -> dict[str, Any]:
    """Parse the text of a TOML file.

    Raises: TOMLDecodeError: it is not TOML, has an integer beyond 64 bits, or is nested too deeply.
    """
    try:
        tree = tomllib.loads(text)
        _check(tree, "", 0)
    except TOMLDecodeError:
        raise
    except ValueError:  # Python converts at most some thousand digits
        raise TOMLDecodeError(f"an integer must be within 64 bits, {_LEAST} to {_MOST}") from None
    except RecursionError:
        raise TOMLDecodeError(_too_deep("")) from None
    return tree


def _check(value: Any, key: str, depth: int) -> None:
    if isinstance(value, int) and not _LEAST <= value <= _MOST:
        raise TOMLDecodeError(f"{key}: an integer must be within 64 bits, {_LEAST} to {_MOST}")
    if not isinstance(value, dict | list):
        return
    if depth > _MAX_DEPTH:
        raise TOMLDecodeError(_too_deep(key[:50]))
    if isinstance(value, dict):
        for name, each in value.items():
            _check(each, f"{key}.{name}" if key else name, depth + 1)
    else:
        for each in value:
            _check(each, key, depth + 1)


def _too_deep(key: str) -> str:
    where = f"{key}…: " if key else ""
    return f"{where}tables and lists are nested too deeply; at most {_MAX_DEPTH} within each other"
