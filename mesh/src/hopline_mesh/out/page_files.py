"""The files of the web page, read once. No other file is served."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

_TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}


@cache
def page_files() -> dict[str, tuple[bytes, bytes]]:
    """Return name -> body and content type."""
    found = {}
    for file in (files("hopline_mesh.out") / "page").iterdir():
        suffix = file.name[file.name.rfind(".") :]
        if suffix in _TYPES:
            found[file.name] = (file.read_bytes(), _TYPES[suffix])
    return found
