#!/usr/bin/env python3
"""Write src/hopline/jobs/signatures.txt: what `hopline warm` compiles kernels for.

Run it after the whole suite has run in this checkout, which leaves in Numba's cache what every kernel is
called with. Lines of kernels that have changed since and were not called are kept.
"""

from __future__ import annotations

from hopline.jobs.kernels import SIGNATURES, kernels, recorded, signatures


def main() -> None:
    """Merge the cache into the file."""
    there = {(module, name): dispatcher.py_func for module, name, dispatcher in kernels()}
    kept = [
        each
        for each in (signatures() if SIGNATURES.exists() else [])
        if (function := there.get((each.module, each.kernel))) is not None
        and function.__code__.co_argcount == len(each.types)
    ]
    found = sorted({*kept, *recorded()})
    SIGNATURES.write_text("".join(f"{m}\t{k}\t{'; '.join(t)}\n" for m, k, t in found))
    print(f"{len(found)} signatures of {len({each[:2] for each in found})} kernels, of {len(there)}")


if __name__ == "__main__":
    main()
