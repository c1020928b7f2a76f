"""Files of the drift folder: written whole or not at all, and known to be whole when read.

    <drift.path>/<model>/<version>/reference.json      what windows are compared with
                                   window-<worker>.json  what a worker counted lately
                                   alarms.json         which quantities have drifted, by worker 0
                                   hours/<hour>.<worker>.json  scores by the hour, for a week

One version's files are shared by all workers: each writes its own, and whoever reports adds them up.
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
    """Where the files of a model version are."""
    return root / _component(model) / _component(version)


def known_versions(root: Path) -> Iterator[tuple[str, str, Path]]:
    """(model, version, folder) of everything that has files, in order of their names."""
    for folder in sorted(root.glob("*/*/")):
        if folder.parent.is_dir() and any(folder.glob("*.json")):
            yield unquote(folder.parent.name), unquote(folder.name), folder


def write_sealed(path: Path, content: Any, *, durable: bool = False) -> str:
    """Write JSON with its sha256, atomically; returns the sha256.

    Args:
        durable: as in `hopline.files`.

    Raises: OSError: the disk is full, or the folder may not be written.
    """
    raw = msgspec.json.encode(content)
    digest = hashlib.sha256(raw).hexdigest()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, msgspec.json.encode(_Sealed(digest, msgspec.Raw(raw))), durable=durable)
    return digest


def read_sealed(path: Path, kind: type[T]) -> tuple[T, str]:
    """What `write_sealed` wrote, and its sha256.

    Raises:
        FileNotFoundError: there is none.
        ArtifactCorrupted: it is not whole, or not what it says.
    """
    try:
        sealed = msgspec.json.decode(path.read_bytes(), type=_Sealed)
        raw = bytes(sealed.content)
        if hashlib.sha256(raw).hexdigest() != sealed.sha256:
            raise ArtifactCorrupted(
                f"{path}: the content is not that of its sha256; remove it or make it again"
            )
        return msgspec.json.decode(raw, type=kind), sealed.sha256
    except (msgspec.MsgspecError, ValueError) as error:
        if isinstance(error, ArtifactCorrupted):
            raise
        raise ArtifactCorrupted(f"{path}: not a file of this kind: {error}") from None


def _component(name: str) -> str:
    """A name as one path component: also "..", and what has slashes."""
    return quote(name, safe="").replace(".", "%2E") if name.startswith(".") else quote(name, safe="")
