"""Finds lines of the user's source, not of torch, PyG, the standard library or this package."""

from __future__ import annotations

import ast
import inspect
import linecache
import sysconfig
import textwrap
import traceback
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType

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
    if filename.startswith((*LIBRARIES, "<")) or Path(filename).name.startswith("torch_geometric."):
        return False  # PyG writes the code of convolutions to temporary files
    return not filename.startswith(_STANDARD) or "site-packages" in filename


def user_line(error: BaseException | None = None) -> str:
    """The innermost line of the user's source, as "file.py:7: source"; "" if none is known.

    Args:
        error: its traceback is searched; None searches the current stack.
    """
    frames: Iterable[traceback.FrameSummary] = (
        traceback.extract_stack() if error is None else traceback.extract_tb(error.__traceback__)
    )
    for frame in reversed(list(frames)):
        if is_users(frame.filename):
            return _shown(frame.filename, frame.lineno or 0, frame.line or "")
    return ""


def line_in_forward(frame: FrameType | None) -> str:
    """The innermost line of the user's source that a `forward` runs, above a frame; "" if none is known."""
    found: FrameType | None = None
    while frame is not None:
        if found is None and not frame.f_code.co_filename.startswith(LIBRARIES):
            found = frame
        if found is not None and frame.f_code.co_name == "forward":
            name, number = found.f_code.co_filename, found.f_lineno
            return _shown(name, number, linecache.getline(name, number).strip())
        frame = frame.f_back
    return ""


def _shown(filename: str, number: int, line: str) -> str:
    shown = line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
    return f"{Path(filename).name}:{number}: {shown}"


def iterated_sets(
    code: CodeType, attributes: Collection[str] = (), known: Collection[str] = ()
) -> list[str]:
    """Lines of a function that read the order of a set, as "file.py:7: source".

    Sets of numbers written in the source have one order in all processes, and are left out.

    Args:
        attributes, known: names of attributes, and of variables of its module, that are sets.
    """
    tree = _tree(code)
    found = [] if tree is None else _orders(tree, attributes, known)
    name, first = code.co_filename, code.co_firstlineno - 1
    numbers = sorted({node.lineno + first for node in found})
    return [_shown(name, number, linecache.getline(name, number).strip()) for number in numbers]


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
