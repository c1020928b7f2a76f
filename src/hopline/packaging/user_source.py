"""Finds lines of the user's source, not of torch, PyG, the standard library or this package."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path

import torch
import torch_geometric

#: Folders whose frames are not the user's source.
LIBRARIES = (
    *(str(Path(module.__file__ or "").parent) for module in (torch, torch_geometric)),
    str(Path(__file__).parent),
)
#: Characters of a line that messages show.
_LONGEST = 160
_STANDARD = sysconfig.get_paths()["stdlib"]


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
            line = frame.line or ""
            shown = line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
            return f"{Path(frame.filename).name}:{frame.lineno}: {shown}"
    return ""
