"""The report of packaging."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hopline.artifact import ModelSpec


@dataclass(frozen=True, slots=True)
class StageFigures:
    """One line of the report.

    Attributes:
        name: "<level>.<node type>", or "head".
        inputs: what the stage reads, in words.
        state_dim: columns that it produces.
        num_bytes: of its ONNX file, 0 if it has no file.
    """

    name: str
    inputs: tuple[str, ...]
    state_dim: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class PackageReport:
    """The packaged model.

    Attributes:
        path: the artifact folder `<repository>/<name>/<version>`.
        spec: as written to model.json.
        stages: figures of each stage.
        notes: for the user: how forward was called, what the answers rely on, and so on.
        seconds: how long packaging took.
    """

    path: Path
    spec: ModelSpec
    stages: tuple[StageFigures, ...]
    notes: tuple[str, ...]
    seconds: float

    @property
    def num_bytes(self) -> int:
        """Size of the artifact folder."""
        return sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file())


def stage_figures(folder: Path, spec: ModelSpec) -> tuple[StageFigures, ...]:
    """The figures of every stage and the head, lowest level first."""
    lines = []
    for level, stages in enumerate(spec.levels):
        for node_type, stage in stages.items():
            name = f"{level}.{node_type}"
            words = tuple(
                " ".join(filter(None, [item.reduce or item.kind, item.edge_type])) for item in stage.inputs
            )
            size = 0 if stage.file is None else (folder / stage.file).stat().st_size
            lines.append(StageFigures(name, words, stage.state_dim, size))
    head = spec.head
    if head.file is not None:
        size = (folder / head.file).stat().st_size
        lines.append(StageFigures("head", (head.kind,), head.output_dim, size))
    return tuple(lines)
