"""Prompt templates: text with expressions in braces, as in "{input.nodes} scored {gnn.probabilities:.2f}".

An expression is one of the pipeline's own, with a format after a colon as Python has it. Two braces are
one. `input.nodes` is the id of the row's node.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from hopline.errors import PipelineInvalid
from hopline.types import AnyArray
from hopline_pipelines.compile import Expression

#: The id of a row's node.
NODES = "input.nodes"


def parts_of(template: str, where: str) -> list[tuple[str, str, str]]:
    """(text before, expression, format) of each place; the last has no expression.

    Raises: PipelineInvalid: braces that do not match, or are empty.
    """
    found = []
    try:
        for text, field, form, conversion in string.Formatter().parse(template):
            if conversion or (field is not None and not field.strip()):
                raise ValueError("a place in braces needs an expression, and has no conversion")
            found.append((text, (field or "").strip(), form or ""))
    except ValueError as error:
        raise PipelineInvalid(f"{where}: {error}; write {{{{ for a brace") from None
    return found


def expressions_of(template: str, where: str) -> Iterator[tuple[str, str]]:
    """(where, text) of each expression, without `input.nodes`."""
    for _, text, _ in parts_of(template, where):
        if text and text != NODES:
            yield where, text


class Template:
    """A template whose expressions are checked.

    Args:
        template: the text.
        where: names the key, for errors.
        expression: checks and compiles an expression.

    Attributes:
        reads_nodes: True if it has the ids of nodes.

    Raises: PipelineInvalid: what does not fit.
    """

    def __init__(self, template: str, where: str, expression: Callable[[str, str], Expression]) -> None:
        self._parts: list[tuple[str, Expression | None, str]] = []
        self.reads_nodes = False
        for text, field, form in parts_of(template, where):
            found = None
            if field == NODES:
                self.reads_nodes = True
            elif field:
                found = expression(field, where)
                if found.type.dims:
                    raise PipelineInvalid(
                        f"{where}: {field!r} is {found.type}; take one value, as with [0]"
                    )
                _check_format(found, form, where)
            self._parts.append((text, found, NODES if field == NODES else form))

    def texts(
        self, arrays: Callable[[Expression], AnyArray], nodes: Sequence[Any], count: int
    ) -> list[str]:
        """The text of each row.

        Args:
            arrays: values of an expression, for these rows.
            nodes: ids of these rows, where `reads_nodes`.
        """
        columns: list[tuple[str, Sequence[Any] | None, str]] = []
        for text, expression, form in self._parts:
            if expression is not None:
                columns.append((text, arrays(expression).tolist(), form))
            else:
                columns.append((text, nodes if form == NODES else None, ""))
        return [
            "".join(
                text + ("" if values is None else format(values[row], form))
                for text, values, form in columns
            )
            for row in range(count)
        ]


_SAMPLES = {"number": np.float64(0.5), "text": "text", "truth": True}


def _check_format(expression: Expression, form: str, where: str) -> None:
    sample: Any = _SAMPLES[expression.type.kind]
    if expression.type.kind == "number" and not expression.type.datatype.startswith("FP"):
        sample = 1
    try:
        format(sample, form)
    except (ValueError, TypeError) as error:
        raise PipelineInvalid(f"{where}: format {form!r} of {expression.text!r}: {error}") from None
