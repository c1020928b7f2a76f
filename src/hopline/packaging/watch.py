"""What a module does while it runs that answers do not tell: draws numbers, or decides by a tensor's."""

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
#: Runs with a generator as it was and as it is.
_TRIES = 6
#: Calls that make Python values of a tensor's numbers.
_DECISIONS = frozenset(
    {"__bool__", "__int__", "__float__", "__index__", "item", "tolist", "equal", "allclose", "is_nonzero",
     "unique", "unique_consecutive"}
)  # fmt: skip


@dataclass(slots=True)
class Seen:
    """Lines of the user's source that draw random numbers, and that decide by numbers of a tensor."""

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
    """Note what the code inside draws and decides."""
    watch = _Watch()
    with watch:
        yield watch.seen


def drawn_by(run: Callable[[], Any], same: Callable[[Any, Any], bool]) -> str:
    """Whose random numbers make two runs differ, in words; "" where none of the known generators does.

    Args:
        run: gives an answer. same: whether two answers are.
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
