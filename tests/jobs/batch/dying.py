"""Runs that end themselves with SIGKILL, for processes of their own: nothing here imports torch.

A process that multiprocessing starts imports the module of its function. A test's module imports torch, so
that this takes 4.8 s of processor time instead of 0.6.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hopline.jobs.batch.edges import EdgeChoice, EdgeRun
from hopline.jobs.batch.npy import NpyFolder
from hopline.jobs.batch.registry import open_sink
from hopline.jobs.batch.run import BatchOptions, BatchRun


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying_at(moment: int) -> Callable[[str, int, int], None]:
    """For `advance` of a run: the process dies at this call of it, at none for 0."""
    told = 0

    def advance(label: str, done: int, total: int) -> None:
        nonlocal told
        told += 1
        if told == moment:
            die()

    return advance


def into_folder(folder: Path, graph: Path, out: Path, moment: int | str, engine: Any = None) -> None:
    """Score `folder` into `out`, and die at a call of `advance`, "before commit" or "after commit"."""

    class Dies(NpyFolder):
        def commit(self) -> None:
            if moment == "before commit":
                die()
            super().commit()
            die()

    options = BatchOptions(outputs=("logits", "embedding"), checkpoint_s=0.0, threads=2)
    advance = dying_at(moment if isinstance(moment, int) else 0)
    work = out.with_name("out.run")
    BatchRun(folder, graph, work, options, engine=engine, advance=advance).run(lambda: Dies(out))


def edges_into_folder(folder: Path, graph: Path, out: Path) -> None:
    """Score the edges of the graph, and die before they are published."""

    class Dies(NpyFolder):
        def commit(self) -> None:
            die()

    work = out.with_name("out.run")
    EdgeRun(folder, graph, work, EdgeChoice(), BatchOptions(threads=1)).run(lambda: Dies(out))


def into_sink(
    folder: Path, graph: Path, work: Path, address: str, outputs: tuple[str, ...], moment: int
) -> None:
    """Score `folder` into a sink, and die at a call of `advance`."""
    options = BatchOptions(outputs=outputs, checkpoint_s=0.0, threads=2)
    BatchRun(folder, graph, work, options, advance=dying_at(moment)).run(lambda: open_sink(address))
