"""A model's weights: named float32 arrays, in memory or in one file with a checksum.

The file is a line of JSON (format, shape, names), the arrays' bytes in that order, and the SHA-256 of all
before it. It is written to a temporary file and then renamed, so that it is never incomplete.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hopline.errors import ConfigError
from hopline_mesh.errors import StateDamaged
from hopline_mesh.model.shape import ModelShape

FloatArray = NDArray[np.float32]

_FORMAT = "hopline-mesh-model-1"
_DIGEST_BYTES = hashlib.sha256().digest_size


class Weights:
    """Named arrays of one shape of model. Not changed once made.

    Args:
        shape: the model's sizes.
        arrays: one for each of `shape.parameters()`; not copied where they are float32 and contiguous.

    Raises:
        StateDamaged: an array is missing, too many, of another shape or not finite.
    """

    def __init__(self, shape: ModelShape, arrays: Mapping[str, NDArray[np.generic]]) -> None:
        wanted = shape.parameters()
        if set(arrays) != set(wanted):
            odd = sorted(set(arrays) ^ set(wanted))
            raise StateDamaged(f"the model's weights do not fit its shape: {', '.join(odd[:5])}")
        self.shape = shape
        self.arrays: dict[str, FloatArray] = {}
        for name, size in wanted.items():
            array = np.ascontiguousarray(arrays[name], dtype=np.float32)
            if array.shape != size:
                raise StateDamaged(f"the model's weight {name} is {array.shape}, not {size}")
            if not np.isfinite(array).all():
                raise StateDamaged(f"the model's weight {name} has values that are not finite")
            self.arrays[name] = array

    def __getitem__(self, name: str) -> FloatArray:
        return self.arrays[name]

    @classmethod
    def initial(cls, shape: ModelShape, seed: int = 0) -> Weights:
        """Weights before training: uniform as Glorot and Bengio (2010) have it, biases 0."""
        rng = np.random.default_rng(seed)
        arrays = {}
        for name, size in shape.parameters().items():
            if len(size) == 1:
                arrays[name] = np.zeros(size, np.float32)
            else:
                bound = np.sqrt(6.0 / max(1, sum(size)))
                arrays[name] = rng.uniform(-bound, bound, size).astype(np.float32)
        return cls(shape, arrays)

    def to_bytes(self) -> bytes:
        """The file's content."""
        head = {"format": _FORMAT, "shape": self.shape.to_meta(), "names": list(self.arrays)}
        body = json.dumps(head).encode() + b"\n"
        body += b"".join(array.astype("<f4").tobytes() for array in self.arrays.values())
        return body + hashlib.sha256(body).digest()

    @classmethod
    def from_bytes(cls, content: bytes) -> Weights:
        """Weights of a file's content.

        Raises:
            StateDamaged: it is torn, changed, or of another version.
        """
        body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
        if hashlib.sha256(body).digest() != digest:
            raise StateDamaged("the model's file is torn or changed: its checksum is another one")
        line, _, values = body.partition(b"\n")
        head = json.loads(line)
        if head.get("format") != _FORMAT:
            raise StateDamaged(f"the model's file is of format {head.get('format')!r}, not {_FORMAT!r}")
        try:
            shape = ModelShape.from_meta(head["shape"])
        except ConfigError as error:
            raise StateDamaged(f"the model's file is of another version: {error}") from error
        wanted = shape.parameters()
        arrays, at = {}, 0
        for name in head["names"]:
            count = int(np.prod(wanted.get(name, (0,))))
            arrays[name] = np.frombuffer(values, "<f4", count, at).reshape(wanted.get(name, (0,)))
            at += 4 * count
        return cls(shape, arrays)

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        with beside.open("wb") as file:
            file.write(self.to_bytes())
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)

    @classmethod
    def load(cls, path: Path) -> Weights:
        """Read a file that `save` wrote.

        Raises:
            FileNotFoundError: there is none.
            StateDamaged: it is torn, changed, or of another version.
        """
        return cls.from_bytes(path.read_bytes())
