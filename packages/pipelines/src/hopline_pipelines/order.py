"""Dependencies between steps, from the text alone: unknown names, cycles, unread steps, an order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hopline.config.setting import did_you_mean
from hopline.errors import PipelineInvalid
from hopline_pipelines.expression import Reference, parse
from hopline_pipelines.spec import (
    AnyStep,
    EnsembleStepSpec,
    GenerateStepSpec,
    ModelStepSpec,
    PipelineSpec,
    RouteStepSpec,
    RulesStepSpec,
)
from hopline_pipelines.template import expressions_of

#: What `*` may mean: every column of the request or of a transform.
ALL_COLUMNS = "columns"


def expressions(step: AnyStep) -> Iterable[tuple[str, str]]:
    """(where, text) of every expression of a step, `*` feeds and "input.nodes" left out."""
    if isinstance(step, ModelStepSpec):
        if step.nodes and step.nodes != "input.nodes":
            yield "nodes", step.nodes
        if isinstance(step.pairs, tuple):
            yield from (("pairs", text) for text in step.pairs)
        for name, source in step.columns.items():
            if name != "*" and isinstance(source, str):
                yield f"columns.{name}", source
        if isinstance(step, GenerateStepSpec):
            yield from expressions_of(step.prompt, "prompt")
            yield from expressions_of(step.system, "system")
    elif isinstance(step, RouteStepSpec | RulesStepSpec):
        yield from ((f"rule {number}", rule.when) for number, rule in enumerate(step.rules, 1))
    elif not isinstance(step, EnsembleStepSpec):
        yield from ((f"columns.{name}", text) for name, text in step.columns.items())


def all_columns(step: ModelStepSpec) -> tuple[str, ...]:
    """Owners whose columns a model step takes by `*`."""
    sources = step.columns.get("*", [])
    found = [sources] if isinstance(sources, str) else sources
    for source in found:
        if not source.endswith("." + ALL_COLUMNS):
            raise PipelineInvalid(
                f'columns."*" is {source!r}; write "input.columns" or "<transform>.columns"'
            )
    return tuple(source.removesuffix("." + ALL_COLUMNS) for source in found)


def choices(step: AnyStep) -> tuple[str, ...]:
    """Ids of the steps that a route chooses among or that an ensemble combines, in order, each once."""
    if isinstance(step, RouteStepSpec):
        return tuple(dict.fromkeys([*(str(rule.then) for rule in step.rules), step.default]))
    return step.members if isinstance(step, EnsembleStepSpec) else ()


class Reading:
    """Dependencies between steps.

    Args:
        spec: the file.

    Attributes:
        steps: id -> step.
        reads: step id -> ids of the steps that it reads or chooses among.
        readers: the other way round; "" is for the pipeline's outputs.
        references: every (owner, name) that some expression reads.
        problems: what is wrong.
    """

    def __init__(self, spec: PipelineSpec) -> None:
        self.problems: list[str] = []
        self.steps: dict[str, AnyStep] = {}
        for step in spec.step:
            if step.id in self.steps:
                self.problems.append(f"step {step.id!r}: two steps have this id")
            self.steps[step.id] = step
        self.reads: dict[str, tuple[str, ...]] = {}
        self.references: set[Reference] = set()
        for step in self.steps.values():
            self.reads[step.id] = tuple(dict.fromkeys(self._read_by(step)))
        self.reads_of_outputs: dict[str, tuple[str, ...]] = {
            name: tuple(dict.fromkeys(self._owners(f"output {name!r}", text)))
            for name, text in spec.outputs.items()
        }
        self.readers: dict[str, list[str]] = {name: [] for name in self.steps}
        for reader, read in self.reads.items():
            for each in read:
                self.readers[each].append(reader)
        for read in self.reads_of_outputs.values():
            for each in read:
                self.readers[each].append("")

    def order(self) -> list[str]:
        """Ids, each after those it reads, in the file's order otherwise.

        Raises: PipelineInvalid: a cycle, with its path.
        """
        found: list[str] = []
        path: list[str] = []
        for name in self.steps:
            _visit(name, self.reads, found, path)
        return found

    def unread(self) -> list[str]:
        """Ids of steps that no output comes from."""
        seen: set[str] = set()
        waiting = [each for read in self.reads_of_outputs.values() for each in read]
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting += self.reads[name]
        return [name for name in self.steps if name not in seen]

    def _read_by(self, step: AnyStep) -> Iterable[str]:
        place = f"step {step.id!r}"
        try:
            for where, text in expressions(step):
                yield from self._owners(f"{place}, {where}", text)
        except PipelineInvalid as error:  # an invalid template
            self.problems.append(f"{place}: {error}")
        if isinstance(step, ModelStepSpec):
            try:
                for owner in all_columns(step):
                    if owner != "input":
                        self.references.add((owner, ALL_COLUMNS))
                        yield from self._known(place, owner)
            except PipelineInvalid as error:
                self.problems.append(f"{place}: {error}")
        for choice in choices(step):
            yield from self._known(place, choice)

    def _owners(self, place: str, text: str) -> Iterable[str]:
        try:
            references = parse(text).references
        except PipelineInvalid as error:
            self.problems.append(f"{place}: {error}")
            return
        self.references.update(references)
        for owner, name in references:
            if owner not in ("input", "attributes"):
                yield from self._known(f"{place}: {owner}.{name}", owner)

    def _known(self, place: str, name: str) -> Iterable[str]:
        if name in self.steps:
            yield name
        else:
            hint = did_you_mean(name, self.steps)
            self.problems.append(
                f"{place}: there is no step {name!r}{hint or '; there are ' + ', '.join(self.steps)}"
            )


def _visit(name: str, reads: Mapping[str, tuple[str, ...]], found: list[str], path: list[str]) -> None:
    if name in found:
        return
    if name in path:
        cycle = [*path[path.index(name) :], name]
        raise PipelineInvalid(f"the steps go in a circle: {' → '.join(cycle)} (each reads the next)")
    path.append(name)
    for each in reads[name]:
        _visit(each, reads, found, path)
    path.pop()
    found.append(name)
