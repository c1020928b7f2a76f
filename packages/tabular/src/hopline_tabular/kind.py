"""The kind of models that read rows of columns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hopline.models.kinds import Describe, ModelKind
from hopline.types import ModelInfo
from hopline_tabular.spec import describe as describe_version
from hopline_tabular.spec import read_tabular

if TYPE_CHECKING:
    from hopline.answering.limits import ModelLimits
    from hopline.features.base import FeatureGroup, FeatureStore
    from hopline.models.load import Load
    from hopline.models.tools import Tools
    from hopline_tabular.encoder import ColumnEncoder
    from hopline_tabular.packaging.transformer import Converted


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

    def encoder(self, folder: Path, model: Mapping[str, Any], types: Mapping[str, str]) -> ColumnEncoder:
        """Load the preprocessing of a graph model; see `ColumnEncoder`."""
        from hopline_tabular.encoder import ColumnEncoder

        return ColumnEncoder(folder, model, types)

    def encoded_store(
        self, store: FeatureStore, columns: FeatureGroup, features: FeatureGroup, encoder: ColumnEncoder
    ) -> FeatureStore:
        """A store whose rows are encoded when they are fetched; see `EncodedStore`."""
        from hopline_tabular.store import EncodedStore

        return EncodedStore(store, columns, features, encoder)

    def convert(
        self, transformer: Any, types: Mapping[str, str], rows: Mapping[str, Any], folder: Path, file: str
    ) -> Converted:
        """Convert the preprocessing of a graph model; see `convert_transformer`."""
        from hopline_tabular.packaging.transformer import convert_transformer

        return convert_transformer(transformer, types, rows, folder, file)

    def describe(self, folder: Path, describe: Describe) -> ModelInfo:
        """As `ModelKind.describe`."""
        spec = read_tabular(folder, verify=False)
        return describe_version(spec, (spec.version,), spec.version)


TABULAR = TabularKind()
