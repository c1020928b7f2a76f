"""A pipeline that was checked: its steps in order, and what is answered from them. Shared by all runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hopline.types import ModelInfo, TensorInfo
from hopline_pipelines.compile import Expression
from hopline_pipelines.inputs import InputReader
from hopline_pipelines.spec import PipelineSpec
from hopline_pipelines.step import Step

_KINDS = {"BYTES": "string", "FP64": "number", "INT64": "integer", "BOOL": "boolean"}


@dataclass(frozen=True, slots=True)
class Plan:
    """See the module.

    Attributes:
        name, version: of the pipeline.
        reader: of requests.
        steps: each after those it reads.
        outputs: name -> what is answered.
        wanted: output name -> places of the steps that it reads.
        default_outputs: for requests that name none.
        inputs: what transports tell about its inputs.
        id_kind: of the node ids that requests name.
        takes_time: whether some step takes `as_of`.
        graph_version: snapshots that its models answered about when it was loaded.
        models: names of all models below it, those of pipelines inside it included.
    """

    name: str
    version: str
    reader: InputReader
    steps: tuple[Step, ...]
    outputs: Mapping[str, Expression]
    wanted: Mapping[str, tuple[int, ...]]
    default_outputs: tuple[str, ...]
    inputs: tuple[TensorInfo, ...]
    id_kind: Literal["int", "string", "none"]
    takes_time: bool
    graph_version: str
    models: tuple[str, ...]

    def roots(self, outputs: Sequence[str]) -> tuple[int, ...]:
        """Places of the steps that these outputs read; none named means the default ones."""
        return tuple(
            dict.fromkeys(step for name in outputs or self.default_outputs for step in self.wanted[name])
        )


def info_of(plan: Plan, spec: PipelineSpec, versions: tuple[str, ...]) -> ModelInfo:
    """Description for transports: inputs as declared, outputs as computed, and the models below."""
    return ModelInfo(
        name=plan.name,
        versions=versions,
        version=plan.version,
        state="READY",
        reason="",
        kind="pipeline",
        id_kind=plan.id_kind,
        inputs=plan.inputs,
        outputs=tuple(
            TensorInfo(name, each.type.datatype, (-1, *each.type.dims))
            for name, each in plan.outputs.items()
        ),
        default_outputs=plan.default_outputs,
        graph_version=plan.graph_version,
        properties={
            "description": spec.description,
            "models": list(plan.models),
            "steps": {step.id: step.kind for step in plan.steps},
            "attributes": {name: _KINDS[kind.datatype] for name, kind in plan.reader.attributes.items()},
        },
    )
