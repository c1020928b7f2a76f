"""The small files of a live folder, replaced whole or not at all.

`live.json`: what the folder is about and which snapshots it has. `positions.json`: where sources stand, if
they have moved on since the last change.
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
        sequence: the version that it is.
        graph: snapshot id of its graph, 16 hex digits.
        folder: below the live folder.
    """

    sequence: int
    graph: str
    folder: str


class Manifest(msgspec.Struct, frozen=True):
    """The whole file.

    Attributes:
        lineage: snapshot id of the graph that all began with.
        base: folder of that graph, as it was named then; for people.
        snapshots: newest first.
    """

    lineage: str
    base: str
    snapshots: tuple[SnapshotEntry, ...] = ()
    format: int = FORMAT


class Positions(msgspec.Struct, frozen=True):
    """The whole file.

    Attributes:
        sequence: version of the graph that was the newest then; changes after it have newer positions.
        positions: source -> position, of all of them.
    """

    sequence: int
    positions: dict[str, Any]


def read_manifest(folder: Path) -> Manifest | None:
    """The content; None where there is no file.

    Raises: LogDamaged: it is not what was written, or was written by a newer Hopline.
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
            f"{path}: its checksum differs; restore it from a copy, or delete it: it is created again from "
            "the snapshots and the log in its folder"
        )
    try:
        manifest = msgspec.json.decode(body, type=Manifest)
    except UNREADABLE as error:
        raise LogDamaged(f"{path} is malformed: {error}; was it written by a newer Hopline?") from None
    if manifest.format > FORMAT:
        raise LogDamaged(
            f"{path} has format {manifest.format}, this Hopline reads {FORMAT}; upgrade hopline"
        )
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the file. Raises: OSError: the old one is there still."""
    _replace(folder, NAME, msgspec.json.format(msgspec.json.encode(manifest), indent=1))


def read_positions(folder: Path) -> Positions | None:
    """The content; None where there is no file, or a damaged one: sources go back to the last change."""
    try:
        digest, _, body = (folder / POSITIONS).read_bytes().partition(b"\n")
        if digest == _digest(body):
            return msgspec.json.decode(body, type=Positions)
    except FileNotFoundError:
        return None
    except (OSError, *UNREADABLE):
        pass
    log.warning("%s is damaged; sources continue where the last change has them", folder / POSITIONS)
    return None


def write_positions(folder: Path, positions: Positions) -> None:
    """Replace the file. Raises: OSError: the old one is there still."""
    _replace(folder, POSITIONS, msgspec.json.encode(positions))


def _replace(folder: Path, name: str, body: bytes) -> None:
    write_atomically(folder / name, _digest(body) + b"\n" + body, durable=True)


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).hexdigest().encode()
