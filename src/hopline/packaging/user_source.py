"""Finds lines of the user's source: frames of torch, PyG and this package are skipped."""

from __future__ import annotations

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


def user_line(error: BaseException | None = None) -> str:
    """The innermost line of the user's source, as "file.py:7: source"; "" if none is known.

    Args:
        error: its traceback is searched; None searches the current stack.
    """
    frames: Iterable[traceback.FrameSummary] = (
        traceback.extract_stack() if error is None else traceback.extract_tb(error.__traceback__)
    )
    for frame in reversed(list(frames)):
        if not frame.filename.startswith((*LIBRARIES, "<")):
            return f"{Path(frame.filename).name}:{frame.lineno}: {frame.line}"
    return ""
