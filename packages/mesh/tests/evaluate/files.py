"""A small folder of snapshots, to be spoiled."""

from __future__ import annotations

from pathlib import Path

from hopline_mesh.evaluate.manifest import Manifest
from hopline_mesh.evaluate.record import Recorder
from hopline_mesh.evaluate.recording import Recording

NODES = """time,service,p99_ms,error_share
2026-01-01T00:00:00Z,cart,12.5,0
2026-01-01T00:00:00Z,shop,30,
2026-01-01T00:01:00Z,cart,12,0.01
2026-01-01T00:01:00Z,shop,NaN,0
2026-01-01T00:02:00Z,cart,13,0
2026-01-01T00:02:00Z,shop,31,0
2026-01-01T00:03:00Z,cart,11,0
2026-01-01T00:03:00Z,shop,29,0
"""
EDGES = """time,source,destination,client_ms
2026-01-01T00:00:00Z,shop,cart,14
2026-01-01T00:01:00Z,shop,cart,
2026-01-01T00:03:00Z,shop,cart,15
"""
LABELS = """start,end,service,source,destination,kind
2026-01-01T00:02:00Z,2026-01-01T00:03:00Z,cart,,,cpu
"""
T0 = 1767225600.0


def files(folder: Path, **changed: str | None) -> Path:
    """The usual folder, with files of other content; None leaves one out."""
    content = {"nodes": NODES, "edges": EDGES, "labels": LABELS} | changed
    for stem, text in content.items():
        if text is not None:
            ending = ".toml" if stem == "mesh" else ".csv"
            (folder / f"{stem}{ending}").write_text(text, "utf-8")
    return folder


def write_folder(recording: Recording, folder: Path) -> None:
    """Write a recording as CSV."""
    one = recording
    with Recorder(folder, one.snapshots[0].schema) as recorder:
        for snapshot, context in zip(one.snapshots, one.contexts, strict=True):
            recorder.add(snapshot, context)
        for event in one.events:
            recorder.label(event)
        recorder.close(Manifest(one.name, one.interval_s, one.train, one.test, one.cpu_limits))
