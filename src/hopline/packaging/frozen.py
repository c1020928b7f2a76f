"""Statistics of all rows of a graph that are constants: the values that they had on the graph of packaging.

A statistic is a call of a function of torch that reduces rows: its result has the same shape whatever the
graph, and its input has not. Its place is the part of the module whose code calls the function, and how
often that part called it before. So it is found again in each run of the module: as the oracle on another
graph, and while it is traced.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from hopline.errors import NotSplittable

#: Names of torch's functions that compute them; PyG's `scatter` calls the last two.
_FUNCTIONS = frozenset(
    {
        *("mean", "sum", "var", "std", "max", "min", "amax", "amin", "norm", "linalg_vector_norm"),
        *("median", "quantile", "logsumexp", "prod", "var_mean", "std_mean"),
        *("scatter_add_", "scatter_reduce_"),
    }
)
#: Path of a part of the module, name of the function, and number of the call.
Place = tuple[str, str, int]


class Frozen(TorchFunctionMode):
    """Follows the runs of a module, and gives statistics their values.

    Args:
        values: of places. watched: places that are recorded; None for all.

    Attributes:
        seen: shape of the input, and result, of each recorded call of the latest run.
        given: values that the latest run got.
    """

    def __init__(self, values: Mapping[Place, Tensor], watched: Collection[Place] | None = ()) -> None:
        super().__init__()
        self.values, self.watched = values, watched
        self.seen: dict[Place, tuple[torch.Size, Tensor]] = {}
        self.given: list[Tensor] = []
        self._paths: dict[int, str] = {}
        self._counts: Counter[tuple[str, str]] = Counter()

    @contextmanager
    def over(self, module: nn.Module) -> Iterator[None]:
        """Follow a run of the module or a copy. Raises: NotSplittable: it computes other statistics."""
        self.seen, self.given, self._counts = {}, [], Counter()
        self._paths = {id(part): path for path, part in module.named_modules()}
        with self:
            yield
        if len(self.given) < len(self.values):
            raise NotSplittable("freeze: the model computes other statistics for another graph")

    def opens(self, path: str) -> bool:
        """True if a part of the module computes one of the statistics."""
        return any(f"{each}.".startswith(f"{path}.") for each, _, _ in self.values)

    @property
    def named(self) -> dict[str, Tensor]:
        """The values by name: "norms.0.mean", and "norms.0.mean.1" for the next such call."""
        found: dict[str, Tensor] = {}
        for (path, function, _), value in self.values.items():
            name = f"{path}.{function.strip('_')}".removeprefix("module.").lstrip(".")
            number = sum(each.startswith(name) for each in found)
            found[f"{name}.{number}" if number else name] = value
        return found

    @property
    def notes(self) -> list[str]:
        """The values in words, each by its name; long ones by their first and last numbers."""
        return [
            f"frozen: {name} is {np.array2string(value.numpy(), precision=6, threshold=8)}, as on the "
            "graph of packaging: a later graph is answered with this"
            for name, value in self.named.items()
        ] or ["freeze: the model computes no statistics of all rows"]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if func is nn.functional.normalize:
            with self:
                return _normalize(*args, **kwargs)
        if name not in _FUNCTIONS:
            return func(*args, **kwargs)
        traced = next((each for each in args if isinstance(each, fx.Proxy)), None)
        if traced is not None:
            with self:  # the tracer calls the function on the values behind the proxies
                return traced.__torch_function__(func, types, args, kwargs)
        rows = next(each for each in (*args[::-1], *kwargs.values()) if isinstance(each, Tensor))
        result = func(*args, **kwargs)
        for part in result if isinstance(result, tuple) else (result,):
            if isinstance(part, Tensor) and part.is_floating_point():
                self._follow(name, rows.shape, part)
        return result

    def _follow(self, name: str, rows: torch.Size, result: Tensor) -> None:
        """Record a result, and put the value of its place there."""
        path = self._path()
        place = path, name, self._counts[path, name]
        self._counts[path, name] += 1
        if self.watched is None or place in self.watched:
            self.seen[place] = rows, result.clone()
        if place in self.values:
            if result.shape != self.values[place].shape:
                raise NotSplittable(f"freeze: {path} {name} has another shape for another graph")
            self.given.append(result.copy_(self.values[place]))

    def _path(self) -> str:
        """The part of the module whose code runs: the first argument of the innermost such function."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
            path = self._paths.get(id(frame.f_locals.get(names[0]))) if names else None
            if path is not None:
                return path
            frame = frame.f_back
        return ""


def _normalize(input: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: None = None) -> Any:
    """`torch.nn.functional.normalize`: its norm is a statistic if it is over all rows."""
    return input / input.norm(p, dim, keepdim=True).clamp_min(eps)
