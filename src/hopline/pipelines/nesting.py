"""How deep pipelines are nested: what must be loaded before what."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hopline.errors import HoplineError
from hopline.pipelines.spec import FILE_NAME, read_pipeline


def nesting(model: str, folder_of: Callable[[str], Path | None]) -> int:
    """0 for a model, 1 for a pipeline of models, 2 for one that has a pipeline as a step, …

    Args:
        folder_of: name -> folder of the version that will serve; None where there is none.

    A pipeline that cannot be read or that nests itself has some depth too: loading it says what is wrong.
    """
    return _nesting(model, folder_of, frozenset())


def _nesting(model: str, folder_of: Callable[[str], Path | None], around: frozenset[str]) -> int:
    folder = None if model in around else folder_of(model)
    if folder is None or not (folder / FILE_NAME).is_file():
        return 0
    try:
        below = read_pipeline(folder).models
    except HoplineError:
        return 1
    inside = around | {model}
    return 1 + max((_nesting(name, folder_of, inside) for name, _ in below), default=0)
