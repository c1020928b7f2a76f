"""`hopline mesh warm`: compile the kernels of the watch before its first start."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hopline.commands.warm import compile_kernels

SIGNATURES = Path(__file__).parents[1] / "signatures.txt"


def warm(
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
) -> None:
    """Compile the watch's kernels into Numba's cache, so that a first start is fast; for images and hosts.

    The cache is that of `hopline warm`.
    """
    from hopline.jobs.kernels import signatures

    compile_kernels(signatures(SIGNATURES), as_json=as_json)
