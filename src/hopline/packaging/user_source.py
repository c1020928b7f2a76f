"""Finds lines of the user's source, not of torch, PyG, the standard library or this package."""

from __future__ import annotations

import ast
import dis
import inspect
import linecache
import sys
import sysconfig
import textwrap
import traceback
from collections.abc import Collection
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
import torch_geometric

#: Folders whose frames are not the user's source.
LIBRARIES = (
    *(str(Path(module.__file__ or "").parent) for module in (torch, torch_geometric)),
    str(Path(__file__).parent),
)
#: Characters of a line that messages show.
_LONGEST = 160
#: Functions whose answers depend on the order of what they are given, and that do not.
_IN_ORDER = {
    "enumerate", "list", "tuple", "zip", "iter", "map", "filter", "join", "fromkeys", "str", "repr",
    "reduce", "chain", "islice", "permutations", "product", "accumulate",
}  # fmt: skip
_IN_NO_ORDER = {"sorted", "set", "frozenset", "any", "all", "min", "max", "sum", "len"}
_OF_SETS = {"union", "intersection", "difference", "symmetric_difference", "copy"}
_STANDARD = sysconfig.get_paths()["stdlib"]


@lru_cache(10_000)
def is_users(filename: str) -> bool:
    """True for a file that is neither of torch, PyG or this package nor of the standard library."""
    if filename.startswith((*LIBRARIES, "<frozen ")) or Path(filename).name.startswith("torch_geometric."):
        return False  # PyG writes the code of convolutions to temporary files
    return not filename.startswith(_STANDARD) or "site-packages" in filename


def runs_users(frame: FrameType) -> bool:
    """True if a frame runs the user's source, also without a file, as typed into a notebook."""
    name, space = frame.f_code.co_filename, frame.f_globals
    if not name.startswith("<"):
        return is_users(name)
    is_tuple = str(space.get("__name__")).startswith("namedtuple_")
    return not is_tuple and is_users(
        space.get("__file__") or name
    )  # a library's, which it made at run time


def user_line(error: BaseException | None = None) -> str:
    """The innermost line of the user's source, as "file.py:7: source"; "" if none is known.

    Args:
        error: its traceback is searched; None searches the current stack.
    """
    trace = traceback.walk_tb(error.__traceback__) if error else traceback.walk_stack(sys._getframe(1))
    for frame, number in reversed(list(trace)) if error else trace:
        if runs_users(frame):
            return line_at(frame.f_code, number, frame.f_globals)
    return ""


def line_at(code: CodeType, number: int, space: dict[str, Any] | None = None) -> str:
    """A line of a function, as `user_line`; `space`: its globals, which know the source of a notebook."""
    line = linecache.getline(code.co_filename, number, space).strip()
    return _shown(code.co_filename, number, line or _calls(code, number))


def _calls(code: CodeType, number: int) -> str:
    """Names that a line of a function may call, in place of source that is not known."""
    steps = [each for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_METHOD")]
    here = [each.argval for each in steps if each.positions and each.positions.lineno == number]
    return ", ".join(f"{name}()" for name in dict.fromkeys(here))


def line_in_forward(frame: FrameType | None) -> str:
    """The innermost line of the user's source that a `forward` runs, above a frame; "" if none is known."""
    found: FrameType | None = None
    while frame is not None:
        if found is None and not frame.f_code.co_filename.startswith(LIBRARIES):
            found = frame
        if found is not None and frame.f_code.co_name == "forward":
            return line_at(found.f_code, found.f_lineno)
        frame = frame.f_back
    return ""


def _shown(filename: str, number: int, line: str) -> str:
    shown = line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
    return f"{filename.rpartition('/')[2]}:{number}: {shown}"


def iterated_sets(
    code: CodeType, attributes: Collection[str] = (), known: Collection[str] = ()
) -> list[str]:
    """Lines of a function that read the order of a set, as "file.py:7: source".

    Sets of numbers written in the source have one order in all processes, and are left out. Where no source
    is known, one line for a function that has a set.

    Args:
        attributes, known: names of attributes, and of variables of its module, that are sets.
    """
    name, first, tree = code.co_filename, code.co_firstlineno - 1, _tree(code)
    if tree is None:
        named = {"set", "frozenset", *attributes, *known} & {*code.co_names}
        makes = any(step.opname == "BUILD_SET" for step in dis.get_instructions(code))
        return [_shown(name, first + 1, "a set; its source is not known")] if named or makes else []
    found = _orders(tree, attributes, known)
    numbers = sorted({node.lineno + first for node in found})
    return [line_at(code, number) for number in numbers]


@lru_cache(1000)
def _tree(code: CodeType) -> ast.AST | None:
    """The source of a function, its first line as line 1; None if there is none."""
    with suppress(SyntaxError):  # its lines are a part of an expression, as of a lambda in a dict
        try:
            return ast.parse(textwrap.dedent(inspect.getsource(code)))
        except OSError:  # typed into an interpreter
            return None
    with suppress(SyntaxError):  # a notebook's cell with commands
        whole = ast.parse("".join(linecache.getlines(code.co_filename)))
        ast.increment_lineno(whole, 1 - code.co_firstlineno)
        # all of the line: nothing says which of them runs
        return ast.List(
            [node for node in ast.walk(whole) if isinstance(node, ast.Lambda) and node.lineno == 1]
        )
    return None


def _orders(tree: ast.AST, attributes: Collection[str], known: Collection[str]) -> list[ast.expr]:
    """Sets whose order an expression or a loop reads."""
    names = set(known)

    def is_set(node: ast.AST) -> bool:
        match node:
            case ast.Set(elts):
                return not all(isinstance(e, ast.Constant) and isinstance(e.value, int) for e in elts)
            case ast.Call(ast.Name("set" | "frozenset"), [_]) | ast.SetComp():
                return True
            case ast.Call(ast.Attribute(value, name)) if name in _OF_SETS:
                return is_set(value)
            case ast.BinOp(left, ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor(), right):
                return is_set(left) or is_set(right)
            case ast.Name(name) | ast.NamedExpr(ast.Name(name)):
                return name in names
            case ast.Attribute(_, name):
                return name in attributes
        return False

    harmless: set[ast.AST] = set()
    found: list[ast.expr] = []
    for node in ast.walk(tree):  # outer expressions before inner ones
        match node:
            case ast.Assign([ast.Name(name)], value) | ast.NamedExpr(ast.Name(name), value):
                names |= {name} if is_set(value) else set()
            case ast.Call(ast.Attribute(value, "pop"), []) | ast.Assign([ast.Tuple() | ast.List()], value):
                found.append(value)
            case ast.Call(ast.Name(name) | ast.Attribute(_, name), args, keywords):
                # sorted(key=len) leaves equal ones in the set's order
                is_ordered = name in _IN_ORDER or (name in _IN_NO_ORDER and bool(keywords))
                harmless |= set() if is_ordered or name not in _IN_NO_ORDER else set(args)
                found += [arg for arg in args if is_ordered and node not in harmless]
            case ast.ListComp(_, parts) | ast.GeneratorExp(_, parts) | ast.DictComp(_, _, parts):
                found += [part.iter for part in parts if node not in harmless]
            case ast.For(_, value) | ast.Starred(value) | ast.FormattedValue(value) | ast.YieldFrom(value):
                found.append(value)
    return [node for node in found if is_set(node)]
