"""`hopline warm`: compile all kernels now, for a fast first start."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import MofNCompleteColumn

from hopline.commands.options import AsJson
from hopline.commands.progress import progress_bars
from hopline.errors import ConfigError

if TYPE_CHECKING:
    from hopline.jobs.kernels import Signature


def warm(
    cpu: Annotated[
        list[str] | None,
        typer.Option(
            help="Compile for a CPU level, such as x86-64-v3, into the installed package; repeatable. "
            "`all`: every level."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compile all kernels ahead of time, for images and hosts whose first start must be fast.

    Without --cpu, the kernels go into Numba's cache: NUMBA_CACHE_DIR, else the folder of the installed
    package if it can be written, else the user's cache folder. They work on this CPU model alone.

    With --cpu, they go into the installed package, for every machine whose CPU has the level. A server then
    needs no folder that it can write.
    """
    if cpu:
        _warm_levels(cpu, as_json=as_json)
        return
    from hopline.jobs.kernels import all_signatures

    compile_kernels(all_signatures(), as_json=as_json)


def compile_level(level: str, *, as_json: bool) -> None:
    """Compile all kernels for a CPU level. In a process that has not imported Numba's decorator yet."""
    from hopline.kernels.cpu_level import compile_for

    compile_for(level)
    from hopline.jobs.kernels import all_signatures

    compile_kernels(all_signatures(), as_json=as_json)


def _warm_levels(named: Sequence[str], *, as_json: bool) -> None:
    """One process for each level: Numba compiles for one kind of CPU in a process."""
    from hopline.kernels.cpu_level import FOLDER, LEVELS, check_level

    levels = list(LEVELS) if "all" in named else list(dict.fromkeys(named))
    for level in levels:
        check_level(level)
    try:
        FOLDER.mkdir(exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--cpu: {FOLDER} cannot be written: {error.strerror}") from None
    for level in levels:
        if not as_json:
            print(f"{level}: ", end="", flush=True)
        call = f"from {__name__} import compile_level; compile_level({level!r}, as_json={as_json})"
        done = subprocess.run([sys.executable, "-P", "-c", call])
        if done.returncode:
            raise typer.Exit(done.returncode)


def compile_kernels(wanted: Sequence[Signature], *, as_json: bool) -> None:
    """Compile kernels that are not in the cache, and report them; `as_json` without progress."""
    from hopline.jobs.kernels import compile_all

    began = time.perf_counter()
    with progress_bars(MofNCompleteColumn(), quiet=as_json, transient=True) as advance:
        counts = compile_all(wanted, lambda done, name: advance(f"compiling, {name}", done, len(wanted)))
    seconds = time.perf_counter() - began
    if as_json:
        names = ("compiled", "there", "gone")
        print(json.dumps({**{name: counts[name] for name in names}, "seconds": round(seconds, 3)}))
        return
    there = f"; {counts['there']} were cached" if counts["there"] else ""
    print(f"{counts['compiled']} kernels compiled in {seconds:.1f} s{there}")
