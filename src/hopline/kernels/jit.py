"""Numba's `njit`, with kernels that load from its cache five times faster.

Before Numba loads machine code that it compiled earlier, it fills its tables of everything that it could
compile: 0.45 s in a new process, most of them for imports of SciPy (measured; see log/). Code that
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
import functools
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from hopline.kernels import cpu_level
from hopline.kernels.code_stamp import stamp_of, top_folder


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
    from numba.core.caching import (
        CompileResultCacheImpl,
        FunctionCache,
        _Cache,
        _CacheLocator,
        _SourceFileBackedLocatorMixin,
    )
    from numba.core.runtime import rtsys

if cpu_level.target():
    numba.core.config.CPU_NAME = cpu_level.target()
    numba.core.config.CPU_FEATURES = ""  # what the level has, and no more

__all__ = ["njit"]

log = logging.getLogger(__name__)

#: Seconds between lines about kernels that are being compiled.
_SAY_S = 2.0

#: Folder -> whether it exists and can be written, of those that were tried.
_writable: dict[str, bool] = {}


class _TriedOnce:
    """A locator of Numba that tries a folder once, and stamps all files that a kernel is made of."""

    def ensure_cache_path(self) -> None:
        """Create the folder. Raises: OSError: it cannot be created or written."""
        path = self.get_cache_path()  # type: ignore[attr-defined]
        if not _writable.get(path, True):
            raise PermissionError(f"{path} cannot be written")
        if path not in _writable:
            _writable[path] = False
            super().ensure_cache_path()  # type: ignore[misc]
            _writable[path] = True

    def get_source_stamp(self) -> Any:
        """Changes whenever the kernel may have to be recompiled. Copies of a file have the same."""
        path = getattr(self, "_py_file", "")
        is_module = path.endswith(".py") and os.path.isfile(path)
        return stamp_of(path) if is_module else super().get_source_stamp()  # type: ignore[misc]


class _ReadOnly(_TriedOnce):
    """A locator of Numba that takes a folder which cannot be written, such as one of an image."""

    def ensure_cache_path(self) -> None:
        """Check that the folder exists. Raises: OSError: it does not."""
        os.listdir(self.get_cache_path())  # type: ignore[attr-defined]


class _OwnFiles(CompileResultCacheImpl):  # type: ignore[misc]
    """The files of a function where Numba keeps its cache: in a writable folder, else in one to read."""

    _locator_classes: ClassVar[list[type]] = [
        type(locator.__name__, (kind, locator), {})
        for kind in (_TriedOnce, _ReadOnly)
        for locator in CompileResultCacheImpl._locator_classes
    ]


class _OwnCache(FunctionCache):  # type: ignore[misc]
    """The cache of one function, in the same files as Numba's own."""

    _impl_class = _OwnFiles


class _ShippedLocator(_TriedOnce, _SourceFileBackedLocatorMixin, _CacheLocator):  # type: ignore[misc]
    """The folder of kernels that came compiled with the package; only `hopline warm --cpu` writes it."""

    def __init__(self, function: Any, file: str) -> None:
        self._py_file = file
        self._lineno = function.__code__.co_firstlineno
        self._path = cpu_level.shipped_folder(cpu_level.target(), top_folder(os.path.dirname(file)), file)

    def get_cache_path(self) -> str:
        """The folder."""
        return str(self._path)

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> _ShippedLocator:
        """The locator of a function; it writes nothing."""
        return cls(py_func, py_file)


class _ShippedFiles(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes: ClassVar[list[type]] = [_ShippedLocator]


class _ShippedCache(FunctionCache):  # type: ignore[misc]
    """The kernels of one function that came compiled for a CPU level."""

    _impl_class = _ShippedFiles


class _KernelCache(_Cache):  # type: ignore[misc]
    """The cache of one function: what came compiled with the package, then a folder of this machine.

    That folder is chosen only when something has to be compiled: a start with all kernels writes nothing.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._shipped = _ShippedCache(function) if cpu_level.target() else None

    @functools.cached_property
    def own(self) -> _OwnCache | None:
        """The cache in a folder of this machine; None where there is no folder."""
        if cpu_level.is_writing():
            return self._shipped
        try:
            return _OwnCache(self._function)
        except RuntimeError:  # so Numba says that it found none
            return None

    @property
    def cache_path(self) -> str:
        """The folder of compiled kernels, for `stats`; "" for none."""
        cache = self._shipped or self.own
        return "" if cache is None else str(cache.cache_path)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Compiled function for these types, or None; without Numba's `target_context.refresh()`."""
        rtsys.initialize(target_context)
        found = None
        if self._shipped is not None:
            found = self._shipped._load_overload(sig, target_context)
        if found is None and self.own is not None:
            found = self.own._load_overload(sig, target_context)
        if found is None:
            _compiling.begin()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep what was compiled; called after each kernel."""
        try:
            if self.own is None:
                raise PermissionError("there is no folder for it")
            self.own.save_overload(sig, data)
        except OSError as error:
            _compiling.not_kept(error)
        _compiling.end()

    def enable(self) -> None:
        """Nothing: it is always enabled."""

    disable = flush = enable


class _Compiling:
    """Says in the log that kernels are compiled: a start that takes long has a reason."""

    def __init__(self) -> None:
        self._num_compiled = 0
        self._said_at = 0.0
        self._said_unkept = False

    def begin(self) -> None:
        """A kernel is not in the cache."""
        if not self._said_at:
            self._said_at = time.monotonic()
            log.info(
                "compiling kernels for this processor, which takes some seconds; only a first start does, "
                "and `hopline warm` does it beforehand"
            )

    def not_kept(self, error: OSError) -> None:
        """A kernel was compiled, and could not be written."""
        if not self._said_unkept:
            self._said_unkept = True
            log.warning(
                "compiled kernels cannot be cached (%s), so every start compiles them again: set "
                "NUMBA_CACHE_DIR to a writable folder, or run `hopline warm --cpu all` in an image",
                error,
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
