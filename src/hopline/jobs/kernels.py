"""Compiles kernels ahead of time: each for the types of arguments that Hopline calls it with.

The types are in `signatures.txt` next to this file, a line each:

    hopline.engine.state_cache  read_rows  readonly array(int32, 1d, C); array(float32, 2d, C); int64

`scripts/record_signatures.py` writes it from the cache of a run of all tests. A kernel that is missing from
the file is compiled when it is first called, as usual. A package that builds on Hopline has its own file,
which an entry point of the group `hopline.kernels` names.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from numba import types
from numba.core.errors import TypingError

from hopline.doors import Door
from hopline.engine.narrow_kernels import Narrow

SIGNATURES = Path(__file__).with_name("signatures.txt")

#: Files of other packages, as `SIGNATURES`.
DOOR = Door("hopline.kernels")

_ARRAY = re.compile(r"(readonly )?array\((\w+), (\d)d, ([CFA])\)")
_TUPLE = re.compile(r"UniTuple\((\w+) x (\d+)\)")
_MIXED = re.compile(r"Tuple\((\w+(?:, \w+)*)\)")
_NARROW = re.compile(r"Narrow\((.*\)), (.*\)), (.*\))\)")
_SCALARS = ("bool", "float32", "float64", *(f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)))


class Signature(NamedTuple):
    """A kernel and the types of its arguments.

    Attributes:
        module: its full name.
        kernel: its name there.
        types: as Numba writes them.
    """

    module: str
    kernel: str
    types: tuple[str, ...]


def signatures(path: Path = SIGNATURES) -> list[Signature]:
    """The recorded signatures, by module."""
    found = []
    for line in path.read_text().splitlines():
        module, kernel, arguments = line.split("\t")
        found.append(Signature(module, kernel, tuple(arguments.split("; ")) if arguments else ()))
    return found


def all_signatures() -> list[Signature]:
    """The recorded signatures of this package and of installed ones."""
    files = [SIGNATURES, *(point.load() for point in DOOR.installed().values())]
    return [each for file in files for each in signatures(file)]


def compile_all(
    wanted: Sequence[Signature], progress: Callable[[int, str], object] = lambda done, name: None
) -> Counter[str]:
    """Compile the kernels that the cache does not have.

    Args:
        progress: called before each kernel with the number done and its name.

    Returns: numbers of kernels that were "compiled", "there" (in the cache already), or "gone": no kernel
        has the name, or it has other arguments or types now.
    """
    counts: Counter[str] = Counter()
    for done, (module, name, arguments) in enumerate(wanted):
        progress(done, f"{module}.{name}")
        counts[_compiled(module, name, arguments)] += 1
    progress(len(wanted), "")
    return counts


def kernels(package: str = "hopline") -> Iterator[tuple[str, str, Any]]:
    """Every kernel of a package that Numba caches: module, name, dispatcher."""
    source = Path(str(importlib.import_module(package).__file__)).parent
    for path in sorted(source.rglob("*.py")):
        names = _decorated(path)
        if not names:
            continue
        module = ".".join((package, *path.relative_to(source).with_suffix("").parts))
        loaded = importlib.import_module(module)
        for name in names:
            dispatcher = getattr(loaded, name)
            if getattr(getattr(dispatcher, "_cache", None), "own", None) is not None:
                yield module, name, dispatcher


def recorded(package: str = "hopline") -> Iterator[Signature]:
    """Cached signatures of a package's present kernels; unknown types are left out."""
    for module, name, dispatcher in kernels(package):
        for key in dispatcher._cache.own._cache_file._load_index():
            arguments = tuple(map(str, key[0]))
            if all(numba_type(each) is not None for each in arguments):
                yield Signature(module, name, arguments)


def numba_type(text: str) -> Any:
    """The Numba type of a text; None for an unknown one."""
    if text in _SCALARS:
        return getattr(types, "boolean" if text == "bool" else text)
    if text == "none":
        return types.none
    if (array := _ARRAY.fullmatch(text)) and array[2] in _SCALARS:
        dtype = numba_type(array[2])
        return types.Array(dtype, int(array[3]), array[4], readonly=bool(array[1]))
    if (same := _TUPLE.fullmatch(text)) and same[1] in _SCALARS:
        return types.UniTuple(numba_type(same[1]), int(same[2]))
    if (mixed := _MIXED.fullmatch(text)) and all(each in _SCALARS for each in mixed[1].split(", ")):
        return types.Tuple([numba_type(each) for each in mixed[1].split(", ")])
    if narrow := _NARROW.fullmatch(text):
        return types.NamedTuple([numba_type(each) for each in narrow.groups()], Narrow)
    return None


def _compiled(module: str, name: str, arguments: tuple[str, ...]) -> str:
    dispatcher: Any = getattr(importlib.import_module(module), name, None)
    known = [numba_type(each) for each in arguments]
    if not hasattr(dispatcher, "py_func") or None in known:
        return "gone"
    if dispatcher.py_func.__code__.co_argcount != len(known):
        return "gone"
    hits = sum(dispatcher.stats.cache_hits.values())
    try:
        dispatcher.compile(tuple(known))
    except TypingError:
        return "gone"
    return "there" if sum(dispatcher.stats.cache_hits.values()) > hits else "compiled"


def _decorated(path: Path) -> list[str]:
    """Names of a file's functions that are decorated with a cached `njit`; the file is not imported."""
    text = path.read_text()
    if "import njit" not in text:
        return []
    return [
        node.name
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef)
        and any(re.match(r"njit\(.*cache=True", ast.unparse(each)) for each in node.decorator_list)
    ]
