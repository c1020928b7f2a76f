"""The kind of models that combine others, as Hopline's loader finds it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from hopline.models.kinds import Describe, ModelKind
from hopline.types import ModelInfo
from hopline_pipelines.check import check_pipeline, no_models
from hopline_pipelines.spec import read_pipeline
from hopline_pipelines.version import load_pipeline

if TYPE_CHECKING:
    from hopline.answering.limits import ModelLimits
    from hopline.models.load import Load
    from hopline.models.tools import Tools


class PipelineKind(ModelKind):
    """Pipelines: what a request has depends on their steps."""

    async def load(self, load: Load, folder: Path, limits: ModelLimits, tools: Tools) -> None:
        """As `ModelKind.load`; the models of the steps are loaded."""

        def made() -> None:
            load.served = load_pipeline(
                folder,
                load.model,
                load.unit.id,
                tools.resolve,
                tools.config,
                tools.metrics,
                tools.recorders,
                limits,
            )

        await tools.in_thread(made)

    def describe(self, folder: Path, describe: Describe) -> ModelInfo:
        """As `ModelKind.describe`."""
        spec = read_pipeline(folder)
        return check_pipeline(spec, describe, no_models).info(spec, (spec.version,))

    def models_below(self, folder: Path) -> Collection[str]:
        """As `ModelKind.models_below`."""
        return [name for name, _ in read_pipeline(folder).models]


PIPELINE = PipelineKind()
