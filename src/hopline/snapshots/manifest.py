"""The manifest of a snapshot and the pointer to the newest one: what they hold, read with care."""

from __future__ import annotations

import hashlib
import re
from pathlib import PurePosixPath
from typing import NamedTuple

import msgspec

from hopline.config.urls import shown
from hopline.errors import BadRequest, SnapshotDamaged, quoted
from hopline.types import UNREADABLE

FORMAT = 1
#: Folders of a snapshot: the graph, and files of precomputed answers.
GRAPH, PRECOMPUTED = "graph", "precomputed"
POINTER = "latest.json"

_ID = re.compile(r"[0-9a-f]{32}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_REPAIR = "publish a snapshot, or name one with `hopline snapshot use`"


class SnapshotAddress(NamedTuple):
    """Address of a snapshot: `s3://bucket/daily`, or `s3://bucket/daily#<id>` for one of its snapshots.

    Attributes:
        base: URL of the folder, without a slash at the end.
        id: of the snapshot; "" is the one that the pointer names.
    """

    base: str
    id: str = ""

    @classmethod
    def parse(cls, text: str) -> SnapshotAddress:
        """Read an address. Raises: BadRequest: not a URL of a folder, or not the id of a snapshot."""
        base, mark, name = text.partition("#")
        base = base.rstrip("/")
        if "?" in base:
            raise BadRequest(
                f"{quoted(shown(base.partition('?')[0]))}: an address of snapshots is a folder of several "
                "files, so it cannot have a query; give the driver its credentials by its environment"
            )
        if mark and not is_id(name):
            raise BadRequest(
                f"{quoted(name)} is not the id of a snapshot, which has 32 hexadecimal digits; "
                "`hopline snapshot list` shows the ids of an address"
            )
        return cls(base, name)

    def __str__(self) -> str:
        return f"{self.base}#{self.id}" if self.id else self.base

    @property
    def shown(self) -> str:
        """The address without what may be a password."""
        return f"{shown(self.base)}#{self.id}" if self.id else shown(self.base)


class SnapshotFile(msgspec.Struct, frozen=True):
    """One file: hash and size of its content."""

    sha256: str
    size: int


class SnapshotManifest(msgspec.Struct, frozen=True):
    """Parts of a snapshot.

    Attributes:
        graph_version: of the graph; answers name it.
        files: path below the snapshot ("graph/…", "precomputed/…") -> file.
        name: for people, such as a date.
        groups: feature groups that are served with it, as "<node type>=<group>"; empty: the server's own.
        models: model -> version that is rolled out with it; models that are not named keep their version.
        num_nodes, num_edges: of all types.
    """

    graph_version: str
    files: dict[str, SnapshotFile]
    name: str = ""
    groups: tuple[str, ...] = ()
    models: dict[str, str] = {}
    num_nodes: int = 0
    num_edges: int = 0
    format: int = FORMAT

    @property
    def num_bytes(self) -> int:
        """Bytes of all files; content that two of them share counts once."""
        return sum({file.sha256: file.size for file in self.files.values()}.values())

    @property
    def precomputed(self) -> list[str]:
        """Paths of files of precomputed answers."""
        return sorted(name for name in self.files if name.startswith(f"{PRECOMPUTED}/"))

    def encode(self) -> bytes:
        """The content of the file; equal manifests have equal bytes."""
        ordered = msgspec.structs.replace(self, files=dict(sorted(self.files.items())))
        return msgspec.json.format(msgspec.json.encode(ordered), indent=1)


class Pointer(msgspec.Struct, frozen=True):
    """Pointer to the newest snapshot of an address.

    Attributes:
        snapshot: id. published: seconds since the epoch, by the publisher's clock.
    """

    snapshot: str
    published: float = 0.0


class _FormatOnly(msgspec.Struct):
    format: int


def id_of(manifest: bytes) -> str:
    """The id of a snapshot, 32 hex digits."""
    return hashlib.sha256(manifest).hexdigest()[:32]


def is_id(text: str) -> bool:
    """True if a text can be the id of a snapshot."""
    return _ID.fullmatch(text) is not None


def decode_manifest(content: bytes, snapshot: str, where: str) -> SnapshotManifest:
    """Read and check the manifest of a snapshot.

    Args:
        snapshot: its id. where: it was read.

    Raises: SnapshotDamaged: it is not this manifest, or not one that this Hopline can use.
    """
    if id_of(content) != snapshot:
        raise SnapshotDamaged(
            f"{where}: its sha256 begins with {id_of(content)}, not with its name; publish the snapshot "
            "again"
        )
    try:
        if msgspec.json.decode(content, type=_FormatOnly).format > FORMAT:
            raise SnapshotDamaged(f"{where}: written by a newer Hopline; upgrade hopline")
        manifest = msgspec.json.decode(content, type=SnapshotManifest)
    except UNREADABLE as error:
        raise SnapshotDamaged(f"{where}: not a manifest of a snapshot: {error}") from None
    for name, file in manifest.files.items():
        parts = PurePosixPath(name).parts
        if (
            len(parts) < 2
            or parts[0] not in (GRAPH, PRECOMPUTED)
            or "/".join(parts) != name
            or ".." in parts
            or not name.isprintable()
            or "\\" in name
        ):
            raise SnapshotDamaged(f"{where}: lists the file {quoted(name)}, which is not inside a snapshot")
        if not _SHA256.fullmatch(file.sha256) or file.size < 0:
            raise SnapshotDamaged(f"{where}: {quoted(name)} has no valid hash and size")
    return manifest


def decode_pointer(content: bytes, where: str) -> Pointer:
    """Read a pointer. Raises: SnapshotDamaged: it is none."""
    try:
        pointer = msgspec.json.decode(content, type=Pointer)
    except UNREADABLE as error:
        raise SnapshotDamaged(f"{where}: not a pointer to a snapshot: {error}; {_REPAIR}") from None
    if not is_id(pointer.snapshot):
        raise SnapshotDamaged(f"{where}: {quoted(pointer.snapshot)} is not the id of a snapshot; {_REPAIR}")
    return pointer
