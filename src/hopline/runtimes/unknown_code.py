"""Codes without an entry in a model's table: which code, which table, and where the code is from.

Only a failed call comes here. torch does not name the code, so the program runs again by single operators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hopline.types import AnyArray

#: Words of torch's errors about a number that is beyond a table.
_WORDS = ("index out of range", "out of bounds", "Class values must be")


@dataclass(eq=False)
class UnknownCode(Exception):
    """A code that a model's table lacks.

    Attributes:
        code, num_entries: the table has entries for 0 to `num_entries - 1`; both -1 if unknown.
        slot, row, column: where the code is; the slot is "" if it is not a column of a slot.
    """

    code: int = -1
    num_entries: int = -1
    slot: str = ""
    row: int = -1
    column: int = -1

    def __str__(self) -> str:
        if self.num_entries < 0:
            return "a column that the model uses as a code has a value without an entry in its table"
        most = self.num_entries - 1
        return f"code {self.code} has no entry in the model's table, whose entries are 0 to {most}"


def unknown_code(
    error: Exception, program: Any, given: Sequence[Any], slots: Mapping[str, AnyArray]
) -> UnknownCode | None:
    """Explain the error of a whole model; None if it is not about a code.

    Args:
        program: that failed; explained further if it is a graph of operators.
        given: its tensors. slots: the same by name, without the seed.
    """
    if not any(words in str(error) for words in _WORDS):
        return None
    import torch

    if not isinstance(program, torch.fx.GraphModule):
        return UnknownCode()

    class Again(torch.fx.Interpreter):
        args: tuple[Any, ...] = ()

        def run_node(self, n: torch.fx.Node) -> Any:
            try:
                return super().run_node(n)
            except Exception:
                self.args = self.args or self.fetch_args_kwargs_from_env(n)[0]
                raise

    again = Again(program)
    again.extra_traceback = False
    try:
        with torch.no_grad():
            again.run(*given)
    except Exception:  # the one that is explained
        return _found(again.args, slots)
    return UnknownCode()


def _found(args: Sequence[Any], slots: Mapping[str, AnyArray]) -> UnknownCode:
    """The first code that is beyond the table of an operator, by the operator's arguments."""
    for codes, least, size in _tables(args):
        flat = codes.reshape(-1)
        bad = np.flatnonzero((flat < least) | (flat >= size))
        if not len(bad):
            continue
        width = len(flat) // len(codes)  # of [n, width] codes only the first is looked for
        at = bad if width == 1 else bad[:1]
        for slot, rows in slots.items():
            if not slot.startswith(("features:", "edge_attr:")) or len(rows) != len(codes):
                continue
            for column in range(rows.shape[1]):
                if (np.trunc(rows[at // width, column]) == flat[at]).all():
                    return UnknownCode(int(flat[at[0]]), size, slot, int(at[0]) // width, column)
        return UnknownCode(int(flat[at[0]]), size)
    return UnknownCode()


def _tables(args: Sequence[Any]) -> list[tuple[AnyArray, int, int]]:
    """Codes, the least one and the entries, of embedding, index, index_select, gather and one_hot.

    Only `index`, whose codes are in a list, counts negative ones from the end.
    """
    if not args or not hasattr(args[0], "shape"):
        return []
    first, others = args[0], args[1:]
    at = others[0] if others and isinstance(others[0], int) else 0
    if not first.is_floating_point() and others and isinstance(others[0], int):
        return [(first.numpy(), 0, at)]
    found: list[tuple[AnyArray, int, int]] = []
    for other in others:
        listed = isinstance(other, list | tuple)
        for place, codes in enumerate(other if listed else [other]):
            if hasattr(codes, "is_floating_point") and not codes.is_floating_point():
                size = int(first.shape[at + place])
                found.append((codes.numpy(), -size if listed else 0, size))
    return found
