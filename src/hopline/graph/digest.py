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
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from hopline.graph.schema import GraphSchema
from hopline.process.cgroup import usable_cpus
from hopline.types import AnyArray, Progress, silent

_LEAF_BYTES = 8 << 20
_DERIVED = ("slots", "cumweight", "weight_sums")


def digests(arrays: Mapping[str, AnyArray], progress: Progress = silent) -> dict[str, str]:
    """Digests of many arrays, each 64 hex digits, computed by all cores."""
    leaves = [
        (name, view[begin : begin + _LEAF_BYTES])
        for name, array in arrays.items()
        for view in [bytes_of(array)]
        for begin in range(0, len(view), _LEAF_BYTES)
    ]
    roots = {
        name: hashlib.blake2b(f"{array.dtype.str} {list(array.shape)} ".encode(), digest_size=32)
        for name, array in arrays.items()
    }
    with ThreadPoolExecutor(max_workers=usable_cpus()) as pool:
        hashed = pool.map(lambda leaf: hashlib.blake2b(leaf[1], digest_size=32).digest(), leaves)
        for i, ((name, _), leaf_digest) in enumerate(zip(leaves, hashed, strict=True)):
            roots[name].update(leaf_digest)
            progress("hashing", (i + 1) / len(leaves))
    return {name: root.hexdigest() for name, root in roots.items()}


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
