"""Writes a folder of snapshots, from a recording or one snapshot at a time."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self, TextIO

from hopline.errors import ConfigError
from hopline_mesh.changes import Change, Context, KubernetesTrouble
from hopline_mesh.errors import SnapshotInvalid
from hopline_mesh.evaluate import manifest
from hopline_mesh.evaluate.recording import Event
from hopline_mesh.schema import Schema
from hopline_mesh.snapshot import FloatArray, Snapshot


class Recorder:
    """Appends snapshots to a new folder; `close` writes the other files.

    Gaps are not stored: their cells are empty, and the format has no reasons. An interval without any
    service is not stored either.

    Args:
        folder: created if it is missing; must not have a recording.
        schema: of all snapshots.

    Raises:
        ConfigError: the folder has a recording.
    """

    def __init__(self, folder: Path, schema: Schema) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for stem in ("nodes", "edges", "labels", "changes", "troubles"):
            for path in folder.glob(f"{stem}.*"):
                raise ConfigError(f"{folder} has a recording ({path.name}); choose a new folder")
        self._folder = folder
        self._schema = schema
        self._events: list[Event] = []
        #: the newest of each change and trouble, by kind, service and start
        self._changes: dict[tuple[str, str, float], Change] = {}
        self._troubles: dict[tuple[str, str, float], KubernetesTrouble] = {}
        self._files: list[TextIO] = []
        self._nodes = self._open("nodes", ["time", "service", *schema.node_features])
        self._edges = self._open("edges", ["time", "source", "destination", *schema.edge_features])

    def add(self, snapshot: Snapshot, context: Context | None = None) -> None:
        """Append an interval, with its planned changes and troubles.

        Raises:
            SnapshotInvalid: its columns are not those of the recorder.
        """
        if snapshot.schema != self._schema:
            raise SnapshotInvalid(
                f"snapshot at {snapshot.time_s:.0f} s: other columns than the recording's"
            )
        moment, name = float(snapshot.time_s), snapshot.roster.name
        self._nodes.writerows(
            [moment, name(slot), *values]
            for slot, values in zip(snapshot.nodes.tolist(), _cells(snapshot.node_features), strict=True)
        )
        self._edges.writerows(
            [moment, name(src), name(dst), *values]
            for src, dst, values in zip(
                snapshot.edge_src.tolist(),
                snapshot.edge_dst.tolist(),
                _cells(snapshot.edge_features),
                strict=True,
            )
        )
        if context is not None:
            for change in context.changes:
                self._changes[change.kind, change.service, change.start_s] = change
            for trouble in context.troubles:
                self._troubles[trouble.kind, trouble.service, trouble.start_s] = trouble

    def label(self, event: Event) -> None:
        """Add a labelled event."""
        self._events.append(event)

    def close(self, settings: manifest.Manifest | None = None) -> None:
        """Write labels, changes and troubles, and `mesh.toml` if there are settings."""
        labels = self._open("labels", ["start", "end", "service", "source", "destination", "kind"])
        for event in sorted(self._events, key=lambda event: event.start_s):
            path = event.path or ("", "")
            labels.writerow([event.start_s, event.end_s, event.service, *path, event.kind])
        if self._changes:
            self._items("changes", self._changes.values(), "before", "after")
        if self._troubles:
            self._items("troubles", self._troubles.values())
        for file in self._files:
            file.close()
        if settings is not None:
            manifest.write(self._folder, settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close, unless it is closed."""
        if not all(file.closed for file in self._files):
            self.close()

    def _items(self, stem: str, items: Iterable[Change | KubernetesTrouble], *pods: str) -> None:
        writer = self._open(stem, ["start", "end", "service", "kind", "detail", *pods])
        for item in sorted(items, key=lambda item: item.start_s):
            counts = [getattr(item, name) for name in pods]  # the writer makes "" of None
            writer.writerow([item.start_s, item.end_s, item.service, item.kind, item.detail, *counts])

    def _open(self, stem: str, header: Sequence[str]) -> Any:
        # Line ends of RFC 4180, so that the module quotes names with any kind of line break.
        file = (self._folder / f"{stem}.csv").open("w", newline="", encoding="utf-8")
        self._files.append(file)
        writer = csv.writer(file)
        writer.writerow(header)
        return writer


def _cells(values: FloatArray) -> list[list[str]]:
    """Return values with nine digits, which restore a float32 exactly; "" for not measured."""
    return [["" if value != value else f"{value:.9g}" for value in row] for row in values.tolist()]
