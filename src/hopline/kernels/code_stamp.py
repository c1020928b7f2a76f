"""A hash of a module's source: its file, and the files that it imports from its package and from Hopline.

Imports are parsed from the text, at the beginning of a line only: imports within functions, or only for
type checkers, are not part of compiled code.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Iterator

_IMPORT = re.compile(r"^(?:from +([\w.]+) +import +(\([^)]*\)|[^\n]*)|import +([^\n]*))", re.MULTILINE)
_NAME = re.compile(r"(?:^|[,(])\s*([\w.]+)")
_COMMENT = re.compile(r"#[^\n]*")


def stamp_of(path: str) -> bytes:
    """Hash a module's file and all files that it imports, also indirectly, from its package and Hopline."""
    found: dict[str, bytes] = {}
    left = [path]
    while left:
        file = left.pop()
        if file not in found:
            found[file], imported = _read(file)
            left += imported
    digest = hashlib.sha256()
    for file in sorted(found):
        digest.update(found[file])
    return digest.digest()


def top_folder(folder: str) -> str:
    """Folder of the top-level package of a folder."""
    return _top(folder)[0]


@functools.cache
def _read(path: str) -> tuple[bytes, tuple[str, ...]]:
    """The hash of a file, and the files of its package and of Hopline that it imports."""
    with open(path, "rb") as file:
        content = file.read()
    text = content.decode(errors="replace")
    roots = {
        package: root for root, package in (_top(os.path.dirname(__file__)), _top(os.path.dirname(path)))
    }
    names = {(root, name) for package, root in roots.items() for name in _imported(text, package)}
    files = (found for root, name in names if (found := _file_of(root, name)))
    return hashlib.sha256(content).digest(), tuple(files)


@functools.cache
def _top(folder: str) -> tuple[str, str]:
    """The folder of the top-level package of a folder, and its name."""
    above, name = os.path.split(folder)
    return _top(above) if os.path.isfile(os.path.join(above, "__init__.py")) else (above, name)


def _imported(text: str, package: str) -> Iterator[str]:
    """Full names of modules of a package, and of names imported from them."""
    for module, names, modules in _IMPORT.findall(text):
        if module == package or module.startswith(package + "."):
            yield module
            yield from (f"{module}.{name}" for name in _NAME.findall(_COMMENT.sub("", names)))
        elif modules:
            yield from (name for name in _NAME.findall(modules) if name.split(".")[0] == package)


@functools.cache
def _file_of(root: str, name: str) -> str:
    """The file of a module; "" if it does not exist, or the name is of something in a module."""
    path = os.path.join(root, *name.split("."))
    for file in (path + ".py", os.path.join(path, "__init__.py")):
        if os.path.isfile(file):
            return file
    return ""
