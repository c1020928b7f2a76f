"""Registered models in MLflow: finds a version, its origin and its files.

Uses MLflow's client and knows nothing of the content of files. MLflow is imported here and in `mlflow.py`
only, when something is imported from it: that takes a second.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopline.errors import PackagingError

_REFERENCE = re.compile(r"(?:mlflow|models):/+([^/@:]+)(?:/([^/@]+)|@([^/@]+))")


@dataclass(frozen=True, slots=True)
class Registered:
    """One version of a registered model.

    Attributes:
        name: of the registered model.
        version: as MLflow numbers it.
        source: where its files are, according to MLflow.
        origin: what an artifact records under `producer`: version, run, stage, aliases, tags, source.
    """

    name: str
    version: str
    source: str
    origin: dict[str, str]


def parse(reference: str) -> tuple[str, str | None, str | None]:
    """(name, version, alias) of "mlflow:/NAME/VERSION" or "mlflow:/NAME@ALIAS"; "models:/" works as well.

    Raises: PackagingError: neither form.
    """
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise PackagingError(
            f"{reference!r} names no version in a registry; write mlflow:/NAME/VERSION or "
            "mlflow:/NAME@ALIAS"
        )
    return match[1], match[2], match[3]


@contextmanager
def registry(tracking_uri: str | None) -> Iterator[Registry]:
    """A connection to the registry at an address.

    Args:
        tracking_uri: None uses MLflow's default (MLFLOW_TRACKING_URI).

    Raises:
        PackagingError: an error of MLflow while it is used; or MLflow is not installed.
    """
    try:
        import mlflow
        from mlflow.exceptions import MlflowException
    except ImportError:
        raise PackagingError(
            "importing from MLflow needs the package mlflow-skinny: pip install 'hopline[mlflow]'"
        ) from None
    before = mlflow.get_tracking_uri(), mlflow.get_registry_uri()
    try:
        if tracking_uri is not None:
            # Downloads of "models:/m-…" and "runs:/…" use the process's own address, whichever is passed.
            mlflow.set_tracking_uri(tracking_uri)
            mlflow.set_registry_uri(tracking_uri)
        yield Registry(mlflow.MlflowClient())
    except MlflowException as error:
        raise PackagingError(f"MLflow: {error}") from error
    finally:
        if tracking_uri is not None:
            mlflow.set_tracking_uri(before[0])
            mlflow.set_registry_uri(before[1])


class Registry:
    """Finds and downloads registered models.

    Args:
        client: an MlflowClient.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def find(self, reference: str) -> Registered:
        """The version that a reference names.

        Raises: PackagingError: a bad reference, or a version that is not ready.
        """
        name, version, alias = parse(reference)
        if alias is not None:
            found = self._client.get_model_version_by_alias(name, alias)
        elif version is not None and version.isdecimal():
            found = self._client.get_model_version(name, version)
        else:
            raise PackagingError(
                f"{reference}: MLflow numbers its versions; {version!r} is not a number. Write an alias "
                f"as mlflow:/{name}@{version}"
            )
        if found.status != "READY":
            raise PackagingError(
                f"{reference}: MLflow says that it is {found.status}: {found.status_message}"
            )
        number = str(found.version)
        origin = {"mlflow_model": name, "mlflow_version": number}
        if found.run_id:
            origin["mlflow_run"] = found.run_id
        if found.current_stage and found.current_stage != "None":
            origin["mlflow_stage"] = found.current_stage
        if found.aliases:
            origin["mlflow_aliases"] = ", ".join(sorted(found.aliases))
        origin |= {f"mlflow_tag.{key}": str(value) for key, value in sorted(found.tags.items())}
        source = self._client.get_model_version_download_uri(name, number)
        origin["mlflow_source"] = str(source)
        return Registered(name, number, str(source), origin)

    def download(self, registered: Registered, folder: Path) -> Path:
        """Copy a version's files into an empty folder; return the folder that holds them."""
        from mlflow.artifacts import download_artifacts

        return Path(download_artifacts(artifact_uri=registered.source, dst_path=str(folder)))
