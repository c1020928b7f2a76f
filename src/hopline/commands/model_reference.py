"""`FILE.py:NAME` and `MODULE:NAME` on the command line: loads the object that they name."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hopline.config.setting import did_you_mean
from hopline.errors import HoplineError, PackagingError
from hopline.graph import Graph


def load_module(
    reference: str, graph: Graph | None, arguments: Mapping[str, Any] | None = None, *,
    what: str = "--model", form: tuple[str, Callable[[Any], bool]] | None = None,
) -> Any:  # fmt: skip
    """Load the torch module that FILE.py:NAME or MODULE:NAME names; classes and functions are called.

    Args:
        graph: passed if the class or function has an argument named `graph`.
        arguments: for the class or function.
        what: option named in messages.
        form: another kind of object in place of a module, and how it is known.

    Raises: PackagingError: no such file, module or name, invalid arguments, or not of that kind.
    """
    if form is None:
        from torch import nn

        form = "a torch.nn.Module", lambda each: isinstance(each, nn.Module)
    kind, is_one = form
    place, colon, attribute = reference.rpartition(":")
    if not colon or not place:
        hint = "; or a .joblib file" if "fitted" in kind else _hint(reference)
        raise PackagingError(f"{what} {reference!r} is not FILE.py:NAME or MODULE:NAME{hint}")
    source = import_place(place)
    if not hasattr(source, attribute):
        hint = did_you_mean(attribute, [name for name in vars(source) if not name.startswith("_")])
        raise PackagingError(f"{what}: {place} has no {attribute!r}{hint}")
    found = getattr(source, attribute)
    if is_one(found) or not callable(found):
        if arguments:
            raise PackagingError(
                f"--init: {reference} is a {type(found).__name__} already and takes no arguments; "
                "name a class or a function"
            )
    else:
        found = _called(found, reference, dict(arguments or {}), graph, what)
    if not is_one(found):
        raise PackagingError(f"{what}: {reference} is {type(found).__name__}, not {kind}")
    return found


def _called(found: Any, reference: str, arguments: dict[str, Any], graph: Any, what: str) -> Any:
    name = reference.rpartition(":")[2]
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):  # built-in callables have no signature
        signature = inspect.Signature([inspect.Parameter("_", inspect.Parameter.VAR_KEYWORD)])
    parameters = signature.parameters
    if "graph" in parameters and "graph" not in arguments and graph is not None:
        arguments["graph"] = graph
    every = parameters.values()
    takes_any = any(each.kind is each.VAR_KEYWORD for each in every)
    named = [each.name for each in every if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)]
    for given in arguments:
        if given not in named and not takes_any:
            raise PackagingError(
                f"--init {given}=…: {name}{signature} has no argument {given!r}{did_you_mean(given, named)}"
            )
    needed = [each for each in every if each.default is each.empty and each.name not in arguments]
    missing = [each.name for each in needed if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
    if missing:
        needs = f"{what}: {name}{signature} needs {', '.join(missing)}; "
        if what != "--model":
            raise PackagingError(needs + "name a function that needs no arguments")
        raise PackagingError(needs + "pass " + " ".join(f"--init {each}=VALUE" for each in missing))
    try:
        return found(**arguments)
    except HoplineError:
        raise
    except Exception as error:  # the user's code can raise any exception
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items() if key != "graph")
        raise PackagingError(f"{what}: {name}({given}) failed: {_describe(error)}") from error


def _hint(reference: str) -> str:
    if reference.endswith(".py"):
        return f"; also name the class or function: {reference}:NAME"
    if reference.endswith((".pt", ".pth", ".ckpt", ".bin", ".safetensors")):
        return "; pass a file of weights as --state-dict, and its class as --model"
    return ""


def parse_init(texts: Sequence[str]) -> dict[str, Any]:
    """Read arguments NAME=VALUE; a value is JSON (`true`, `[64, 32]`), a Python value (`None`), else text.

    Raises: PackagingError: a name is missing or repeated.
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise PackagingError(f"--init {text!r} is not NAME=VALUE, such as --init hidden=64")
        if name in found:
            raise PackagingError(f"--init {name} is given twice")
        found[name] = _value(value)
    return found


def _value(text: str) -> Any:
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
    return text


def import_place(place: str) -> Any:
    """Import FILE.py, or a dotted name; the working folder is searched, too.

    Raises: PackagingError: the module does not exist, or its code fails.
    """
    if not place.endswith(".py"):
        _also_look_in(Path.cwd())
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name != place.split(".")[0] and error.name != place:
                raise PackagingError(f"{place}: {_describe(error)}") from error
            raise PackagingError(f"no module {place!r}; for a file, write PATH.py:NAME") from None
        except Exception as error:  # the user's code can raise any exception
            raise PackagingError(f"{place}: {_describe(error)}") from error
    path = Path(place)
    if not path.is_file():
        raise PackagingError(f"{path}: no such file")
    name = path.stem
    if name in sys.modules or name in sys.stdlib_module_names:  # does not replace the other module
        name = f"_file_{name}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PackagingError(f"{path}: not a Python file")
    source = importlib.util.module_from_spec(spec)
    _also_look_in(path.resolve().parent)
    # Registered in sys.modules, so that its classes can be copied.
    sys.modules[name] = source
    try:
        spec.loader.exec_module(source)
    except (Exception, SystemExit) as error:  # the user's code can raise any exception
        del sys.modules[name]
        hint = ""
        if "relative import" in str(error):
            hint = "; name it as PACKAGE.MODULE:NAME from the folder that holds the package"
        if isinstance(error, SystemExit):
            hint = '; move code that runs, such as parsing arguments, below if __name__ == "__main__":'
        raise PackagingError(f"{path}: {_describe(error)}{hint}") from error
    return source


def _also_look_in(folder: Path) -> None:
    """Also import modules from the folder of a script, after installed ones."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _describe(error: BaseException) -> str:
    """Describe an error of the user's code, with the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(("<frozen", __file__))]
    where = f" (line {own[-1].lineno} of {own[-1].filename})" if own else ""
    return f"{type(error).__name__}: {error}{where}"
