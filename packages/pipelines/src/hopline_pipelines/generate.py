"""A step that has a generative model write a text for each row, from a template over the columns before."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline.errors import HoplineError, PipelineInvalid
from hopline.types import AnyArray, ModelInfo, ScoreRequest
from hopline_pipelines.compile import Expression
from hopline_pipelines.fallbacks import filled
from hopline_pipelines.model_step import ModelStep, Question
from hopline_pipelines.run import Run
from hopline_pipelines.scope import Scope
from hopline_pipelines.spec import GenerateStepSpec
from hopline_pipelines.template import Template


class Writing:
    """The parts of a generate step that its model does not change.

    Args:
        spec: of the step.
        scope: what its templates may read.

    Raises: PipelineInvalid: what does not fit.
    """

    def __init__(self, spec: GenerateStepSpec, scope: Scope) -> None:
        self.fallback = spec.fallback
        self.prompt = Template(spec.prompt, "prompt", scope.expression)
        self.system = Template(spec.system, "system", scope.expression)
        self.reads_nodes = self.prompt.reads_nodes or self.system.reads_nodes
        if self.reads_nodes and not scope.reader.takes_nodes:
            raise PipelineInvalid("prompt: input.nodes is not declared; set nodes = true below [inputs]")
        self.constants = {
            "max_tokens": spec.max_tokens,
            "temperature": spec.temperature,
            "seed": spec.seed,
            "stop": msgspec.json.encode(spec.stop).decode() if spec.stop else "",
        }

    def columns(self, run: Run, rows: NDArray[np.int64] | None) -> dict[str, list[object]]:
        """The columns of the request to the model."""
        count = run.values.num_rows if rows is None else len(rows)
        nodes = []
        if self.reads_nodes:
            ids = run.request.nodes
            nodes = [ids[row] for row in (range(count) if rows is None else rows.tolist())]

        def arrays(expression: Expression) -> AnyArray:
            found = expression.rows(run.values)
            return found if rows is None else found[rows]

        prompts = self.prompt.texts(arrays, nodes, count)
        systems = self.system.texts(arrays, nodes, count)
        messages: list[object] = []
        for system, prompt in zip(systems, prompts, strict=True):
            turns = [{"role": "system", "content": system}] if system else []
            turns.append({"role": "user", "content": prompt})
            messages.append(msgspec.json.encode(turns).decode())
        return {"messages": messages, **{name: [value] * count for name, value in self.constants.items()}}


class GenerateStep(ModelStep):
    """See the module. Its fallback replaces all texts where the model has none in time.

    Attributes:
        writing: templates and parameters; set after it is made.
    """

    kind = "generate"
    writing: Writing

    def begin(self, run: Run) -> None:
        """Send the request."""
        try:
            super().begin(run)
        except HoplineError as error:
            if not self.otherwise(run, error):
                raise

    def otherwise(self, run: Run, error: HoplineError) -> bool:
        """Take the fallback, if there is one that the caller accepts."""
        fallback = self.writing.fallback
        if fallback is None or run.request.degraded == "refuse":
            return False
        rows = run.rows[self.index]
        count = run.values.num_rows if rows is None else len(rows)
        outputs: dict[str, AnyArray] = {}
        for name in self.requested:
            if name.endswith("_tokens"):
                outputs[name] = np.zeros(count, np.int64)
            else:
                outputs[name] = np.empty(count, object)
                outputs[name][:] = {"text": fallback, "finish_reason": "fallback"}.get(name, "[]")
        run.degrade(self.index, filled(self.id))
        run.finish(self.index, outputs)
        return True

    def _request(self, run: Run, question: Question) -> ScoreRequest:
        request = super()._request(run, question)
        columns = self.writing.columns(run, run.rows[self.index])
        return msgspec.structs.replace(request, columns=columns, on_missing="error")


def check_generative(info: ModelInfo) -> None:
    """Raises PipelineInvalid where a model does not generate text."""
    if info.kind != "generative":
        raise PipelineInvalid(f"model {info.name!r} is a {info.kind} model, and generates no text")
