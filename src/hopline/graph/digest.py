"""Content hashes of arrays, and the snapshot id made of them.

The hash is BLAKE2b over leaves of 8 MiB, then over the leaves' digests: a cryptographic hash whose
leaves are computed by all cores (hashlib releases the GIL). SHA-256 without SHA
instructions is slower, and so is a single thread of either.
An array's digest covers its dtype, shape and bytes, not its file's header, so that the same content
has the same id with every NumPy version.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import numpy as np

from hopline.graph.schema import GraphSchema
from hopline.process.cgroup import usable_cpus
from hopline.types import AnyArray, Progress, silent

#: `map`, or as `map`: in threads, or at a limited rate.
Run: TypeAlias = Callable[[Callable[[int], bytes], Iterable[int]], Iterable[bytes]]

#: Bytes of a leaf.
LEAF_BYTES = 8 << 20
_DERIVED = ("slots", "cumweight", "weight_sums")


def digests(arrays: Mapping[str, AnyArray], progress: Progress = silent) -> dict[str, str]:
    """Digests of many arrays, each 64 hex digits, computed by all cores."""
    leaves = [
        (name, view[begin : begin + LEAF_BYTES])
        for name, array in arrays.items()
        for view in [bytes_of(array)]
        for begin in range(0, len(view), LEAF_BYTES)
    ]
    roots = {name: _root(array.dtype.str, array.shape) for name, array in arrays.items()}
    with ThreadPoolExecutor(max_workers=usable_cpus()) as pool:
        hashed = pool.map(lambda leaf: hashlib.blake2b(leaf[1], digest_size=32).digest(), leaves)
        for i, ((name, _), leaf_digest) in enumerate(zip(leaves, hashed, strict=True)):
            roots[name].update(leaf_digest)
            progress("hashing", (i + 1) / len(leaves))
    return {name: root.hexdigest() for name, root in roots.items()}


def of_file(path: Path, dtype: str, shape: Sequence[int], file_bytes: int, run: Run) -> str:
    """The digest of the array in a .npy file of so many bytes, read from the file. Raises: OSError."""
    root = _root(dtype, shape)
    with path.open("rb", buffering=0) as file:
        # Pages that are read once must not drive out those that requests read.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_NOREUSE)

        def leaf(place: int) -> bytes:
            content = os.pread(file.fileno(), min(LEAF_BYTES, file_bytes - place), place)
            return hashlib.blake2b(content, digest_size=32).digest()

        first = file_bytes - math.prod(shape) * np.dtype(dtype).itemsize
        for each in run(leaf, range(first, file_bytes, LEAF_BYTES)):
            root.update(each)
    return root.hexdigest()


def _root(dtype: str, shape: Sequence[int]) -> hashlib.blake2b:
    return hashlib.blake2b(f"{dtype} {list(shape)} ".encode(), digest_size=32)


def version_of(schema: GraphSchema, array_digests: Mapping[str, str]) -> str:
    """The snapshot id, 16 hex digits: a hash of the schema and of all content.

    Args:
        array_digests: path -> digest; derived arrays are omitted.
    """
    content = {name: value for name, value in array_digests.items() if not name.endswith(_DERIVED)}
    text = schema.canonical() + json.dumps(content, sort_keys=True).encode()
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def bytes_of(array: AnyArray) -> memoryview:
    """The bytes of a C-contiguous array, not copied."""
    # An empty array cannot be cast to bytes.
    return array.data.cast("B") if array.size else memoryview(b"")
