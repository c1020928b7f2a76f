"""Numba's `njit`, with kernels that load from its cache five times faster.

Before Numba loads machine code that it compiled earlier, it fills its tables of everything that it could
compile: 0.45 s in a new process, most of them for imports of SciPy (measured; see docs/log.md). Code that
is there already needs none of them, only the runtime that it calls. Where something does have to be
compiled, Numba fills the tables then, as ever.

Smaller things are spared at each start. Numba asks every installed package whether it extends Numba
(25 ms); Hopline's kernels know only Numba's own types. It tries for every kernel, twice, whether its cache
folder can be written (25 ms); once for each folder is enough. And it imports SciPy to see how old it is,
and YAML for a file of settings that hardly exists anywhere (35 ms).

Numba recompiles a kernel when its own file has changed, but its machine code contains what it calls and
the constants that it reads in other files. Here those count too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from hopline.kernels.code_stamp import stamp_of


@contextlib.contextmanager
def _left_out(*names: str) -> Iterator[None]:
    """Hide modules that were not imported yet, inside the block."""
    out = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(out))  # type: ignore[arg-type]  # None: cannot be imported
    try:
        yield
    finally:
        for name in out:
            del sys.modules[name]


with _left_out("scipy", *(["yaml"] if not Path(".numba_config.yaml").exists() else [])):
    import numba
    from numba.core.caching import CompileResultCacheImpl, FunctionCache
    from numba.core.runtime import rtsys

__all__ = ["njit"]

log = logging.getLogger(__name__)

#: Seconds between lines about kernels that are being compiled.
_SAY_S = 2.0

#: Folders that were found to be there and writable.
_writable: set[str] = set()


class _AskedOnce:
    """A locator of Numba's that tries a folder once, and looks at all files that a kernel is made of."""

    def ensure_cache_path(self) -> None:
        """Create the folder. Raises: OSError: it cannot be created or written."""
        path = self.get_cache_path()  # type: ignore[attr-defined]
        if path not in _writable:
            super().ensure_cache_path()  # type: ignore[misc]
            _writable.add(path)

    def get_source_stamp(self) -> Any:
        """Changes whenever the kernel may have to be recompiled."""
        stamp = super().get_source_stamp()  # type: ignore[misc]
        path = getattr(self, "_py_file", "")
        return (stamp, stamp_of(path)) if path.endswith(".py") and os.path.isfile(path) else stamp


class _KernelCacheFiles(CompileResultCacheImpl):  # type: ignore[misc]
    """Where the cache of a function lies: where Numba has it."""

    _locator_classes: ClassVar[list[type]] = [
        type(locator.__name__, (_AskedOnce, locator), {})
        for locator in CompileResultCacheImpl._locator_classes
    ]


class _KernelCache(FunctionCache):  # type: ignore[misc]
    """The cache of one function, in the same files as Numba's own."""

    _impl_class = _KernelCacheFiles

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """As the base class does, but for `target_context.refresh()`."""
        rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            found = self._load_overload(sig, target_context)
        if found is None:
            _compiling.begin()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """As the base class does; called after each kernel that was compiled."""
        super().save_overload(sig, data)
        _compiling.end()


class _Compiling:
    """Says in the log that kernels are compiled: a start that takes long has a reason."""

    def __init__(self) -> None:
        self._num_compiled = 0
        self._said_at = 0.0

    def begin(self) -> None:
        """A kernel is not in the cache."""
        if not self._said_at:
            self._said_at = time.monotonic()
            log.info(
                "compiling kernels for this processor, which takes some seconds; only a first start does, "
                "and `hopline warm` does it beforehand"
            )

    def end(self) -> None:
        """A kernel was compiled."""
        self._num_compiled += 1
        if time.monotonic() - self._said_at >= _SAY_S:
            self._said_at = time.monotonic()
            log.info("compiled %d kernels so far", self._num_compiled)


_compiling = _Compiling()


def njit(*args: Any, **options: Any) -> Any:
    """Arguments and results of `numba.njit`."""
    if args:
        return numba.njit(*args, **options)
    is_cached = options.pop("cache", False)
    compiled = numba.njit(**options)

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = compiled(function)
        if is_cached and dispatcher is not function:  # Numba can be configured to compile nothing
            dispatcher._cache = _KernelCache(function)
            dispatcher._compilation_chain_init_hook = _no_extensions
        return dispatcher

    return decorate


def _no_extensions() -> None:
    """In place of asking installed packages whether they extend Numba."""
