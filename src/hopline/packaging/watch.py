"""Watches what a module does while it runs: whether it draws numbers, or branches on a tensor's numbers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from hopline.packaging.user_source import user_line

_DRAWS = (
    "dropout", "rand", "randn", "randint", "randperm", "bernoulli", "multinomial", "normal", "rand_like",
    "randn_like",
)  # fmt: skip
#: Runs with a generator in its earlier and in its present state.
_TRIES = 6
#: Calls that convert a tensor's numbers to Python values.
_DECISIONS = frozenset(
    {"__bool__", "__int__", "__float__", "__index__", "item", "tolist", "equal", "allclose", "is_nonzero",
     "unique", "unique_consecutive"}
)  # fmt: skip


@dataclass(slots=True)
class Seen:
    """Lines of the user's source that draw random numbers, and that branch on numbers of a tensor."""

    draws: list[str] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)


class _Watch(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen = Seen()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        kwargs = kwargs or {}
        if name in _DECISIONS:
            _add(self.seen.decisions, user_line())
        elif any(
            name == draw or name.startswith(f"{draw}_") or name.endswith("dropout") for draw in _DRAWS
        ):
            off = kwargs.get("training", args[2] if len(args) > 2 else True) is False
            if not ("dropout" in name and off):
                line = user_line()
                _add(self.seen.draws, f"{name} at {line}" if line else "")
        return func(*args, **kwargs)


def _add(found: list[str], line: str) -> None:
    if line and line not in found:
        found.append(line)


@contextmanager
def watched() -> Iterator[Seen]:
    """Record the draws and decisions of the code inside."""
    watch = _Watch()
    with watch:
        yield watch.seen


def drawn_by(run: Callable[[], Any], same: Callable[[Any, Any], bool]) -> str:
    """The generator that makes two runs differ, in words; "" if no known generator does.

    Args:
        run: returns an answer. same: whether two answers are equal.
    """
    generators: tuple[tuple[str, Callable[[], Any], Callable[[Any], None]], ...] = (
        ("torch's random numbers", torch.get_rng_state, torch.set_rng_state),
        ("np.random", lambda: np.random.get_state(), lambda state: np.random.set_state(state)),
        ("Python's random", random.getstate, random.setstate),
    )
    for name, get, put in generators:
        varies = False
        for _ in range(_TRIES):
            state = get()
            one = run()
            put(state)
            if not same(one, run()):
                break
            varies |= not same(one, run())
        else:
            if varies:
                return name
    return ""
