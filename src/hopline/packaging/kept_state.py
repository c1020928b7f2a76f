"""The state that a module keeps between calls: in itself, in its classes, functions and globals."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import random
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hopline.packaging.user_source import is_users

#: Attributes that every module has.
_OF_TORCH = frozenset(vars(nn.Module())) | {"_parameters", "_buffers", "_modules"}
#: Levels of containers and objects that are compared, and entries of one.
_DEPTH, _ENTRIES = 4, 1000
_FUNCTIONS = (FunctionType, MethodType, staticmethod, classmethod, partial)
_PARTS = (Mapping, set, frozenset, list, tuple, deque, *_FUNCTIONS)


@dataclass(frozen=True, slots=True)
class Entry:
    """One place of state.

    Attributes:
        print: compares equal to that of an equal value.
        holder, key: where it is: a dict and its key, or a class and its attribute.
    """

    print: Any
    holder: Any
    key: str

    @property
    def value(self) -> Any:
        """The present value."""
        return self.holder[self.key] if isinstance(self.holder, dict) else getattr(self.holder, self.key)

    def put(self, value: Any) -> None:
        """Replace the value."""
        if isinstance(self.holder, dict):
            self.holder[self.key] = value
        else:
            setattr(self.holder, self.key, value)


State = dict[str, Entry]


def state_of(modules: Mapping[str, nn.Module], codes: Mapping[CodeType, dict[str, Any]]) -> State:
    """All state that can be found, by its name in words.

    Args:
        modules: prefix of names -> module. codes: the user's functions -> their globals.
    """
    found: State = {}
    for prefix, module in modules.items():
        for path, part in module.named_modules(prefix=prefix):
            for what, holder in (("parameter", part._parameters), ("buffer", part._buffers)):
                _add(found, what, path, holder, holder)
            _add(found, "attribute", path, vars(part), set(vars(part)) - _OF_TORCH)
            _add_class(found, type(part))
    for code, space in codes.items():
        used = [name for name in code.co_names if name in space and not isinstance(space[name], ModuleType)]
        data = [name for name in used if not isinstance(space[name], type | nn.Module)]
        _add(found, "global", str(space.get("__name__", "")), space, data)
        for name in set(used) - set(data):
            _add_class(found, space[name] if isinstance(space[name], type) else type(space[name]))
    return found


@contextmanager
def emptied(entry: Entry) -> Iterator[Callable[[], bool]]:
    """Empty a place that may be a cache, and restore it at the end.

    Yields: tells if the place has been filled again.
    """
    value = entry.value
    parts = [] if isinstance(value, type) else list(_containers(value, _DEPTH))
    kept = [copy.copy(part) for part in parts]
    clear = getattr(value, "cache_clear", None) or (lambda: None)
    if plain := isinstance(value, Tensor | np.ndarray | int | float):
        entry.put(None)
    for part in parts:
        part.clear()
    clear()
    info = getattr(value, "cache_info", None)
    try:
        yield lambda: any(parts) or bool(info and info().currsize) or (plain and entry.value is not None)
    finally:
        clear()
        for part, content in zip(parts, kept, strict=True):
            part.clear()
            (part.extend if isinstance(part, list | deque) else part.update)(content)
        if plain:
            entry.put(value)


def _containers(value: Any, depth: int) -> Iterator[Any]:
    """Containers in a value, which can be filled, also those that a function or an object holds."""
    if isinstance(value, dict | list | set | deque):
        yield value
    elif isinstance(value, _FUNCTIONS):
        for each in _held(value):
            yield from _containers(each, 0)
    elif depth and hasattr(value, "__dict__") and not isinstance(value, nn.Module | type | ModuleType):
        for each in vars(value).values():
            yield from _containers(each, depth - 1)


def _held(function: Any) -> Sequence[Any]:
    """Values that a function keeps: attributes, defaults, what it closes over or wraps."""
    if not isinstance(function, FunctionType):
        return gc.get_referents(function)
    cells = [cell.cell_contents for cell in function.__closure__ or () if cell != type(cell)()]
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    return vars(function), *defaults, *cells


def changed(one: State, other: State) -> list[str]:
    """Names of what differs, in the order of the later state."""
    absent = Entry(None, None, "")
    return [name for name, entry in other.items() if one.get(name, absent).print != entry.print]


def _add_class(found: State, of: type) -> None:
    """Add the attributes of a class and of its bases, of those that the user wrote."""
    for base in of.__mro__:
        file = getattr(sys.modules.get(base.__module__), "__file__", None) or ""  # none of a notebook's
        is_own = is_users(file) and base.__module__.split(".")[0] not in sys.stdlib_module_names
        if base.__flags__ & 1 << 9 and is_own:  # attributes of types written in C cannot be set
            names = [name for name in vars(base) if not name.startswith("__")]
            _add(found, "class attribute", base.__name__, base, names)


def _add(found: State, what: str, where: str, holder: Any, names: Any) -> None:
    place = f"{where}." if where else "self." if what == "attribute" else ""
    for name in names:
        value = holder[name] if isinstance(holder, Mapping) else vars(holder)[name]
        shown = f"{what} '{name}'" if place in ("", "self.") else f"{what} '{place}{name}'"
        shown += f" (self.{name})" if place == "self." else ""
        found[shown] = Entry(printed(value), holder, name)


def printed(value: Any, depth: int = _DEPTH) -> Any:
    """A value that differs where the content differs."""
    if isinstance(value, Tensor):
        return _of_tensor(value)
    if isinstance(value, ModuleType | type):
        return id(value)
    if isinstance(value, torch.Generator):
        return _of_tensor(value.get_state())
    if isinstance(value, GeneratorType) and value.gi_frame:
        return (value.gi_frame.f_lasti, printed(value.gi_frame.f_locals, depth - 1)) if depth else ""
    if isinstance(value, ContextVar):
        return printed(value.get(None), depth)
    if isinstance(value, random.Random | io.BytesIO | io.StringIO) or not (
        isinstance(value, _PARTS) or hasattr(value, "__dict__")
    ):
        try:  # generators, arrays, iterators, moments: all that has its state inside
            return zlib.crc32(pickle.dumps(value))
        except Exception:  # of any type
            return printed(gc.get_referents(value), depth - 1) if depth else type(value).__name__
    if depth == 0:
        return type(value).__name__
    if isinstance(value, Mapping):
        return (len(value), [(repr(k), printed(v, depth - 1)) for k, v in list(value.items())[-_ENTRIES:]])
    if isinstance(value, set | frozenset):
        return (len(value), hash(frozenset(map(repr, value))))
    if isinstance(value, list | tuple | deque):
        return (len(value), [printed(each, depth - 1) for each in list(value)[-_ENTRIES:]])
    if isinstance(value, _FUNCTIONS):
        return (id(getattr(value, "__code__", None)), [printed(part, depth - 1) for part in _held(value)])
    return (type(value).__name__, printed(vars(value), depth - 1))


def _of_tensor(value: Tensor) -> Any:
    if value.layout != torch.strided or value.is_quantized:
        return (tuple(value.shape), str(value.layout), repr(value.detach().sum()))
    rows = value.detach().cpu().contiguous().flatten()
    content = rows.view(torch.uint8).numpy().data if rows.numel() else b""
    return (tuple(value.shape), str(value.dtype), zlib.crc32(content))
