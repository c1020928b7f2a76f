"""Watches what a module does while it runs: numbers that it draws, branches on, or reads from outside."""

from __future__ import annotations

import builtins
import cProfile
import dis
import gc
import inspect
import random
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hopline.packaging.kept_state import printed
from hopline.packaging.user_source import LIBRARIES, line_at, runs_users, user_line

#: Calls that convert a tensor's numbers to Python values.
_DECISIONS = frozenset(
    {"__bool__", "__int__", "__float__", "__index__", "item", "tolist", "equal", "allclose", "is_nonzero",
     "unique", "unique_consecutive"}
)  # fmt: skip

#: Methods and attributes of tensors that say how their numbers lie in memory, or how they came about.
_LAID_OUT = re.compile("is_(contiguous|leaf)|stride|storage_offset|data_ptr|(untyped_)?storage|_version")
Kind = Literal["the clock", "random bytes", "the environment", "how it runs", "a file"]
#: What answers something else at another time or place: functions and data of modules, by "module.name" or
#: "module.type.name".
_SOURCES: dict[Kind, str] = {
    "the clock": r"time\.(?!sleep|tz|timez|altz|dayl)\w+|datetime\.\w+\.(now|utcnow|today)|posix\.times"
    r"|_?uuid\.\w*generate_time_safe",
    "random bytes": r"posix\.urandom|random\.Random\.__init__"
    r"|torch\.(random\.initial_seed|Generator\.seed)",
    "how it runs": r"torch\.((is|are)_\w+_enabled|get_(default|autocast|deterministic|float32)_\w+)"
    r"|torch\.backends\.(ContextProp\.__get__|cuda\.matmul)|inspect\.(stack|trace|currentframe)|sys\._(getframe|current_frames)",
    "a file": r"torch\.serialization\.(load|save)|_?io\.(open|Text|Buffer|File).*"
    r"|.*\.from_?file|(_?duckdb|h5py|lmdb)\..*"
    r"|posix\.([lf]?stat|open|read|listdir|scandir|access|readlink)",
    "the environment": r"os\._Environ\.__(getitem|iter|len)__|functools\.\w+\.cache_info|uuid\.getnode"
    r"|posix\.environ|time\.(tz|timez|altz|dayl)\w+|datetime\.\w+\.(fromtimestamp|timestamp|astimezone)"
    r"|builtins\.(hash|id)|torch\.get_num_\w*threads|gc\.(get|is)\w+|_thread\.get\w+"
    r"|warnings\.filters|_?contextvars\.ContextVar\.get"
    r"|sys\.(?!max|std|float_info|int_info|hexversion|version_info|exc|intern|set)\w+"
    r"|(_?ctypes|_?locale|mmap|multiprocessing|platform|site|sysconfig|tempfile|threading)\..+",
}
#: These count where the user's own code names them.
_ASKED_BY_LIBRARIES = re.compile(
    r"(builtins|_?contextvars|gc|inspect|sys|_thread\.get\w+|threading|platform|_?locale|torch\.backends)\b"
)
#: Modules of the standard library in C whose functions answer the same for the same arguments, are above,
#: or whose state is compared. Others read the process, another program, a database or the network.
_SAME_ANSWERS = re.compile(
    "builtins|c?math|operator|itertools|functools|collections|abc|bisect|heapq|struct|json|s?re|string|copy|"
    "decimal|statistics|weakref|weakrefset|warnings|types|typing|ast|tokenize|opcode|zlib|binascii|hashlib|"
    "md5|sha[1-9]+|blake2|random|array|time|datetime|unicodedata|codecs|pickle|csv|sys|gc|enum|marshal|imp|"
    "contextvars|locale|io"
)
#: Functions and methods that read nothing.
_READ_NOTHING = re.compile(
    "fspath|allocate_lock|write(lines)?|flush|isatty|fileno|close|text_encoding|acquire|release|__(enter|exit)__"
)
#: Modules whose objects may call a source when they are called, or give a value.
_CALLING = ("functools", "itertools", "operator")
_COND = inspect.unwrap(torch.cond).__code__
#: Types whose constructors read the clock without a call that a profile shows, if given one of the words.
_CLOCK_TYPES = re.compile("datetime64|M8|Timestamp|Period|DatetimeIndex|to_datetime|date_range")
_CLOCK_WORDS = {"now", "today", "utcnow"}
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
        narrow: lines that compute in half precision.
        tensors: the user's line -> bytes of the largest tensor that an operation of torch answered there.
    """

    draws: list[str] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)
    gradients: list[str] = field(default_factory=list)
    conditions: list[str] = field(default_factory=list)
    readings: dict[str, Kind] = field(default_factory=dict)
    consumed: list[str] = field(default_factory=list)
    narrow: list[str] = field(default_factory=list)
    codes: dict[CodeType, dict[str, Any]] = field(default_factory=dict)
    tensors: dict[str, int] = field(default_factory=dict)


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
        asked = func.__self__.__name__ if name == "__get__" else name
        if _LAID_OUT.fullmatch(asked) and _is_own(sys._getframe(1)):
            self._read(asked, "how it runs")
        before = torch.get_rng_state()
        result = func(*args, **kwargs)
        if not torch.equal(before, torch.get_rng_state()) and (line := user_line()):
            _add(self.seen.draws, f"{name} at {line}")
        if type(result) is Tensor and result.layout == torch.strided:
            place = user_line()
            if result.dtype in (torch.float16, torch.bfloat16):
                _add(self.seen.narrow, place)
            with suppress(NotImplementedError):  # tensors of torch.func have no memory
                size = result.untyped_storage().nbytes()
                self.seen.tensors[place] = max(size, self.seen.tensors.get(place, 0))
        return result

    def profile(self, frame: FrameType, event: str, arg: Any) -> None:
        """Record calls of the user's functions, and calls that read the world outside."""
        if event == "call":
            code = frame.f_code
            if code is _COND:
                _add(self.seen.conditions, user_line())
            elif not runs_users(frame):
                name = f"{frame.f_globals.get('__name__')}.{code.co_qualname}"
                if name != "random.Random.__init__" or frame.f_locals.get("x") is None:
                    self._call(frame.f_back, name, _kind(name))
            elif code not in self.seen.codes:
                self.seen.codes[code] = frame.f_globals
                if _reads_clock(frame):
                    self._read(f"{code.co_name}: np.datetime64 or Timestamp of now", "the clock")
                if _is_own(frame):
                    self.seen.readings.update(_named(frame))
        elif event == "c_call" and not _READ_NOTHING.fullmatch(arg.__name__):
            name = _name(arg)
            self._call(frame, name, _kind(name) or _unlisted(name))

    def _call(self, frame: FrameType | None, name: str, kind: Kind | None) -> None:
        """Record a call of a source. What torch, PyG, this package and imports read decides nothing."""
        if kind is None or frame is None or (_ASKED_BY_LIBRARIES.match(name) and not _is_own(frame)):
            return
        if _caller(frame) is not None and not _is_for_message(frame):
            self._read(name.replace("posix.", "os."), kind)

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


def _is_own(frame: FrameType) -> bool:
    """True for the user's code, unless a library's, which may ask if a value is hashable, or a key's."""
    code = frame.f_code
    return runs_users(frame) and "site-packages" not in code.co_filename and code.co_name != "__hash__"


def _name(function: Any) -> str:
    """The name of a function in C, "time.time", or of a method, "datetime.date.today"."""
    owner = getattr(function, "__self__", None)
    if owner is None or isinstance(owner, ModuleType):
        where = str(owner.__name__ if owner else function.__module__)
    else:
        of = owner if isinstance(owner, type) else type(owner)
        of = next((base for base in of.__mro__ if function.__name__ in vars(base)), of)
        where = f"{of.__module__}.{of.__qualname__}"
    return f"{where.replace('torch._C', 'torch')}.{function.__name__}"


@lru_cache(10_000)
def _kind(name: str) -> Kind | None:
    """The kind of a source by its name."""
    return next((kind for kind, names in _SOURCES.items() if re.fullmatch(names, name)), None)


@lru_cache(10_000)
def _unlisted(name: str) -> Kind | None:
    """The kind of a function in C of which nothing says that equal arguments have equal answers."""
    top = name.partition(".")[0]
    is_same = top not in sys.stdlib_module_names or _SAME_ANSWERS.fullmatch(top.strip("_"))
    return None if is_same else "the environment"


def _named(frame: FrameType) -> Iterator[tuple[str, Kind]]:
    """Names in a function of the user that it does not call: data of modules, sources that others call.

    Yields: in words, and its kind.
    """
    code, known = frame.f_code, {**vars(builtins), **frame.f_globals, **frame.f_locals}
    line, value, module, is_called = code.co_firstlineno, cast(Any, None), cast(Any, None), False
    steps = [*dis.get_instructions(code)]
    for step, after in pairwise([*steps, steps[-1]]):
        what, name, line, of, value = step.opname, step.argval, step.starts_line or line, value, None
        if what in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"):
            of = module if what == "IMPORT_FROM" else of
            value = getattr(of, "__dict__", {}).get(name)
        elif what == "IMPORT_NAME":
            value = module = sys.modules.get(name)
        elif what.startswith("STORE_"):
            known[name] = of
        elif what.startswith("LOAD_"):
            value, is_called = known.get(name), "NULL" in step.argrepr
            of = next((each for each in (sys, time) if vars(each).get(name) is value), None)
        if value is None or isinstance(value, ModuleType):
            continue
        shows = is_called or what == "LOAD_METHOD" or "NULL" in step.argrepr + after.opname
        if isinstance(value, BuiltinFunctionType | FunctionType):
            names = [] if shows else [_name(value)]
        else:
            names = [*map(_name, _held(value)), _name(value if isinstance(value, type) else type(value))]
            if isinstance(of, ModuleType):
                names = [*(names if of is not sys else ()), f"{of.__name__}.{name}"]
        for each in names:
            if kind := _kind(each) or (isinstance(value, BuiltinFunctionType) and _unlisted(each)):
                yield f"{each} at {line_at(code, line)}", kind


def _held(value: Any, depth: int = 3) -> list[Any]:
    """Functions in C that an object calls, such as functools.partial(time.time)."""
    if isinstance(value, BuiltinFunctionType):
        return [value]
    if not depth or not (
        type(value).__module__ in _CALLING or isinstance(value, Iterator | defaultdict | tuple)
    ):
        return []
    return [each for part in gc.get_referents(value) for each in _held(part, depth - 1)]


def _is_for_message(frame: FrameType | None) -> bool:
    """True for a call on behalf of a message that the user's code writes, such as a log record."""
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if file.endswith(_MESSAGES) or (file.endswith("logging/__init__.py") and name in _LOGGED):
            return True
        frame = frame.f_back
    return False


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
        sys.setprofile(profiler if callable(profiler) else None)
        if isinstance(profiler, cProfile.Profile):  # written in C
            profiler.enable()
        if collects:
            gc.enable()
        after = {name: printed(get()) for name, (get, _, _) in GENERATORS.items()}
        watch.seen.consumed += [name for name in after if after[name] != before[name]]


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
