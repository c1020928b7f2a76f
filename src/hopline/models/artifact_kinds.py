"""The kinds of models that `hopline package` makes: graph models and tabular models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from hopline.artifact import ModelSpec, TabularSpec, read_artifact
from hopline.engine.outputs import default_outputs, output_names
from hopline.errors import ArtifactError
from hopline.models.kinds import Describe, ModelKind
from hopline.types import ModelInfo, TensorInfo

if TYPE_CHECKING:
    from hopline.answering.limits import ModelLimits
    from hopline.models.load import Load
    from hopline.models.tools import Tools

_DATATYPES = {"float": "FP64", "int": "INT64", "string": "BYTES"}


def describe_artifact(spec: ModelSpec | TabularSpec) -> ModelInfo:
    """The inputs and outputs of a version of this artifact, which is not loaded."""
    if isinstance(spec, TabularSpec):
        wide = (-1, spec.output_dim)
        shapes: dict[str, tuple[str, tuple[int, ...]]] = {
            "probabilities": ("FP32", (-1,) if spec.task == "binary" else wide),
            "label": ("INT64", (-1,)),
            "logits": ("FP32", wide),
        }
        inputs = tuple(
            TensorInfo(each.name, _DATATYPES[each.dtype], (-1,), each.default is not None)
            for each in spec.columns
        )
        outputs = tuple(TensorInfo(name, *shapes[name]) for name in spec.outputs)
        return _info(spec, "tabular", "none", inputs, outputs, spec.outputs)
    return _describe_graph_model(spec)


def _describe_graph_model(spec: ModelSpec) -> ModelInfo:
    head = spec.head
    node_types = spec.graph_schema["node_types"]
    assert isinstance(node_types, dict)
    is_text = node_types[head.node_type]["id_kind"] == "string"
    ids = "BYTES" if is_text else "INT64"
    names = ("src_ids", "dst_ids") if head.kind == "link" else ("node_ids",)
    width = spec.levels[-1][head.node_type].state_dim if spec.levels else head.output_dim
    a, b = head.embedding or (0, width)
    outputs = output_names(spec.task)
    if spec.runtime == "torch" and spec.task != "embedding":  # served whole, its states are logits
        outputs = tuple(name for name in outputs if name != "embedding")
    of_graph: dict[str, tuple[str, tuple[int, ...]]] = {
        "embedding": ("FP32", (-1, b - a)),
        "logits": ("FP32", (-1, head.output_dim)),
        "probabilities": ("FP32", (-1,) if spec.task == "binary" else (-1, head.output_dim)),
        "label": ("INT64", (-1, head.output_dim) if spec.task == "multilabel" else (-1,)),
    }
    return _info(
        spec,
        head.kind,
        "string" if is_text else "int",
        (*(TensorInfo(name, ids, (-1,)) for name in names), TensorInfo("as_of", "INT64", (1,), True)),
        tuple(TensorInfo(name, *of_graph[name]) for name in outputs),
        default_outputs(spec.task),
    )


def _info(
    spec: ModelSpec | TabularSpec,
    kind: Literal["node", "link", "tabular"],
    id_kind: Literal["int", "string", "none"],
    inputs: tuple[TensorInfo, ...],
    outputs: tuple[TensorInfo, ...],
    defaults: tuple[str, ...],
) -> ModelInfo:
    return ModelInfo(
        spec.name,
        (spec.version,),
        spec.version,
        "UNAVAILABLE",
        "not loaded",
        kind,
        id_kind,
        inputs,
        outputs,
        defaults,
        "",
    )


class _Packaged(ModelKind):
    """A kind whose model.json `read_artifact` reads."""

    isolates: ClassVar[bool] = True

    def check(self, folder: Path, model: str) -> None:
        """As `ModelKind.check`: its name and its runtime."""
        from hopline.runtimes.ort import check_runtime

        # the repository that fetched it has compared every file
        spec = read_artifact(folder, verify=False)
        if spec.name != model:
            raise ArtifactError(
                f"{folder}: the artifact is of model {spec.name!r}, its folder of {model!r}"
            )
        check_runtime(spec)

    def describe(self, folder: Path, describe: Describe) -> ModelInfo:
        """As `ModelKind.describe`."""
        return describe_artifact(read_artifact(folder, verify=False))


# What only some servers need is imported where it is: a fifth of a second of each start.


class GraphKind(_Packaged):
    """Graph models: nodes and pairs."""

    async def load(self, load: Load, folder: Path, limits: ModelLimits, tools: Tools) -> None:
        """As `ModelKind.load`."""
        from hopline.models.graph_version import load_graph_version

        await load_graph_version(load, folder, limits, tools)


class TabularKind(_Packaged):
    """Tabular models: rows of columns."""

    async def load(self, load: Load, folder: Path, limits: ModelLimits, tools: Tools) -> None:
        """As `ModelKind.load`."""
        from hopline.answering.tabular_computer import TabularComputer
        from hopline.runtimes.tabular import TabularModel

        def made() -> None:
            spec = read_artifact(folder, verify=False)
            assert isinstance(spec, TabularSpec)
            computer = TabularComputer(TabularModel(folder, spec), tools.config, load.unit.id)
            load.served = tools.queued(computer, limits)
            load.served.warm_up()

        await tools.in_thread(made)


GRAPH, TABULAR = GraphKind(), TabularKind()
