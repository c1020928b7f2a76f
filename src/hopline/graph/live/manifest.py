"""The small files of a live folder, replaced atomically.

`live.json`: the original graph of the folder, and its snapshots. `positions.json`: the positions of
sources, if they have moved since the last change.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Any

import msgspec

from hopline.errors import LogDamaged
from hopline.files import write_atomically
from hopline.types import UNREADABLE

log = logging.getLogger(__name__)

FORMAT = 1
NAME, POSITIONS = "live.json", "positions.json"


class SnapshotEntry(msgspec.Struct, frozen=True):
    """A snapshot of the graph.

    Attributes:
        sequence: its version.
        graph: snapshot id of its graph, 16 hex digits.
        folder: below the live folder.
        name: of the version, as answers have it; "" in folders of older releases.
    """

    sequence: int
    graph: str
    folder: str
    name: str = ""


class LiveManifest(msgspec.Struct, frozen=True):
    """The content of live.json.

    Attributes:
        lineage: snapshot id of the original graph.
        base: folder of that graph at that time; for humans.
        snapshots: newest first.
    """

    lineage: str
    base: str
    snapshots: tuple[SnapshotEntry, ...] = ()
    format: int = FORMAT


class Positions(msgspec.Struct, frozen=True):
    """The content of positions.json.

    Attributes:
        sequence: newest version of the graph at that time; later changes have newer positions.
        positions: source -> position, of all sources.
    """

    sequence: int
    positions: dict[str, Any]


def read_manifest(folder: Path) -> LiveManifest | None:
    """Read live.json; None if there is no file.

    Raises: LogDamaged: it is damaged, or was written by a newer Hopline.
    """
    path = folder / NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LogDamaged(f"{path} cannot be read: {error.strerror}") from error
    digest, _, body = data.partition(b"\n")
    if digest != _digest(body):
        raise LogDamaged(
            f"{path}: its checksum differs; restore it from a copy, or delete it: it is rebuilt from the "
            "snapshots and the log in the same folder"
        )
    try:
        manifest = msgspec.json.decode(body, type=LiveManifest)
    except UNREADABLE as error:
        raise LogDamaged(f"{path} is malformed: {error}; was it written by a newer Hopline?") from None
    if manifest.format > FORMAT:
        raise LogDamaged(
            f"{path} has format {manifest.format}, this Hopline reads {FORMAT}; upgrade hopline"
        )
    return manifest


def write_manifest(folder: Path, manifest: LiveManifest) -> None:
    """Replace the file. Raises: OSError: the old one still exists."""
    _replace(folder, NAME, msgspec.json.format(msgspec.json.encode(manifest), indent=1))


def read_positions(folder: Path) -> Positions | None:
    """Read positions.json; None if it is missing or damaged: sources then restart at the last change."""
    try:
        digest, _, body = (folder / POSITIONS).read_bytes().partition(b"\n")
        if digest == _digest(body):
            return msgspec.json.decode(body, type=Positions)
    except FileNotFoundError:
        return None
    except (OSError, *UNREADABLE):
        pass
    log.warning("%s is damaged; sources continue at the positions of the last change", folder / POSITIONS)
    return None


def write_positions(folder: Path, positions: Positions) -> None:
    """Replace the file. Raises: OSError: the old one still exists."""
    _replace(folder, POSITIONS, msgspec.json.encode(positions))


def _replace(folder: Path, name: str, body: bytes) -> None:
    write_atomically(folder / name, _digest(body) + b"\n" + body, durable=True)


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).hexdigest().encode()
