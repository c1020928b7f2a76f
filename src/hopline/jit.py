"""Numba's `njit`, with kernels that load from its cache five times faster.

Before Numba loads machine code that it compiled earlier, it fills its tables of everything that it could
compile: 0.45 s in a new process, most of them for imports of SciPy (measured; see docs/log.md). Code that
is there already needs none of them, only the runtime that it calls. Where something does have to be
compiled, Numba fills the tables then, as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba.core.caching import FunctionCache
from numba.core.runtime import rtsys

__all__ = ["njit"]


class _KernelCache(FunctionCache):  # type: ignore[misc]
    """The cache of one function, in the same files as Numba's own."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """As the base class does, but for `target_context.refresh()`."""
        rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)


def njit(*args: Any, **options: Any) -> Any:
    """Arguments and results of `numba.njit`."""
    if args:
        return numba.njit(*args, **options)
    compiled = numba.njit(**options)

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = compiled(function)
        # Numba has no public way to choose the cache; where the private one is gone, its own stays.
        if options.get("cache") and isinstance(getattr(dispatcher, "_cache", None), FunctionCache):
            dispatcher._cache = _KernelCache(dispatcher.py_func)
        return dispatcher

    return decorate
