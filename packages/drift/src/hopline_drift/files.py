"""Files of the drift folder: written atomically, and verified by a hash when read.

    <drift.path>/<model>/<version>/reference.json      reference of comparisons
                                   window-<worker>.json  recent counts of a worker
                                   alarms.json         alarm states, written by worker 0
                                   hours/<hour>.<worker>.json  hourly scores of one week

All workers share the files of a version: each writes its own, and a report adds them up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import msgspec

from hopline.errors import ArtifactCorrupted
from hopline.files import write_atomically

T = TypeVar("T")


class _Sealed(msgspec.Struct):
    sha256: str
    content: msgspec.Raw


def version_folder(root: Path, model: str, version: str) -> Path:
    """The folder of a model version's files."""
    return root / _component(model) / _component(version)


def known_versions(root: Path) -> Iterator[tuple[str, str, Path]]:
    """(model, version, folder) of all versions with files, sorted by name."""
    for folder in sorted(root.glob("*/*/")):
        if folder.parent.is_dir() and any(folder.glob("*.json")):
            yield unquote(folder.parent.name), unquote(folder.name), folder


def write_sealed(path: Path, content: Any, *, durable: bool = False) -> str:
    """Write JSON with its sha256, atomically; returns the sha256.

    Args:
        durable: see `hopline.files`.

    Raises: OSError: the disk is full, or the folder is not writable.
    """
    raw = msgspec.json.encode(content)
    digest = hashlib.sha256(raw).hexdigest()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, msgspec.json.encode(_Sealed(digest, msgspec.Raw(raw))), durable=durable)
    return digest


def read_sealed(path: Path, kind: type[T]) -> tuple[T, str]:
    """Read a file of `write_sealed`; return its content and sha256.

    Raises:
        FileNotFoundError: the file does not exist.
        ArtifactCorrupted: the file is incomplete or has other content.
    """
    try:
        sealed = msgspec.json.decode(path.read_bytes(), type=_Sealed)
        raw = bytes(sealed.content)
        if hashlib.sha256(raw).hexdigest() != sealed.sha256:
            raise ArtifactCorrupted(
                f"{path}: the content does not match its sha256; remove the file or create it again"
            )
        return msgspec.json.decode(raw, type=kind), sealed.sha256
    except (msgspec.MsgspecError, ValueError) as error:
        if isinstance(error, ArtifactCorrupted):
            raise
        raise ArtifactCorrupted(f"{path}: not a file of this kind: {error}") from None


def _component(name: str) -> str:
    """Encode a name as one path component, also ".." and names with slashes."""
    return quote(name, safe="").replace(".", "%2E") if name.startswith(".") else quote(name, safe="")
