"""Small files of state, with checksums that are right: what they hold may still be anything."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hopline.artifact import read_spec
from hopline.errors import ArtifactError, BatchError, GraphError, LogDamaged
from hopline.graph import storage
from hopline.graph.live import manifest
from hopline.jobs.batch.journal import read_manifest
from hopline_mesh.errors import StateDamaged
from hopline_mesh.state.segment import MAGIC, read_segment

_folder = tempfile.TemporaryDirectory(prefix="hopline-fuzz-")
_path = Path(_folder.name)


def _blake2b(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).hexdigest().encode() + b"\n" + body


def _history(body: bytes) -> bytes:
    """Records of up to 255 bytes, each behind its length in one byte."""
    found, at = bytearray(MAGIC), 0
    while at < len(body):
        payload = body[at + 1 : at + 1 + body[at]]
        found += len(payload).to_bytes(4, "little") + zlib.crc32(payload).to_bytes(4, "little") + payload
        at += 1 + body[at]
    return bytes(found)


def _plain(body: bytes) -> bytes:
    return body


_FILES: tuple[tuple[str, Callable[[bytes], bytes], Callable[[], Any], type[Exception]], ...] = (
    ("live.json", _blake2b, lambda: manifest.read_manifest(_path), LogDamaged),
    ("positions.json", _blake2b, lambda: manifest.read_positions(_path), LogDamaged),
    ("history", _history, lambda: list(read_segment(_path / "history")), StateDamaged),
    ("model.json", _plain, lambda: read_spec(_path, verify=False), ArtifactError),
    ("graph.json", _plain, lambda: storage.read(_path), GraphError),
    ("manifest.json", _plain, lambda: read_manifest(_path), BatchError),
)


def check(data: bytes) -> None:
    """Args: data: which file, whether its checksum is made right, and its content."""
    if len(data) < 2:
        return
    name, sealed, read, damaged = _FILES[data[0] % len(_FILES)]
    body = data[2:]
    (_path / name).write_bytes(sealed(body) if data[1] % 4 else body)
    with contextlib.suppress(damaged):
        read()
