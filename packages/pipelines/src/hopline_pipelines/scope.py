"""The names that expressions of a pipeline may read, while it is checked step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hopline.config.setting import did_you_mean
from hopline.errors import PipelineInvalid
from hopline_pipelines.compile import Expression, typed
from hopline_pipelines.expression import Reference, parse
from hopline_pipelines.functions import Mismatch
from hopline_pipelines.inputs import InputReader
from hopline_pipelines.run import Step
from hopline_pipelines.values import Values, ValueType


class Scope:
    """Inputs, attributes, and the outputs of the steps added so far.

    Args:
        reader: of the inputs.
        num_steps: that there will be.

    Attributes:
        read: every reference that some expression read.
    """

    def __init__(self, reader: InputReader, num_steps: int) -> None:
        self.reader = reader
        self.steps: dict[str, Step] = {}
        self.read: set[Reference] = set()
        self._sample = reader.sample(num_steps)

    def add(self, step: Step) -> None:
        """Let later steps read this one."""
        self.steps[step.id] = step
        self._sample.of[step.index] = {name: kind.sample(2) for name, kind in step.outputs.items()}

    def expression(self, text: str, where: str = "") -> Expression:
        """An expression over what there is.

        Args:
            where: named in errors.

        Raises:
            PipelineInvalid: an unknown name, or types that do not fit.
        """
        try:
            parsed = parse(text)
            found = typed(parsed, self._resolve, self._sample)
        except PipelineInvalid as error:
            raise PipelineInvalid(f"{where}: {error}" if where else str(error)) from None
        self.read.update(parsed.references)
        return found

    def owners(self, text: str) -> tuple[str, ...]:
        """Ids of the steps that an expression reads."""
        return tuple(dict.fromkeys(owner for owner, _ in parse(text).references if owner in self.steps))

    def _resolve(self, reference: Reference) -> tuple[ValueType, Callable[[Values], Any]]:
        owner, name = reference
        if owner == "attributes":
            if name not in self.reader.attributes:
                raise Mismatch(_unknown(f"no attribute {name!r} is declared", name, self.reader.attributes))
            return self.reader.attributes[name], lambda values: values.attributes[name]
        if owner == "input":
            if name not in self.reader.columns:
                raise Mismatch(_unknown(f"no column {name!r} is declared", name, self.reader.columns))
            return self.reader.columns[name], lambda values: values.columns[name]
        step = self.steps.get(owner)
        if step is None:
            raise Mismatch(_unknown(f"there is no step {owner!r}", owner, self.steps))
        if name not in step.outputs:
            raise Mismatch(_unknown(f"step {owner!r} has no output {name!r}", name, step.outputs))
        index = step.index
        return step.outputs[name], lambda values: values.of[index][name]


def _unknown(text: str, name: str, known: Any) -> str:
    return text + (did_you_mean(name, known) or f"; there are {', '.join(known) or 'none'}")
