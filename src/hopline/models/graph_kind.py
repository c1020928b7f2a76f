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
    ends = {"src_ids": head.node_type, "dst_ids": head.dst_node_type or head.node_type}
    named = {"node_ids": head.node_type} if head.kind == "node" else {} if head.edge_type else ends
    text = {name: each["id_kind"] == "string" for name, each in node_types.items()}
    return ModelInfo(
        name=spec.name,
        versions=(spec.version,),
        version=spec.version,
        state="UNAVAILABLE",
        reason="not loaded",
        kind=head.kind,
        id_kind="string" if text[head.node_type] else "int",
        inputs=(
            *(TensorInfo(name, "BYTES" if text[of] else "INT64", (-1,)) for name, of in named.items()),
            TensorInfo("as_of", "INT64", (1,), optional=True),
        ),
        outputs=tuple(output.tensor for output in outputs_of(spec).values()),
        default_outputs=default_outputs(spec),
        graph_version="",
    )
