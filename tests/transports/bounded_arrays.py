"""Arrays that refuse indices outside of them, also negative ones: compiled code checks neither.

A compiled function that reads bytes from outside runs as plain Python on such arrays.
"""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest


class Bounded(np.ndarray):
    """An array whose indices must be those of its elements."""

    def __getitem__(self, at: Any) -> Any:
        self._check(at)
        return super().__getitem__(at)

    def __setitem__(self, at: Any, value: Any) -> None:
        self._check(at)
        super().__setitem__(at, value)

    def _check(self, at: Any) -> None:
        for axis, index in enumerate(at if isinstance(at, tuple) else (at,)):
            if not isinstance(index, slice):
                assert 0 <= index < self.shape[axis], f"index {index} of {self.shape[axis]}"


def bounded(*modules: types.ModuleType) -> pytest.MonkeyPatch:
    """Make the arrays that modules create bounded ones, until `undo` is called."""
    patch = pytest.MonkeyPatch()
    made = types.SimpleNamespace(**{name: getattr(np, name) for name in np.__all__})
    for name in ("zeros", "empty", "frombuffer"):
        create = getattr(np, name)
        setattr(made, name, lambda *args, create=create: create(*args).view(Bounded))
    for module in modules:
        patch.setattr(module, "np", made)
        for name, value in vars(module).items():
            if hasattr(value, "py_func"):
                patch.setattr(module, name, value.py_func)
    return patch
