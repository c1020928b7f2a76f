"""From a file to a plan, or to everything that is wrong with it: names, types and shapes of every step."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from typing import Literal, NoReturn

from hopline.config.setting import did_you_mean
from hopline.errors import HoplineError, ModelNotFound, PipelineInvalid
from hopline.models.kinds import Describe
from hopline.types import ModelInfo, TensorInfo
from hopline_pipelines.compile import Expression
from hopline_pipelines.compute import Decider, RulesStep, TransformStep
from hopline_pipelines.ensemble import EnsembleStep
from hopline_pipelines.fit import ModelFit, fit
from hopline_pipelines.generate import GenerateStep, Writing, check_generative
from hopline_pipelines.inputs import InputReader
from hopline_pipelines.model_step import ModelStep, Question, Resolver
from hopline_pipelines.order import ALL_COLUMNS, Reading, choices
from hopline_pipelines.route import CHOSEN, RouteStep
from hopline_pipelines.run import Plan, Step, StepHead
from hopline_pipelines.scope import Scope
from hopline_pipelines.spec import (
    MAX_STEPS,
    RESERVED_STEPS,
    AnyStep,
    EnsembleStepSpec,
    GenerateStepSpec,
    ModelStepSpec,
    PipelineSpec,
    RouteStepSpec,
    RulesStepSpec,
)
from hopline_pipelines.values import ValueType, shape_in_words


def no_models(model: str, version: str | None) -> NoReturn:
    """Replaces a resolver in a check, which requests nothing.

    Raises: ModelNotFound: always.
    """
    raise ModelNotFound(f"model {model!r} is only described here, not loaded")


def check_pipeline(spec: PipelineSpec, describe: Describe, resolve: Resolver, max_rows: int = 4096) -> Plan:
    """Check a pipeline against the models that there are.

    Args:
        describe: a model's interface.
        resolve: finds who answers; called when requests come.
        max_rows: of one request.

    Raises:
        PipelineInvalid: names every problem by step and reference.
    """
    reading = Reading(spec)
    problems = [*_shape_of(spec), *reading.problems]
    order: list[str] = []
    try:
        order = reading.order()
    except PipelineInvalid as error:
        problems.append(str(error))
    try:
        reader = InputReader(spec.inputs, max_rows)
    except PipelineInvalid as error:
        problems.append(str(error))
    if not problems:  # an unknown name may be a misspelling of the one that is never read
        problems = [
            f"step {name!r}: no output comes from it; read it or remove it" for name in reading.unread()
        ]
    if problems:
        raise _invalid(spec, problems)
    return _Checker(spec, reading, reader, describe, resolve).plan(order)


def _shape_of(spec: PipelineSpec) -> list[str]:
    """Faults that do not depend on the models."""
    found = []
    if not spec.step:
        found.append("no [[step]]; at least one is needed")
    if len(spec.step) > MAX_STEPS:
        found.append(f"{len(spec.step)} steps; at most {MAX_STEPS} are allowed")
    for step in spec.step:
        if not re.fullmatch(r"[A-Za-z_]\w{0,63}", step.id, re.ASCII) or keyword.iskeyword(step.id):
            found.append(f"step {step.id!r}: an id is a name of letters, digits and underscores")
        if step.id in RESERVED_STEPS:
            found.append(f"step {step.id!r}: this id means something else; use another one")
    if not spec.outputs:
        found.append("no [outputs]; at least one is needed")
    if "missing" in spec.outputs:
        found.append("outputs: 'missing' tells which rows are null; use another name")
    for name in spec.default_outputs:
        if name not in spec.outputs:
            found.append(f"default_outputs: there is no output {name!r}{did_you_mean(name, spec.outputs)}")
    return found


def _invalid(spec: PipelineSpec, problems: list[str]) -> PipelineInvalid:
    distinct = list(dict.fromkeys(problems))
    return PipelineInvalid(f"pipeline {spec.name}/{spec.version}: {'; '.join(distinct)}", distinct)


class _Checker:
    def __init__(
        self,
        spec: PipelineSpec,
        reading: Reading,
        reader: InputReader,
        describe: Describe,
        resolve: Resolver,
    ) -> None:
        self._spec = spec
        self._reading = reading
        self._reader = reader
        self._describe = describe
        self._resolve = resolve
        self._problems: list[str] = []
        self._steps: dict[str, Step] = {}
        self._infos: dict[str, ModelInfo] = {}
        self._fits: dict[str, ModelFit] = {}
        self._reads_nodes = False
        self._num_passing = 0
        self._scope = Scope(reader, len(reading.steps))

    def plan(self, order: list[str]) -> Plan:
        """The plan of a file whose names are in order."""
        spec = self._spec
        for index, name in enumerate(order):
            if any(each not in self._steps for each in self._reading.reads[name]):
                continue  # what it reads is wrong, and was reported
            try:
                step = self._step(self._reading.steps[name], index)
            except HoplineError as error:
                self._num_passing += error.may_pass
                self._problems.append(f"step {name!r}: {error}")
                continue
            self._steps[name] = step
            self._scope.add(step)
        outputs = {}
        for name, text in spec.outputs.items():
            if any(each not in self._steps for each in self._reading.reads_of_outputs[name]):
                continue
            try:
                outputs[name] = self._scope.expression(text)
            except PipelineInvalid as error:
                self._problems.append(f"output {name!r}: {error}")
        if not self._problems:
            self._check_inputs()
        if self._problems:
            invalid = _invalid(spec, self._problems)
            # such as a step whose model is not loaded yet
            invalid.may_pass = self._num_passing == len(self._problems)
            raise invalid
        self._request_outputs(order)
        places = {name: self._steps[name].index for name in order}
        infos = [info for info in self._infos.values() if info.graph_version]
        return Plan(
            name=spec.name,
            version=spec.version,
            reader=self._reader,
            steps=tuple(self._steps[name] for name in order),
            outputs=outputs,
            wanted={
                name: tuple(places[each] for each in read)
                for name, read in self._reading.reads_of_outputs.items()
            },
            default_outputs=spec.default_outputs or tuple(spec.outputs),
            inputs=self._inputs(),
            id_kind=self._id_kind(),
            takes_time=any(fit.question.takes_time for fit in self._fits.values()),
            graph_version=",".join(dict.fromkeys(info.graph_version for info in infos)),
            models=self._models(),
        )

    def _step(self, spec: AnyStep, index: int) -> Step:
        reads = self._reading.reads[spec.id]
        deps = tuple(self._steps[name].index for name in reads)
        if isinstance(spec, ModelStepSpec):
            return self._model(spec, index, deps)
        if isinstance(spec, RouteStepSpec):
            return self._route(spec, index)
        if isinstance(spec, RulesStepSpec):
            if len({_kind(each) for each in (spec.default, *(rule.then for rule in spec.rules))}) > 1:
                raise PipelineInvalid("results are of different kinds; all texts, numbers or truth values")
            rules = self._rules(spec)
            results = [*(rule.then for rule in spec.rules), spec.default]
            return RulesStep(StepHead(spec.id, index, deps), rules, results, spec.output)
        if isinstance(spec, EnsembleStepSpec):
            return self._ensemble(spec, index)
        if not spec.columns:
            raise PipelineInvalid("no columns; at least one is needed")
        columns = {}
        for name, text in spec.columns.items():
            if name == ALL_COLUMNS:
                raise PipelineInvalid(f"column {name!r} means all of them; use another name")
            columns[name] = self._scope.expression(text, f"columns.{name}")
        return TransformStep(StepHead(spec.id, index, deps), columns)

    def _model(self, spec: ModelStepSpec, index: int, deps: tuple[int, ...]) -> Step:
        if spec.model == self._spec.name:
            raise PipelineInvalid(f"model {spec.model!r} is this pipeline; it cannot be a step of itself")
        try:
            info = self._describe(spec.model, spec.version)
        except ModelNotFound as error:
            raise PipelineInvalid(str(error)) from None
        below: object = info.properties.get("models", ())
        if isinstance(below, list | tuple) and self._spec.name in below:
            raise PipelineInvalid(f"pipeline {spec.model!r} has this pipeline inside it")
        if isinstance(spec, GenerateStepSpec):
            check_generative(info)
        found = fit(spec, info, self._scope)
        self._infos[spec.id], self._fits[spec.id] = info, found

        def question_for(info: ModelInfo) -> Question:
            now = fit(spec, info, self._scope)
            for name in step.requested:
                if now.outputs.get(name) != found.outputs[name]:
                    has = f"is {now.outputs[name]}" if name in now.outputs else "is gone"
                    raise PipelineInvalid(f"output {name!r} {has}; it was {found.outputs[name]}")
            return now.question

        head = StepHead(spec.id, index, deps, found.outputs)
        step: ModelStep
        if isinstance(spec, GenerateStepSpec):
            step = generating = GenerateStep(head, spec.model, spec.version, self._resolve, question_for)
            generating.writing = Writing(spec, self._scope)
            self._reads_nodes = self._reads_nodes or generating.writing.reads_nodes
        else:
            step = ModelStep(head, spec.model, spec.version, self._resolve, question_for)
        return step

    def _route(self, spec: RouteStepSpec, index: int) -> Step:
        rules = self._rules(spec)
        names = [*(str(rule.then) for rule in spec.rules), spec.default]
        candidates = [self._steps[name] for name in choices(spec)]
        shared = {
            name: kind
            for name, kind in candidates[0].outputs.items()
            if name != CHOSEN and all(each.outputs.get(name) == kind for each in candidates)
        }
        if not shared:
            raise PipelineInvalid(
                "its steps have no output of the same name, type and shape: "
                + "; ".join(f"{each.id} has {_in_words(each.outputs)}" for each in candidates)
            )
        deps = {name for rule in rules for name in self._scope.owners(rule.text)}
        apart = frozenset(
            each.index
            for each in candidates
            if isinstance(each, ModelStep) and set(self._reading.readers[each.id]) == {spec.id}
        ) - {self._steps[name].index for name in deps}
        head = StepHead(spec.id, index, tuple(self._steps[name].index for name in deps), shared)
        return RouteStep(head, Decider(rules), [self._steps[name].index for name in names], names, apart)

    def _ensemble(self, spec: EnsembleStepSpec, index: int) -> Step:
        if len(set(spec.members)) < len(spec.members) or len(spec.members) < 2:
            raise PipelineInvalid("members: two steps or more are needed, each once")
        members = [self._steps[name] for name in spec.members]
        types = []
        for member in members:
            if spec.output not in member.outputs:
                raise PipelineInvalid(
                    f"member {member.id!r} has no output {spec.output!r}; "
                    f"it has {', '.join(member.outputs)}"
                )
            types.append(member.outputs[spec.output])
        if len(set(types)) > 1:
            shown = ", ".join(f"{each.id} {kind}" for each, kind in zip(members, types, strict=True))
            raise PipelineInvalid(f"output {spec.output!r} of its members differs: {shown}")
        result = types[0]
        if spec.combine != "vote" and result.kind != "number":
            raise PipelineInvalid(f'combine "{spec.combine}" takes numbers, not {result}; "vote" takes any')
        if spec.combine in ("mean", "weighted", "median") and not result.datatype.startswith("FP"):
            result = ValueType("FP64", result.dims)
        weighted = spec.combine == "weighted"
        if weighted != bool(spec.weights) or (weighted and len(spec.weights) != len(members)):
            raise PipelineInvalid('weights: one for each member, with combine "weighted" and only then')
        if weighted and not (all(weight >= 0 for weight in spec.weights) and sum(spec.weights) > 0):
            raise PipelineInvalid("weights: numbers from 0 up, not all 0")
        require = {"all": len(members), "any": 1}.get(str(spec.require), spec.require)
        if not isinstance(require, int) or not 1 <= require <= len(members):
            raise PipelineInvalid(f'require: "all", "any" or 1 to {len(members)}, not {spec.require!r}')
        return EnsembleStep(
            StepHead(spec.id, index, outputs={spec.output: result}),
            [each.index for each in members],
            spec.members,
            spec.combine,
            spec.weights,
            require,
        )

    def _rules(self, spec: RouteStepSpec | RulesStepSpec) -> list[Expression]:
        found = []
        for number, rule in enumerate(spec.rules, 1):
            rule_of = self._scope.expression(rule.when, f"rule {number}")
            if rule_of.type.kind != "truth" or rule_of.type.dims:
                shape = "" if not rule_of.type.by_row else f" {shape_in_words(rule_of.type.dims)}"
                raise PipelineInvalid(
                    f"rule {number}: {rule.when!r} is a {rule_of.type.kind}{shape}; "
                    "a condition for each row or for the request is needed"
                )
            found.append(rule_of)
        return found

    def _check_inputs(self) -> None:
        """Check that all declared inputs are read."""
        read = self._scope.read | {
            ("input", feed.name) for found in self._fits.values() for feed in found.from_input
        }
        own = any(
            step.nodes == "input.nodes" for step in self._spec.step if isinstance(step, ModelStepSpec)
        )
        pairs = any(
            step.pairs == "input.pairs" for step in self._spec.step if isinstance(step, ModelStepSpec)
        )
        if self._reader.takes_nodes and not (own or self._reads_nodes):
            self._problems.append("inputs: nodes are declared, but no step reads input.nodes")
        if self._reader.takes_pairs and not pairs:
            self._problems.append("inputs: pairs are declared, but no step reads input.pairs")
        nested = any(info.kind == "pipeline" for info in self._infos.values())
        for name in self._reader.columns:
            if ("input", name) not in read:
                self._problems.append(f"inputs.columns: nothing reads {name!r}")
        for name in self._reader.attributes:
            if ("attributes", name) not in read and not nested:
                self._problems.append(f"inputs.attributes: nothing reads {name!r}")

    def _request_outputs(self, order: list[str]) -> None:
        """Have models answer the outputs that something reads, and no others."""
        read: dict[str, set[str]] = {name: set() for name in order}
        for owner, name in self._reading.references:
            if owner in read:
                read[owner].add(name)
        for name in reversed(order):
            spec, step = self._reading.steps[name], self._steps[name]
            if isinstance(spec, EnsembleStepSpec):
                for member in spec.members:
                    read[member].add(spec.output)
            elif isinstance(spec, RouteStepSpec):
                # a route of which only the chosen step is read still has to run one
                wanted = read[name] - {CHOSEN} or {next(iter(step.outputs))}
                for choice in choices(spec):
                    read[choice] |= wanted
            elif isinstance(step, ModelStep):
                step.requested = tuple(each for each in step.outputs if each in read[name])

    def _models(self) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for name, info in self._infos.items():
            step = self._reading.steps[name]
            assert isinstance(step, ModelStepSpec)
            found.setdefault(step.model)
            below: object = info.properties.get("models", ())
            if isinstance(below, list | tuple):
                found.update(dict.fromkeys(map(str, below)))
        return tuple(found)

    def _inputs(self) -> tuple[TensorInfo, ...]:
        """Ids as the models that take the request's own say, then columns."""
        found: dict[str, TensorInfo] = {}
        for name, each in self._fits.items():
            if each.question.nodes is True or each.question.pairs is True:
                for tensor in self._infos[name].inputs:
                    if tensor.name not in each.columns:
                        found.setdefault(tensor.name, tensor)
        for name, kind in self._reader.columns.items():
            found[name] = TensorInfo(name, kind.datatype, (-1,), self._reader.is_optional(name))
        return tuple(found.values())

    def _id_kind(self) -> Literal["int", "string", "none"]:
        for name, each in self._fits.items():
            if each.question.nodes is True or each.question.pairs is True:
                return self._infos[name].id_kind
        return "none"


def _kind(value: object) -> str:
    return "truth" if isinstance(value, bool) else "text" if isinstance(value, str) else "number"


def _in_words(outputs: Mapping[str, ValueType]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in outputs.items())
