"""A pipeline as a picture: a tree for terminals, Mermaid for pages. Needs the file only."""

from __future__ import annotations

from collections.abc import Iterator

from hopline_pipelines.expression import parse
from hopline_pipelines.order import Reading, choices, expressions
from hopline_pipelines.spec import (
    AnyStep,
    EnsembleStepSpec,
    ModelStepSpec,
    PipelineSpec,
    RouteStepSpec,
    RulesStepSpec,
)


def tree(spec: PipelineSpec) -> list[str]:
    """Lines of a tree from the outputs down to the inputs; a step's own tree is drawn once.

    Raises:
        PipelineInvalid: a cycle, which has no tree.
    """
    reading = Reading(spec)
    reading.order()
    lines = [f"{spec.name}/{spec.version}"]
    drawn: set[str] = set()
    outputs = list(spec.outputs.items())
    for at, (name, text) in enumerate(outputs):
        steps = reading.reads_of_outputs[name]
        lines += _branch(f"{name} = {text}", steps, reading, drawn, "", at == len(outputs) - 1)
    return lines


def mermaid(spec: PipelineSpec) -> str:
    """A flow chart: steps are boxes, routes diamonds, candidates are reached by dotted lines."""
    reading = Reading(spec)
    lines = ["flowchart LR"]
    lines.append(f'    input(["input: {", ".join(_inputs(spec))}"])')
    for step in reading.steps.values():
        left, right = ("{{", "}}") if isinstance(step, RouteStepSpec) else ("[", "]")
        lines.append(f'    s_{step.id}{left}"{_label(step).replace(chr(34), "#quot;")}"{right}')
    for step in reading.steps.values():
        chosen = choices(step) if isinstance(step, RouteStepSpec) else ()
        if _reads_input(step):
            lines.append(f"    input --> s_{step.id}")
        for source in reading.reads[step.id]:
            arrow = "-.->" if source in chosen else "-->"
            lines.append(f"    s_{source} {arrow} s_{step.id}")
    for at, (name, _) in enumerate(spec.outputs.items()):
        lines.append(f'    out{at}(["{name}"])')
        lines += [f"    s_{source} --> out{at}" for source in reading.reads_of_outputs[name]]
    return "\n".join(lines) + "\n"


def _branch(
    label: str, steps: tuple[str, ...], reading: Reading, drawn: set[str], indent: str, is_last: bool
) -> Iterator[str]:
    yield f"{indent}{'└── ' if is_last else '├── '}{label}"
    below = indent + ("    " if is_last else "│   ")
    for at, name in enumerate(steps):
        is_end = at == len(steps) - 1
        if name in drawn:
            yield f"{below}{'└── ' if is_end else '├── '}{name} …"
            continue
        drawn.add(name)
        yield from _branch(_label(reading.steps[name]), reading.reads[name], reading, drawn, below, is_end)


def _label(step: AnyStep) -> str:
    """One line about a step."""
    if isinstance(step, ModelStepSpec):
        what = f"model {step.model}{'/' + step.version if step.version else ''}"
    elif isinstance(step, EnsembleStepSpec):
        what = f"{step.combine} of {', '.join(step.members)}"
    elif isinstance(step, RouteStepSpec):
        what = f"route to {', '.join(choices(step))}"
    elif isinstance(step, RulesStepSpec):
        what = f"rules: {', '.join(dict.fromkeys(str(rule.then) for rule in step.rules))}, {step.default}"
    else:
        what = f"transform: {', '.join(step.columns)}"
    return f"{step.id}: {what}"


def _inputs(spec: PipelineSpec) -> list[str]:
    inputs = spec.inputs
    found = ["nodes"] * inputs.nodes + ["pairs"] * inputs.pairs + list(inputs.columns)
    return found + [f"attributes.{name}" for name in inputs.attributes]


def _reads_input(step: AnyStep) -> bool:
    if isinstance(step, ModelStepSpec):
        stars = step.columns.get("*", [])
        if step.nodes == "input.nodes" or step.pairs == "input.pairs" or "input.columns" in stars:
            return True
    return any(
        owner in ("input", "attributes")
        for _, text in expressions(step)
        for owner, _ in parse(text).references
    )
