"""Import from a real MLflow registry, in a SQLite file."""

import json
import os
import warnings

import numpy as np
import pytest

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
with warnings.catch_warnings():
    # MLflow's own way with other libraries' deprecations
    warnings.simplefilter("ignore")
    import mlflow.sklearn
    import mlflow.store.model_registry.sqlalchemy_store
    import mlflow.store.tracking.sqlalchemy_store
    import mlflow.xgboost

import xgboost
from sklearn.linear_model import LogisticRegression
from typer.testing import CliRunner

from hopline.errors import ArtifactCorrupted, ArtifactError, PackagingError
from hopline_tabular.import_command import import_model
from hopline_tabular.mlflow import import_from_mlflow, parse
from hopline_tabular.model import TabularModel
from hopline_tabular.spec import read_tabular
from packages.tabular.tests import tabular_models

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow's, of which there are many


class Store:
    """A registry of its own: `uri`, and what the tests put into it."""

    def __init__(self, root):
        self.root = root
        self.uri = f"sqlite:///{root / 'mlflow.db'}"
        self.client = mlflow.MlflowClient(self.uri, self.uri)
        self.experiment = self.client.create_experiment("tests", str(root / "artifacts"))

    def registered(self, name, folder, **more):
        """Log a folder and register it; the version."""
        run = self.client.create_run(self.experiment)
        self.client.log_artifacts(run.info.run_id, str(folder), "model")
        if not self.client.search_registered_models(f"name = '{name}'"):
            self.client.create_registered_model(name)
        source = f"{run.info.artifact_uri}/model"
        return self.client.create_model_version(name, source, run.info.run_id, **more)

    def logged(self, flavor, name, model, **more):
        """Log a model as a training script does, and register it; the version."""
        mlflow.set_tracking_uri(self.uri)
        mlflow.set_registry_uri(self.uri)
        try:
            with mlflow.start_run(experiment_id=self.experiment):
                # MLflow would load the model in a process of its own, to see what it needs
                more["pip_requirements"] = []
                flavor.log_model(model, name="model", registered_model_name=name, **more)
        finally:
            mlflow.set_tracking_uri(None)
            mlflow.set_registry_uri(None)
        return max(int(each.version) for each in self.client.search_model_versions(f"name = '{name}'"))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("mlflow"))


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    """A tabular model that `hopline` packaged."""
    from hopline import package_tabular

    root = tmp_path_factory.mktemp("packaged")
    estimator = tabular_models.pipeline(LogisticRegression(max_iter=500))
    return package_tabular(estimator, tabular_models.payments(200, 1), root, name="fraud", version="5").path


def test_references():
    assert parse("mlflow:/risk/3") == ("risk", "3", None)
    assert parse("mlflow:/risk@champion") == ("risk", None, "champion")
    assert parse("models:/risk/3") == ("risk", "3", None)
    assert parse("mlflow://risk/3") == ("risk", "3", None)


@pytest.mark.parametrize(
    "reference", ["risk/3", "mlflow:/risk", "mlflow:/risk/", "mlflow:/a/b/3", "s3://b/risk"]
)
def test_references_that_name_no_version_are_refused(reference):
    with pytest.raises(PackagingError, match="write mlflow:/NAME/VERSION or mlflow:/NAME@ALIAS"):
        parse(reference)


@pytest.mark.release
def test_an_artifact_is_copied_and_says_where_it_came_from(store, artifact, tmp_path):
    version = store.registered("risk", artifact, tags={"owner": "fraud team"})
    store.client.set_registered_model_alias("risk", "champion", version.version)
    imported = import_from_mlflow("mlflow:/risk@champion", tmp_path, tracking_uri=store.uri)
    assert imported.how == "copied"
    assert imported.path == tmp_path / "risk" / str(version.version)
    found, packaged = read_tabular(imported.path), read_tabular(artifact)
    assert (found.name, found.version) == ("risk", str(version.version))
    assert found.files == packaged.files
    assert {path.name for path in imported.path.iterdir()} == {path.name for path in artifact.iterdir()}
    assert found.producer == packaged.producer | {
        "mlflow_model": "risk",
        "mlflow_version": str(version.version),
        "mlflow_run": version.run_id,
        "mlflow_aliases": "champion",
        "mlflow_tag.owner": "fraud team",
        "mlflow_source": imported.registered.source,
    }


def test_it_may_be_called_otherwise_here(store, artifact, tmp_path):
    version = store.registered("other", artifact)
    reference = f"mlflow:/other/{version.version}"
    options = {"name": "risk", "version": "2026-11", "tracking_uri": store.uri}
    imported = import_from_mlflow(reference, tmp_path, **options)
    assert imported.path == tmp_path / "risk" / "2026-11"
    with pytest.raises(PackagingError, match="exists; choose another version"):
        import_from_mlflow(reference, tmp_path, **options)
    assert import_from_mlflow(reference, tmp_path, **options, overwrite=True).path == imported.path


@pytest.mark.parametrize(
    ("damage", "error", "told"),
    [
        ({"model.onnx": b"other"}, ArtifactCorrupted, "sha256"),
        ({"model.json": b"{"}, ArtifactError, "not a valid model.json"),
    ],
)
def test_a_damaged_artifact_is_refused_and_leaves_nothing(store, artifact, tmp_path, damage, error, told):
    folder = tmp_path / "damaged"
    folder.mkdir()
    for path in artifact.iterdir():
        (folder / path.name).write_bytes(damage.get(path.name, path.read_bytes()))
    version = store.registered("damaged", folder)
    with pytest.raises(error, match=told):
        import_from_mlflow(
            f"mlflow:/damaged/{version.version}", tmp_path / "models", tracking_uri=store.uri
        )
    assert not list((tmp_path / "models").rglob("*.json"))


def test_an_artifact_cannot_name_files_outside_its_folder(store, artifact, tmp_path):
    folder = tmp_path / "escaping"
    folder.mkdir()
    for path in artifact.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    spec = json.loads((folder / "model.json").read_text())
    spec["files"]["../../secret"] = "0" * 64
    (folder / "model.json").write_text(json.dumps(spec))
    version = store.registered("escaping", folder)
    with pytest.raises(ArtifactError, match=r"'\.\./\.\./secret', which is not inside"):
        import_from_mlflow(
            f"mlflow:/escaping/{version.version}", tmp_path / "models", tracking_uri=store.uri
        )


def probabilities(path, frame):
    model = TabularModel(path, read_tabular(path))
    rows = {column.name: frame[column.name].tolist() for column in model.spec.columns}
    rows = {name: [None if value != value else value for value in values] for name, values in rows.items()}
    return model.answer([rows], [len(frame)])


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["sklearn", "xgboost"])
def test_an_estimator_with_an_input_example_is_packaged(store, tmp_path, kind):
    frame = tabular_models.payments(300, 2)
    if kind == "sklearn":
        estimator = tabular_models.pipeline(LogisticRegression(max_iter=500))
        # pickled, as most registries have it
        number = store.logged(
            mlflow.sklearn,
            kind,
            estimator,
            input_example=frame.head(50),
            serialization_format="cloudpickle",
        )
    else:
        frame = frame[["amount", "age", "weekday"]].astype(float)
        target = tabular_models.is_fraud(tabular_models.payments(300, 2))
        estimator = xgboost.XGBClassifier(n_estimators=5, max_depth=3).fit(frame, target)
        number = store.logged(mlflow.xgboost, kind, estimator, input_example=frame.head(50))
    imported = import_from_mlflow(f"mlflow:/{kind}/{number}", tmp_path, tracking_uri=store.uri)
    assert imported.how == "packaged"
    spec = read_tabular(imported.path)
    assert (spec.name, spec.version) == (kind, str(number))
    assert spec.producer["mlflow_model"] == kind
    assert spec.producer["mlflow_run"]
    assert "scikit-learn" in spec.producer
    wanted = estimator.predict_proba(frame)[:, 1]
    np.testing.assert_allclose(probabilities(imported.path, frame), wanted, atol=1e-4)


def test_an_estimator_without_an_input_example_is_refused(store, tmp_path):
    estimator = LogisticRegression().fit([[0.0], [1.0]], [0, 1])
    number = store.logged(mlflow.sklearn, "bare", estimator, serialization_format="cloudpickle")
    with pytest.raises(PackagingError, match="logged without an input example"):
        import_from_mlflow(f"mlflow:/bare/{number}", tmp_path, tracking_uri=store.uri)


@pytest.mark.parametrize("flavor", ["pytorch", "onnx"])
def test_graph_models_are_refused_with_what_to_do(store, tmp_path, flavor):
    folder = tmp_path / "logged"
    folder.mkdir()
    flavors = {flavor: {"model_data": "data"}, "python_function": {"loader_module": f"mlflow.{flavor}"}}
    (folder / "MLmodel").write_text(json.dumps({"flavors": flavors}))
    version = store.registered(f"graph-{flavor}", folder)
    with pytest.raises(
        PackagingError, match=f"flavour {flavor} cannot be imported.*hopline package --model"
    ):
        import_from_mlflow(
            f"mlflow:/graph-{flavor}/{version.version}", tmp_path / "models", tracking_uri=store.uri
        )


def test_a_folder_of_something_else_is_named(store, tmp_path):
    (tmp_path / "logged").mkdir()
    (tmp_path / "logged" / "weights.bin").write_bytes(b"x")
    version = store.registered("something", tmp_path / "logged")
    with pytest.raises(PackagingError, match=r"neither an artifact .* it contains: weights\.bin"):
        import_from_mlflow(
            f"mlflow:/something/{version.version}", tmp_path / "models", tracking_uri=store.uri
        )


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ("mlflow:/absent/1", "MLflow: .*absent"),
        ("mlflow:/risk-of-nothing@champion", "MLflow: .*risk-of-nothing"),
        ("mlflow:/risk/champion", "'champion' is not a number. Write an alias as mlflow:/risk@champion"),
    ],
)
def test_what_mlflow_does_not_have_is_reported(store, tmp_path, reference, told):
    with pytest.raises(PackagingError, match=told):
        import_from_mlflow(reference, tmp_path, tracking_uri=store.uri)


def test_an_import_leaves_mlflows_addresses_as_they_were(store, artifact, tmp_path):
    version = store.registered("risk", artifact)
    before = mlflow.get_tracking_uri(), mlflow.get_registry_uri()
    import_from_mlflow(f"mlflow:/risk/{version.version}", tmp_path, tracking_uri=store.uri)
    assert (mlflow.get_tracking_uri(), mlflow.get_registry_uri()) == before


def test_from_the_command_line(store, artifact, tmp_path):
    import typer

    version = store.registered("risk", artifact)
    app = typer.Typer()
    app.command()(import_model)
    arguments = [
        f"mlflow:/risk/{version.version}",
        "--repository",
        str(tmp_path),
        "--tracking-uri",
        store.uri,
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert f"copied risk version {version.version}" in result.output
    assert (tmp_path / "risk" / str(version.version) / "model.json").is_file()
