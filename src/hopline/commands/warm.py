"""`hopline warm`: compile all kernels now, for a fast first start."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from hopline.jobs.kernels import Signature


def warm(
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
) -> None:
    """Compile all kernels into Numba's cache, for images and hosts that must start fast.

    The cache folder is NUMBA_CACHE_DIR; else next to the installed package if writable; else the user's
    cache folder. The cache is valid for this CPU type and these versions of Hopline and Numba.
    """
    from hopline.jobs.kernels import signatures

    compile_kernels(signatures(), as_json=as_json)


def compile_kernels(wanted: Sequence[Signature], *, as_json: bool) -> None:
    """Compile kernels that are not in the cache, and report them.

    Args:
        as_json: print one JSON object, and no progress.
    """
    from hopline.jobs.kernels import compile_all

    began = time.perf_counter()
    columns = (
        TextColumn("compiling"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), disable=as_json, transient=True) as bars:
        task = bars.add_task("", total=len(wanted))
        counts = compile_all(wanted, lambda done, name: bars.update(task, completed=done, description=name))
    seconds = time.perf_counter() - began
    if as_json:
        names = ("compiled", "there", "gone")
        print(json.dumps({**{name: counts[name] for name in names}, "seconds": round(seconds, 3)}))
        return
    there = f"; {counts['there']} were cached" if counts["there"] else ""
    print(f"{counts['compiled']} kernels compiled in {seconds:.1f} s{there}")
