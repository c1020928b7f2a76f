"""Publishes a snapshot: its files first, then its manifest, and the pointer last.

A reader that follows the pointer never finds a snapshot that is not whole. Files that the address has
(an array that is as it was yesterday) are not uploaded again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from hopline.artifact import sha256_of
from hopline.errors import GraphError, SnapshotDamaged, SnapshotNotFound
from hopline.graph import Graph
from hopline.graph.storage import MANIFEST
from hopline.snapshots.manifest import (
    GRAPH,
    PRECOMPUTED,
    Pointer,
    SnapshotFile,
    SnapshotManifest,
)
from hopline.snapshots.store import SnapshotStore
from hopline.types import Progress, silent

#: Files that are hashed or uploaded at the same time.
_TOGETHER = 4


class Published(NamedTuple):
    """Result of `publish`.

    Attributes:
        id: of the snapshot. num_bytes: of all its files. uploaded_bytes: that the address did not have.
    """

    id: str
    num_bytes: int
    uploaded_bytes: int


def publish(
    store: SnapshotStore,
    graph: Path,
    *,
    precomputed: Sequence[Path] = (),
    name: str = "",
    groups: Sequence[str] = (),
    models: Mapping[str, str] | None = None,
    move: bool = True,
    clock: Callable[[], float] = time.time,
    progress: Progress = silent,
) -> Published:
    """Upload a graph and what belongs to it, and let the pointer name it.

    Args:
        graph: folder of a saved graph. It must not change meanwhile: a change is noticed by readers.
        precomputed: files of `hopline batch`; their names are kept and must differ.
        name, groups, models: see `SnapshotManifest`.
        move: False leaves the pointer.

    Raises:
        GraphError: the folder is not a graph, or is damaged, or two files have one name.
        SnapshotUnavailable: the address cannot be written; the pointer did not move.
    """
    opened = Graph.open(graph, verify=True)
    sources = {f"{GRAPH}/{MANIFEST}": graph / MANIFEST}
    sources |= {f"{GRAPH}/{array}.npy": graph / f"{array}.npy" for array in opened.digests}
    for path in precomputed:
        target = f"{PRECOMPUTED}/{path.name}"
        if target in sources:
            raise GraphError(f"two files of precomputed answers are named {path.name}; rename one")
        sources[target] = path
    with ThreadPoolExecutor(_TOGETHER) as threads:
        hashed = threads.map(
            lambda path: SnapshotFile(sha256_of(path), path.stat().st_size), sources.values()
        )
        files = {}
        for done, (target, file) in enumerate(zip(sources, hashed, strict=True), 1):
            files[target] = file
            progress("hashing", done / len(sources))
        manifest = SnapshotManifest(
            graph_version=opened.version,
            files=files,
            name=name,
            groups=tuple(groups),
            models=dict(models or {}),
            num_nodes=opened.num_nodes,
            num_edges=opened.num_edges,
        )
        contents = {file.sha256: (file, sources[target]) for target, file in files.items()}
        uploads = threads.map(lambda content: store.put_object(*content), contents.values())
        uploaded = 0
        for done, ((file, _), was_new) in enumerate(zip(contents.values(), uploads, strict=True), 1):
            uploaded += file.size * was_new
            progress("uploading", done / len(contents))
    snapshot = store.put_manifest(manifest)
    if move:
        point_to(store, snapshot, clock=clock)
    return Published(snapshot, manifest.num_bytes, uploaded)


def point_to(store: SnapshotStore, snapshot: str, *, clock: Callable[[], float] = time.time) -> None:
    """Let the pointer name a snapshot; nothing where it names it already. A damaged pointer is replaced.

    Raises: SnapshotNotFound, SnapshotDamaged: the address has no such snapshot; the pointer did not move.
    """
    store.manifest(snapshot)
    try:
        if store.pointer().snapshot == snapshot:
            return
    except (SnapshotNotFound, SnapshotDamaged):
        pass
    store.put_pointer(Pointer(snapshot, clock()))


def prune(store: SnapshotStore, keep: int) -> tuple[list[str], int]:
    """Remove old snapshots of an address: manifests first, then files that no other snapshot has.

    No snapshot may be published meanwhile.

    Args:
        keep: newest snapshots that stay, besides the one that the pointer names.

    Returns: ids of removed snapshots, and how many bytes were freed.
    Raises: SnapshotNotFound, SnapshotDamaged: what stays cannot be read; nothing was removed.
    """
    ids = [entry.name for entry in store.manifests()]
    stays = {store.pointer().snapshot, *ids[:keep]}
    needed = {file.sha256 for snapshot in stays for file in store.manifest(snapshot).files.values()}
    gone = [snapshot for snapshot in ids if snapshot not in stays]
    for snapshot in gone:
        store.remove_manifest(snapshot)
    freed = 0
    for name, size in store.objects().items():
        if name not in needed:
            store.remove_object(name)
            freed += size
    return gone, freed
