"""Watches what a module does while it runs: numbers that it draws, branches on, or reads from outside."""

from __future__ import annotations

import cProfile
import datetime
import gc
import inspect
import io
import os
import random
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FrameType, ModuleType
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hopline.packaging.kept_state import printed
from hopline.packaging.user_source import LIBRARIES, runs_users, user_line

#: Calls that convert a tensor's numbers to Python values.
_DECISIONS = frozenset(
    {"__bool__", "__int__", "__float__", "__index__", "item", "tolist", "equal", "allclose", "is_nonzero",
     "unique", "unique_consecutive"}
)  # fmt: skip

Kind = Literal["the clock", "random bytes", "the environment", "how it runs", "a file"]
_CLOCKS = (
    "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time",
    "process_time_ns", "thread_time", "thread_time_ns", "localtime", "gmtime", "ctime", "asctime",
    "strftime", "clock_gettime", "clock_gettime_ns",
)  # fmt: skip
_ASKS = re.compile("(is|are)_.*_enabled|get_(default|autocast|deterministic|float32)_")
#: Functions of torch that ask in which mode it runs, in C and in Python.
_MODES: set[Any] = {each for name, each in vars(torch).items() if _ASKS.match(name)}
#: Functions written in C that answer something else at another time or place.
SOURCES: dict[Any, Kind] = {
    **dict.fromkeys(_MODES, "how it runs"),
    **{getattr(time, name): "the clock" for name in _CLOCKS},
    **{getattr(datetime.datetime, name): "the clock" for name in ("now", "utcnow", "today")},
    datetime.date.today: "the clock",
    os.urandom: "random bytes",
    **({uuid._generate_time_safe: "the clock"} if hasattr(uuid, "_generate_time_safe") else {}),
    os.times: "the clock",
    # the hash of a text is another one in each process
    **dict.fromkeys((torch.get_num_threads, hash), "the environment"),
    io.open: "a file",
}
#: Modules of the standard library in C whose functions answer the same for the same arguments, are above,
#: or whose state is compared. Others read a file, the process, another program, a database or the network.
_SAME_ANSWERS = {
    "builtins", "math", "cmath", "operator", "itertools", "functools", "collections", "abc", "bisect",
    "heapq", "struct", "json", "sre", "re", "string", "copy", "decimal", "statistics", "weakref",
    "weakrefset", "warnings", "types", "typing", "ast", "tokenize", "opcode", "zlib", "binascii",
    "hashlib", "md5", "sha1", "sha256", "sha2", "sha512", "sha3", "blake2", "random", "array", "time",
    "datetime", "unicodedata", "codecs", "pickle", "csv", "sys", "gc", "enum", "marshal", "imp",
    "contextvars", "locale",
}  # fmt: skip
#: Functions of os that read files and folders; functions and methods of streams that read nothing.
_OF_FILES = {"stat", "lstat", "fstat", "open", "read", "listdir", "scandir", "access", "readlink"}
_READ_NOTHING = {
    "fspath", "allocate_lock", "write", "writelines", "flush", "isatty", "fileno", "close", "text_encoding",
}  # fmt: skip
_COND = inspect.unwrap(torch.cond).__code__
#: Types whose constructors read the clock without a call that a profile shows, if given one of the words.
_CLOCK_TYPES = re.compile("datetime64|M8|Timestamp|Period|DatetimeIndex|to_datetime|date_range")
_CLOCK_WORDS = {"now", "today", "utcnow"}
#: Functions of Python that read a file or a mode of torch. A profile shows their code and nothing below it.
_READERS: dict[CodeType, tuple[str, Kind]] = {
    each.__code__: (f"torch.{each.__name__}", SOURCES.get(each, "a file"))
    for each in filter(inspect.isfunction, {torch.load, torch.save, *_MODES})
} | {torch.initial_seed.__code__: ("torch.initial_seed", "random bytes")}
_RANDOM = random.Random.__init__.__code__
_ENVIRON = {getattr(type(os.environ), name).__code__ for name in ("__getitem__", "__iter__", "__len__")}
#: Files of Python that read clocks, files and the process for messages.
_MESSAGES = ("linecache.py", "tokenize.py", "inspect.py")
#: Methods and functions of `logging` that write a record; others may return what they read.
_LOGGED = {"debug", "info", "warning", "error", "exception", "critical", "log"}

# torch.manual_seed keeps each call with its stack until a GPU is used
_SEED_TORCH = torch.default_generator.manual_seed
#: Name -> (read the state, set it, seed it) of the generators of a process.
GENERATORS: dict[str, tuple[Callable[[], Any], Callable[[Any], None], Callable[[int], Any]]] = {
    "torch's random numbers": (torch.get_rng_state, torch.set_rng_state, _SEED_TORCH),
    "np.random": (np.random.get_state, np.random.set_state, np.random.seed),
    "Python's random": (random.getstate, random.setstate, random.seed),
}


@dataclass(slots=True)
class Seen:
    """Behaviour of a module in one run.

    Attributes:
        draws, decisions: the user's lines that draw random numbers, and that branch on a tensor's numbers.
        gradients, conditions: lines of it that compute gradients, and that call `torch.cond`.
        readings: what it read from outside, in words -> kind.
        consumed: generators of the process that it drew from.
        codes: the user's functions that ran -> their globals.
        tensors: the user's line -> bytes of the largest tensor that an operation of torch answered there.
        notes: what it reads or keeps without an effect on its answers.
    """

    draws: list[str] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)
    gradients: list[str] = field(default_factory=list)
    conditions: list[str] = field(default_factory=list)
    readings: dict[str, Kind] = field(default_factory=dict)
    consumed: list[str] = field(default_factory=list)
    codes: dict[CodeType, dict[str, Any]] = field(default_factory=dict)
    tensors: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def of(self, kind: Kind) -> list[str]:
        """Readings of one kind."""
        return [reading for reading, its in self.readings.items() if its == kind]


class _Watch(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen = Seen()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        kwargs = kwargs or {}
        if func in (torch.autograd.grad, torch.autograd.backward, Tensor.backward):
            _add(self.seen.gradients, user_line() or name)
        elif name in _DECISIONS:
            _add(self.seen.decisions, user_line())
        before = torch.get_rng_state()
        result = func(*args, **kwargs)
        if not torch.equal(before, torch.get_rng_state()) and (line := user_line()):
            _add(self.seen.draws, f"{name} at {line}")
        if type(result) is Tensor and result.layout == torch.strided:
            with suppress(NotImplementedError):  # tensors of torch.func have no memory
                size, place = result.untyped_storage().nbytes(), _place()
                self.seen.tensors[place] = max(size, self.seen.tensors.get(place, 0))
        return result

    def profile(self, frame: FrameType, event: str, arg: Any) -> None:
        """Record calls of the user's functions, and calls that read the world outside."""
        if event == "call":
            code = frame.f_code
            if code is _COND:
                _add(self.seen.conditions, user_line())
            elif code in _ENVIRON:
                if _caller(frame.f_back) is not None:
                    name = frame.f_locals.get("key")
                    what = f"environment variable {name!r}" if name else "os.environ"
                    self._read(what, "the environment")
            elif code not in self.seen.codes and runs_users(frame):
                self.seen.codes[code] = frame.f_globals
                if _reads_clock(frame):
                    self._read(f"{code.co_name}: np.datetime64 or Timestamp of now", "the clock")
            elif code is _RANDOM and frame.f_locals.get("x") is None:
                self._read("random.Random()", "random bytes")
            elif code in _READERS and _caller(frame.f_back) is not None:
                self._read(*_READERS[code])
        elif event == "c_call" and (kind := _kind(arg)) is not None:
            # A key, as an object that defines its hash; a library that asks if a value is hashable.
            by_library = not runs_users(frame) or "site-packages" in frame.f_code.co_filename
            is_of_key = arg is hash and (by_library or frame.f_code.co_name == "__hash__")
            # What torch, PyG, this package and imports read decides nothing.
            if not is_of_key and not _is_for_message(frame) and _caller(frame) is not None:
                owner, module = getattr(arg, "__self__", None), _module(arg).removesuffix("._C")
                if owner is not None and not isinstance(owner, ModuleType):
                    module = (
                        owner.__name__ if isinstance(owner, type) else f"{module}.{type(owner).__name__}"
                    )
                self._read(f"{'os' if module == 'posix' else module}.{arg.__name__}", kind)

    def _read(self, what: str, kind: Kind) -> None:
        self.seen.readings[f"{what} at {user_line()}"] = kind


def _reads_clock(frame: FrameType) -> bool:
    """True if a function names a type that reads the clock, and one of the words, also as a setting."""
    code, space = frame.f_code, frame.f_globals
    values = [*code.co_consts, *map(space.get, code.co_names), *frame.f_locals.values()]
    texts = {*code.co_names, *(each for each in values if isinstance(each, str))}
    is_library = str(space.get("__name__")).startswith(("numpy", "pandas"))
    return not is_library and bool(_CLOCK_WORDS & texts) and any(map(_CLOCK_TYPES.match, texts))


def _caller(frame: FrameType | None) -> FrameType | None:
    """The user's frame for which the standard library runs, from this frame up; None for a library's."""
    while frame is not None and not runs_users(frame):
        if frame.f_code.co_filename.startswith((*LIBRARIES, "<frozen importlib")):
            return None
        frame = frame.f_back
    return frame


def _module(function: Any) -> str:
    """The module of a function in C, or of the type that it is a method of."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, ModuleType):
        return owner.__name__
    of = owner if isinstance(owner, type) else getattr(function, "__objclass__", type(owner))
    return str(function.__module__ if owner is None and of is type(None) else of.__module__)


def _kind(function: Any) -> Kind | None:
    """The kind of source that a function in C reads; None if equal arguments have equal answers."""
    if type(function) is BuiltinFunctionType and function in SOURCES:
        return SOURCES[function]
    module, owner = _module(function), getattr(function, "__self__", None)
    if isinstance(owner, torch.Generator) and function.__name__ == "seed":
        return "random bytes"
    top = module.partition(".")[0]
    is_same = top not in sys.stdlib_module_names or top.strip("_") in _SAME_ANSWERS
    if is_same or function.__name__ in _READ_NOTHING or isinstance(owner, io.BytesIO | io.StringIO):
        return None
    if top == "_thread" and not isinstance(owner, ModuleType):
        return None  # a lock
    is_file = top.strip("_") == "io" or (top == "posix" and function.__name__ in _OF_FILES)
    return "a file" if is_file else "the environment"


def _is_for_message(frame: FrameType | None) -> bool:
    """True for a call on behalf of a message that the user's code writes, such as a log record."""
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if file.endswith(_MESSAGES) or (file.endswith("logging/__init__.py") and name in _LOGGED):
            return True
        frame = frame.f_back
    return False


def _place() -> str:
    """The innermost line of the user's source, as "file.py:7"; "" if there is none."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and not runs_users(frame):
        frame = frame.f_back
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _add(found: list[str], line: str) -> None:
    if line and line not in found:
        found.append(line)


@contextmanager
def watched() -> Iterator[Seen]:
    """Record what the code inside does."""
    watch = _Watch()
    before = {name: printed(get()) for name, (get, _, _) in GENERATORS.items()}
    profiler, collects = sys.getprofile(), gc.isenabled()
    gc.disable()  # its callbacks may read clocks
    sys.setprofile(watch.profile)
    try:
        with watch:
            yield watch.seen
    finally:
        _resume(profiler)
        if collects:
            gc.enable()
        after = {name: printed(get()) for name, (get, _, _) in GENERATORS.items()}
        watch.seen.consumed += [name for name in after if after[name] != before[name]]


def _resume(profiler: Any) -> None:
    """Make `profiler` the one of this thread again; one written in C, such as cProfile, is no function."""
    sys.setprofile(profiler if callable(profiler) else None)
    if isinstance(profiler, cProfile.Profile):
        profiler.enable()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the generators of the process; restore them afterwards."""
    before = {name: get() for name, (get, _, _) in GENERATORS.items()}
    try:
        for _, _, start in GENERATORS.values():
            start(seed)
        yield
    finally:
        for name, (_, put, _) in GENERATORS.items():
            put(before[name])
