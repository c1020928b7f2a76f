#!/usr/bin/env python3
"""Write the files of signatures: what `hopline warm` and `hopline mesh warm` compile kernels for.

Run it after all suites have run in this checkout, which leaves in Numba's cache what every kernel is called
with. Lines of kernels that have changed since and were not called are kept.
"""

from __future__ import annotations

from pathlib import Path

from hopline.jobs.kernels import SIGNATURES, kernels, recorded, signatures
from hopline_mesh.commands.warm import SIGNATURES as MESH_SIGNATURES
from hopline_stores import SIGNATURES as STORES_SIGNATURES


def write(package: str, path: Path) -> None:
    """Merge the cache of a package's kernels into its file."""
    there = {(module, name): dispatcher.py_func for module, name, dispatcher in kernels(package)}
    kept = [
        each
        for each in (signatures(path) if path.exists() else [])
        if (function := there.get((each.module, each.kernel))) is not None
        and function.__code__.co_argcount == len(each.types)
    ]
    found = sorted({*kept, *recorded(package)})
    path.write_text("".join(f"{m}\t{k}\t{'; '.join(t)}\n" for m, k, t in found))
    called = len({each[:2] for each in found})
    print(f"{package}: {len(found)} signatures of {called} kernels, of {len(there)}")


if __name__ == "__main__":
    write("hopline", SIGNATURES)
    write("hopline_mesh", MESH_SIGNATURES)
    write("hopline_stores", STORES_SIGNATURES)
