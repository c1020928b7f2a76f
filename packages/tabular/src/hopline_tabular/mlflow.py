"""`hopline models import`: copies or packages a model version that is registered in MLflow.

MLflow holds either an artifact that Hopline wrote, which is copied, or an estimator, which is packaged as
a tabular model. A graph model must be packaged against its graph, which MLflow does not have.
"""

from __future__ import annotations

import importlib
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from hopline.errors import ArtifactError, PackagingError
from hopline.models.kinds import find_kind
from hopline.models.version_folder import verify
from hopline.packaging.folder import new_version
from hopline.types import ModelInfo

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
def registry(tracking_uri: str | None) -> Iterator[MlflowRegistry]:
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
        yield MlflowRegistry(mlflow.MlflowClient())
    except MlflowException as error:
        raise PackagingError(f"MLflow: {error}") from error
    finally:
        if tracking_uri is not None:
            mlflow.set_tracking_uri(before[0])
            mlflow.set_registry_uri(before[1])


class MlflowRegistry:
    """Finds and downloads registered models."""

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


#: Flavours that become tabular models, in the order in which they are looked for.
_TABLE_FLAVORS = ("sklearn", "xgboost")


@dataclass(frozen=True, slots=True)
class Imported:
    """A version that was imported.

    Attributes:
        path: `<repository>/<name>/<version>`.
        registered: the version in MLflow.
        how: "copied" or "packaged".
        notes: of packaging.
    """

    path: Path
    registered: Registered
    how: str
    notes: tuple[str, ...] = ()


def import_from_mlflow(
    reference: str,
    repository: Path | str,
    *,
    name: str | None = None,
    version: str | None = None,
    tracking_uri: str | None = None,
    overwrite: bool = False,
) -> Imported:
    """Import one version.

    An estimator is unpickled, which executes code in it: import from registries that you trust.

    Args:
        reference: "mlflow:/NAME/VERSION" or "mlflow:/NAME@ALIAS".
        repository: folder of models.
        name, version: in the repository; None keeps those of MLflow.
        tracking_uri: of the registry; None is MLflow's own choice.
        overwrite: replace an existing version.

    Raises:
        PackagingError: an error of MLflow, a version that cannot be served, or one that exists already.
        ArtifactError: a malformed or damaged artifact.
        ParityError: a packaged estimator answers differently.
    """
    with tempfile.TemporaryDirectory(prefix="hopline-mlflow-") as scratch:
        with registry(tracking_uri) as opened:
            registered = opened.find(reference)
            folder = opened.download(registered, Path(scratch))
            is_ours = (folder / "model.json").is_file()
            logged = None if is_ours else _estimator(reference, folder)
        name, version = name or registered.name, version or registered.version
        how = "copied"
        notes: tuple[str, ...] = ()
        if logged is not None:
            from hopline_tabular.packaging import package_tabular  # needs what packages

            how = "packaged"
            estimator, sample = logged
            report = package_tabular(
                estimator, sample, Path(scratch) / ".packaged", name=name, version=version, progress=False
            )
            folder, notes = report.path, report.notes
        path = _copy(folder, Path(repository), name, version, registered.origin, overwrite)
    return Imported(path, registered, how, notes)


def _copy(
    folder: Path, repository: Path, name: str, version: str, origin: Mapping[str, str], overwrite: bool
) -> Path:
    """Copy an artifact's own files, perhaps under another name, and record its origin."""
    find_kind(folder).describe(folder, _no_model)  # checks model.json
    verify(folder)
    spec = msgspec.json.decode((folder / "model.json").read_bytes())
    spec |= {"name": name, "version": version, "producer": {**spec.get("producer", {}), **origin}}
    with new_version(repository, name, version, overwrite=overwrite) as place:
        for file in spec["files"]:
            target = place.folder / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / file, target)
        (place.folder / "model.json").write_bytes(msgspec.json.format(msgspec.json.encode(spec), indent=1))
        verify(place.folder)
    return place.path


def _no_model(model: str, version: str | None) -> ModelInfo:
    raise ArtifactError(f"uses the model {model!r}, which is not in its folder")


def _estimator(reference: str, folder: Path) -> tuple[Any, Any]:
    """The estimator that was logged, and its input example."""
    if not (folder / "MLmodel").is_file():
        found = ", ".join(sorted(path.name for path in folder.iterdir())) or "nothing"
        raise PackagingError(
            f"{reference}: holds neither an artifact of `hopline package` (model.json) nor a model that "
            f"MLflow logged (MLmodel); it contains: {found}"
        )
    from mlflow.models import Model

    logged = Model.load(str(folder))
    flavor = next((each for each in _TABLE_FLAVORS if each in logged.flavors), None)
    if flavor is None:
        kinds = ", ".join(each for each in logged.flavors if each != "python_function") or "python_function"
        raise PackagingError(
            f"{reference}: a model of flavour {kinds} cannot be imported. A graph model is packaged "
            "against its graph: run `hopline package --model … --graph …` where it was trained, log the "
            "folder that it writes, and import that"
        )
    sample = logged.load_input_example(str(folder))
    if sample is None:
        raise PackagingError(
            f"{reference}: was logged without an input example, which defines the columns; log it "
            "with input_example=…, or use `hopline package --sklearn` with a sample"
        )
    try:
        return importlib.import_module(f"mlflow.{flavor}").load_model(str(folder)), sample
    except ImportError as error:
        raise PackagingError(
            f"{reference}: loading it needs {error.name or error}: pip install 'hopline[tabular]'"
        ) from error
