#!/usr/bin/env python3
"""Compile the kernels that tests call, in two processes; later processes of this checkout load them.

Without it, both processes of `scripts/test` compile most of them, and each server on a read-only root too.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from hopline.jobs.kernels import Signature, all_signatures, compile_all, signatures
from hopline_mesh.commands.warm import SIGNATURES as MESH_SIGNATURES

#: Kernels that call one another, and half of the time: compiled in one process.
ENGINE = (
    *("hopline.engine.fused_plan", "hopline.engine.kernels", "hopline.engine.plan"),
    *("hopline.engine.state_cache", "hopline.sampling."),
)


def main() -> None:
    """Compile what the cache lacks, and print how much that was."""
    halves: tuple[list[Signature], list[Signature]] = ([], [])
    for each in (*all_signatures(), *signatures(MESH_SIGNATURES)):
        halves[each.module.startswith(ENGINE)].append(each)
    with ProcessPoolExecutor(2) as pool:
        counts = sum(pool.map(compile_all, halves), Counter())
    print(f"{counts['compiled']} kernels compiled; {counts['there']} were cached")


if __name__ == "__main__":
    main()
