"""`hopline pipeline`: draw a pipeline.toml, or check it against existing models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from hopline.commands.connection import ApiKey, Token, Url, open_client, server_url
from hopline.commands.screen import Screen, whole
from hopline.errors import ConfigError, ModelNotFound, PipelineInvalid
from hopline.models.kinds import Describe
from hopline.types import ModelInfo
from hopline_pipelines.order import Reading, choices
from hopline_pipelines.spec import (
    AnyStep,
    EnsembleStepSpec,
    ModelStepSpec,
    PipelineSpec,
    RouteStepSpec,
    RulesStepSpec,
    read_pipeline,
)

app = typer.Typer(no_args_is_help=True, help="Draw and check pipelines.")

File = Annotated[Path, typer.Argument(help="A pipeline.toml, or the folder of its version.")]


@app.command()
def show(file: File) -> None:
    """Draw the steps from the outputs to the inputs."""
    typer.echo("\n".join(tree(read_pipeline(file))))


@app.command()
def check(
    file: File,
    repository: Annotated[
        str | None, typer.Option(help="Folder or URL of the repository with its models.")
    ] = None,
    url: Url = None,
    api_key: ApiKey = None,
    token: Token = None,
) -> None:
    """Check that a server could load the pipeline: names, cycles, types and shapes of all steps."""
    from hopline_pipelines.check import check_pipeline, no_models

    if repository is not None and url is not None:
        raise ConfigError("pass --repository or --url to check the steps, not both")
    spec = read_pipeline(file)
    try:
        describe = _in_repository(repository) if repository is not None else _at(url, api_key, token)
        plan = check_pipeline(spec, describe, no_models)
    except PipelineInvalid as error:
        for problem in error.problems or [str(error)]:
            typer.secho(f"error: {problem}", fg="red", err=True)
        raise typer.Exit(1) from None
    table = Table("step", "kind", "outputs", title=f"{spec.name}/{spec.version}", title_justify="left")
    for step in plan.steps:
        outputs = ", ".join(f"{name} {kind}" for name, kind in step.outputs.items())
        table.add_row(step.id, step.kind, outputs)
    console = Screen(markup=False)
    console.print(whole(table, "step", "kind"))
    console.print(_summary(plan.info(spec, (spec.version,)), spec), highlight=False)


def _summary(info: ModelInfo, spec: PipelineSpec) -> str:
    def named(tensors: Any) -> str:
        return ", ".join(f"{each.name} {each.datatype}" for each in tensors)

    return (
        f"takes {named(each for each in info.inputs if not each.optional)}\n"
        f"answers {named(info.outputs)}\n"
        f"{len(spec.step)} steps are valid"
    )


def _in_repository(address: str) -> Describe:
    from hopline.models.repositories import open_repository
    from hopline_pipelines.offline import Offline

    return Offline(open_repository(address)).describe


def _at(url: str | None, api_key: str | None, token: str | None) -> Describe:
    with open_client(url, api_key, token) as client:
        served = {info.name: info for info in client.models()}

    url = server_url(url)

    def describe(model: str, version: str | None) -> ModelInfo:
        info = served.get(model)
        if info is None:
            raise ModelNotFound(f"no model {model!r} at {url}; there are: {', '.join(served) or 'none'}")
        if version is not None and version not in info.versions:
            known = ", ".join(info.versions)
            raise ModelNotFound(f"model {model!r} has no version {version!r} at {url}; there are: {known}")
        return info

    return describe


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
