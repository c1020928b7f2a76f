"""The language of rules and computed columns: `attributes.country in ["DE", "FR"] and input.amount > 100`.

The syntax is Python's, of which only what is listed in `compile.py` means anything: an expression is parsed
here, its names are collected, and everything else is refused with its place. It is never evaluated as
Python.

Why none of the libraries: simpleeval (well kept) walks the tree for each value and takes `and` for
Python's, which arrays have none of; cel-python interprets one row at a time in milliseconds; numexpr
compiles for arrays but has texts only as bytes and passes its input to `eval`. None knows types before it
runs, and a pipeline is to be refused at load.
"""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from hopline.errors import PipelineInvalid

#: ("input", "amount"), ("attributes", "country") or (step id, output name)
Reference: TypeAlias = tuple[str, str]

_MAX_LENGTH, _MAX_DEPTH = 2000, 40


@dataclass(frozen=True, slots=True)
class Parsed:
    """An expression whose names are known and whose types are not yet.

    Attributes:
        text: as written.
        tree: of Python's syntax.
        references: every value that it reads, in order of appearance.
    """

    text: str
    tree: ast.expr
    references: tuple[Reference, ...]

    def refuse(self, node: ast.expr, why: str) -> NoReturn:
        """Say what is wrong, and where."""
        raise PipelineInvalid(f"{json.dumps(self.text)}, column {node.col_offset + 1}: {why}")


def parse(text: str) -> Parsed:
    """Read an expression.

    Raises:
        PipelineInvalid: not one, or too long or too deep.
    """
    if len(text) > _MAX_LENGTH:
        raise PipelineInvalid(f"an expression of {len(text)} characters; at most {_MAX_LENGTH} are read")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise PipelineInvalid(f"{json.dumps(text)}, column {error.offset or 1}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:  # a null character; too deep for Python
        raise PipelineInvalid(f"{json.dumps(text[:80])} cannot be read: {error}") from None
    found: dict[Reference, None] = {}
    parsed = Parsed(text.strip(), tree, ())
    _collect(parsed, tree, found, 0)
    return Parsed(parsed.text, tree, tuple(found))


def reference_of(node: ast.expr) -> Reference | None:
    """The value that a node names, if it names one: `owner.name` or `owner["name"]`."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.value.id, node.attr
    if (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and isinstance(node.slice, ast.Constant)
        and isinstance(node.slice.value, str)
    ):
        return node.value.id, node.slice.value
    return None


def _collect(parsed: Parsed, node: ast.expr, found: dict[Reference, None], depth: int) -> None:
    if depth > _MAX_DEPTH:
        parsed.refuse(node, f"nested deeper than {_MAX_DEPTH}")
    reference = reference_of(node)
    if reference is not None:
        found.setdefault(reference)
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            _collect(parsed, child, found, depth + 1)
