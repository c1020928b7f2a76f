"""The kind of models that read rows of columns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from hopline.models.kinds import Describe, ModelKind
from hopline.types import ModelInfo
from hopline_tabular.spec import describe as describe_version
from hopline_tabular.spec import read_tabular

if TYPE_CHECKING:
    from hopline.answering.limits import ModelLimits
    from hopline.models.load import Load
    from hopline.models.tools import Tools


class TabularKind(ModelKind):
    """Tabular models: rows of columns."""

    isolates: ClassVar[bool] = True

    def check(self, folder: Path, model: str) -> None:
        """As `ModelKind.check`: its name and its runtime."""
        from hopline.runtimes.ort import check_model

        # the repository that fetched it has compared every file
        spec = read_tabular(folder, verify=False)
        check_model(folder, spec, model, {"ai.onnx": spec.opset, "ai.onnx.ml": spec.ml_opset})

    async def load(self, load: Load, folder: Path, limits: ModelLimits, tools: Tools) -> None:
        """As `ModelKind.load`."""
        from hopline_tabular.computer import TabularComputer
        from hopline_tabular.model import TabularModel

        def made() -> None:
            model = TabularModel(folder, read_tabular(folder, verify=False))
            load.served = tools.queued(TabularComputer(model, tools.config, load.unit.id), limits)
            load.served.warm_up()

        await tools.in_thread(made)

    def describe(self, folder: Path, describe: Describe) -> ModelInfo:
        """As `ModelKind.describe`."""
        spec = read_tabular(folder, verify=False)
        return describe_version(spec, (spec.version,), spec.version)


TABULAR = TabularKind()
