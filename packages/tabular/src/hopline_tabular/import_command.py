"""`hopline models import`: imports a version from MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hopline.commands.screen import Screen


def import_model(
    reference: Annotated[
        str, typer.Argument(metavar="MLFLOW", help="mlflow:/NAME/VERSION or mlflow:/NAME@ALIAS.")
    ],
    repository: Annotated[Path, typer.Option(metavar="DIR", help="Repository folder to write to.")],
    name: Annotated[str | None, typer.Option(help="Model name here. Default: as in MLflow.")] = None,
    version: Annotated[str | None, typer.Option(help="Version here. Default: as in MLflow.")] = None,
    tracking_uri: Annotated[
        str | None, typer.Option(help="MLflow's address. Default: MLFLOW_TRACKING_URI.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing version.")] = False,
) -> None:
    """Import a model version from MLflow: a Hopline artifact, or a scikit-learn or XGBoost model.

    An estimator is unpickled, which runs code in the file: import only from registries that you trust.
    """
    from hopline_tabular.mlflow import import_from_mlflow

    console = Screen()
    with console.status(f"importing {reference}"):
        imported = import_from_mlflow(
            reference,
            repository,
            name=name,
            version=version,
            tracking_uri=tracking_uri,
            overwrite=overwrite,
        )
    registered = imported.registered
    origin = f"{registered.name} version {registered.version} from {registered.source}"
    console.say(f"{imported.how} {origin}\nto {imported.path}")
    for note in imported.notes:
        console.say(f"note: {note}")
