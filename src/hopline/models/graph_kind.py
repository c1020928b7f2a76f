"""The kind of models that read a graph."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from hopline.artifact import ModelSpec, read_spec
from hopline.engine.tasks import default_outputs, outputs_of
from hopline.models.kinds import Describe, ModelKind
from hopline.types import ModelInfo, TensorInfo

if TYPE_CHECKING:
    from hopline.answering.limits import ModelLimits
    from hopline.models.load import Load
    from hopline.models.tools import Tools


class GraphKind(ModelKind):
    """Graph models: nodes and pairs."""

    isolates: ClassVar[bool] = True

    # What only some servers need is imported where it is: a fifth of a second of each start.

    def check(self, folder: Path, model: str) -> None:
        """As `ModelKind.check`: its name and its runtime."""
        from hopline.runtimes.ort import check_model

        # the repository that fetched it has compared every file
        spec = read_spec(folder, verify=False)
        check_model(folder, spec, model, {"ai.onnx": spec.opset})

    async def load(self, load: Load, folder: Path, limits: ModelLimits, tools: Tools) -> None:
        """As `ModelKind.load`."""
        from hopline.models.graph_version import load_graph_version

        await load_graph_version(load, folder, limits, tools)

    def describe(self, folder: Path, describe: Describe) -> ModelInfo:
        """As `ModelKind.describe`."""
        return describe_graph_model(read_spec(folder, verify=False))


GRAPH = GraphKind()


def describe_graph_model(spec: ModelSpec) -> ModelInfo:
    """Inputs and outputs of a version that is not loaded."""
    head = spec.head
    node_types = spec.graph_schema["node_types"]
    assert isinstance(node_types, dict)
    is_text = node_types[head.node_type]["id_kind"] == "string"
    ids = "BYTES" if is_text else "INT64"
    names = ("src_ids", "dst_ids") if head.kind == "link" else ("node_ids",)
    return ModelInfo(
        name=spec.name,
        versions=(spec.version,),
        version=spec.version,
        state="UNAVAILABLE",
        reason="not loaded",
        kind=head.kind,
        id_kind="string" if is_text else "int",
        inputs=(
            *(TensorInfo(name, ids, (-1,)) for name in names),
            TensorInfo("as_of", "INT64", (1,), optional=True),
        ),
        outputs=tuple(output.tensor for output in outputs_of(spec).values()),
        default_outputs=default_outputs(spec),
        graph_version="",
    )
