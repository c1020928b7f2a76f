"""`hopline pipeline`: draw a pipeline.toml, or check it against existing models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from hopline.commands.connection import ApiKey, Token, Url, open_client, server_url
from hopline.commands.screen import Screen, whole
from hopline.errors import ConfigError, ModelNotFound, PipelineInvalid
from hopline.models.kinds import Describe
from hopline.types import ModelInfo
from hopline_pipelines.drawing import mermaid, tree
from hopline_pipelines.spec import PipelineSpec, read_pipeline

app = typer.Typer(no_args_is_help=True, help="Draw and check pipelines.")

File = Annotated[Path, typer.Argument(help="A pipeline.toml, or the folder of its version.")]


@app.command()
def show(
    file: File,
    as_mermaid: Annotated[bool, typer.Option("--mermaid", help="Print a Mermaid flow chart.")] = False,
) -> None:
    """Draw the steps from the outputs to the inputs."""
    spec = read_pipeline(file)
    typer.echo(mermaid(spec) if as_mermaid else "\n".join(tree(spec)), nl=not as_mermaid)


@app.command()
def check(
    file: File,
    repository: Annotated[
        str | None,
        typer.Option(help="Folder or URL of the repository with its models.", show_default=False),
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
    from hopline.models.interfaces import Offline
    from hopline.models.repositories import open_repository

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
