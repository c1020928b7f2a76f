"""Interfaces of models as their artifacts tell them, so that a pipeline can be checked without a server.

What a version tells when it is loaded has more in it (the graph's version, say); what a check looks at is
the same, which a test holds.
"""

from __future__ import annotations

from typing import Literal, NoReturn

from hopline.artifact import ModelSpec, TabularSpec, read_artifact
from hopline.engine.outputs import default_outputs, output_names
from hopline.errors import ModelNotFound
from hopline.models.repository import Repository
from hopline.pipelines.check import check_pipeline
from hopline.pipelines.plan import info_of
from hopline.pipelines.spec import FILE_NAME, read_pipeline
from hopline.types import ModelInfo, TensorInfo

_DATATYPES = {"float": "FP64", "int": "INT64", "string": "BYTES"}


class Offline:
    """Tells interfaces of what is in a repository.

    Args:
        repository: where models are.
    """

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._below: list[str] = []

    def describe(self, model: str, version: str | None) -> ModelInfo:
        """One version, None being the newest.

        Raises:
            ModelNotFound: there is none.
            ArtifactError: it cannot be used; PipelineInvalid for a pipeline.
        """
        versions = self._repository.versions(model)
        if not versions:
            known = ", ".join(self._repository.models()) or "none"
            raise ModelNotFound(f"no model {model!r} in {self._repository.address}; there are: {known}")
        folder = self._repository.fetch(model, version or versions[-1])
        if not (folder / FILE_NAME).is_file():
            return describe_artifact(read_artifact(folder, verify=False))
        if model in self._below:
            raise ModelNotFound(f"pipelines nest themselves: {' → '.join((*self._below, model))}")
        self._below.append(model)
        try:
            spec = read_pipeline(folder)
            return info_of(check_pipeline(spec, self.describe, nobody), spec, (spec.version,))
        finally:
            self._below.pop()


def nobody(model: str, version: str | None) -> NoReturn:
    """In place of a resolver where nothing is asked."""
    raise ModelNotFound(f"model {model!r} was only looked at, not loaded")


def describe_artifact(spec: ModelSpec | TabularSpec) -> ModelInfo:
    """The inputs and outputs of a loaded version of this artifact."""
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
