"""`hopline generate`: import generative models into a repository."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hopline.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="Import generative models into a repository.")


@app.callback()
def _group() -> None:
    """Import generative models into a repository."""


@app.command("import")
def import_(
    source: Annotated[
        str,
        typer.Argument(
            help="A .gguf file, a folder with openvino_model.xml, or a URL of either. With --upstream: the "
            "model's name on that server."
        ),
    ],
    repository: Annotated[Path, typer.Option(help="Folder of the model repository.")],
    name: Annotated[str, typer.Option(help="Model name.")],
    version: Annotated[str, typer.Option(help="Version.")] = "1",
    upstream: Annotated[
        str, typer.Option(help="URL, up to /v1, of a server that speaks OpenAI's protocol and generates.")
    ] = "",
    api_key_env: Annotated[
        str, typer.Option(help="Environment variable with the upstream's API key.")
    ] = "",
    context: Annotated[int, typer.Option(help="Context of the upstream's model, in tokens.")] = 0,
    chat_template: Annotated[
        Path | None, typer.Option(help="File with a chat template that replaces the model's.")
    ] = None,
    licence: Annotated[Path | None, typer.Option(help="File with the licence text.")] = None,
    link: Annotated[bool, typer.Option("--link", help="Make hard links instead of copies.")] = False,
    check: Annotated[bool, typer.Option(help="Load the model and generate a text first.")] = True,
) -> None:
    """Make a version of a model that generates text."""
    from hopline_generate.model_import import Import, import_model, import_upstream, summary

    if upstream:
        spec = import_upstream(repository, name, version, upstream, source, api_key_env, context)
    else:
        job = Import(
            source,
            repository,
            name,
            version,
            chat_template=_text(chat_template, "--chat-template"),
            licence=_text(licence, "--licence"),
            links=link,
            tries=check,
        )
        spec = import_model(job)
    for key, value in summary(spec).items():
        typer.echo(f"{key}: {value}")


def _text(file: Path | None, flag: str) -> str:
    if file is None:
        return ""
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{flag}: {file} cannot be read: {error}") from None
