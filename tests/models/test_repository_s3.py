"""s3://, as moto's server plays it, through s3fs."""

import numpy as np
import pytest

from hopline.config.reader import load_config
from hopline.errors import ArtifactCorrupted, RepositoryUnavailable
from hopline.models.repositories import open_repository
from hopline.service import Service
from hopline.types import ScoreRequest
from tests import versions
from tests.engine import zoo
from tests.s3_server import bucket, s3_server
from tests.versions import FILES, version


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    nowhere = str(tmp_path_factory.mktemp("aws") / "absent")
    with s3_server(nowhere) as endpoint, bucket(endpoint, "models") as client:
        yield client


def put(client, prefix, contents):
    for name, content in contents.items():
        client.put_object(Bucket="models", Key=f"{prefix}/{name}", Body=content)


def test_versions_in_a_bucket(client, tmp_path):
    put(client, "prod/risk/1", version())
    put(client, "prod/risk/10", version(comment="ten"))
    put(client, "prod/risk", {"serving.toml": b"settings"})
    client.put_object(Bucket="models", Key="prod/risk/2/", Body=b"")  # what consoles make of a folder
    repository = open_repository("s3://models/prod", tmp_path / "cache")
    assert repository.models() == ["risk"]
    assert repository.versions("risk") == ["1", "10"]
    assert versions.read(repository.fetch("risk", "1")) == version()
    assert repository.model_file("risk", "serving.toml").read_bytes() == b"settings"
    put(client, "prod/risk/11", version(comment="uploaded meanwhile"))
    assert repository.versions("risk") == ["1", "10", "11"]
    put(client, "prod/risk/1", version({**FILES, "head.onnx": b"changed"}))
    assert versions.read(repository.fetch("risk", "1"))["head.onnx"] == b"changed"


def test_an_upload_that_is_not_finished_is_refused_and_then_taken(client, tmp_path):
    put(client, "late/risk/1", {"model.json": version()["model.json"]})
    repository = open_repository("s3://models/late/", tmp_path / "cache")
    with pytest.raises(ArtifactCorrupted, match=r"s3://models/late/risk/1/.*absent"):
        repository.fetch("risk", "1")
    put(client, "late/risk/1", version())
    assert versions.read(repository.fetch("risk", "1")) == version()


def test_a_bucket_that_is_not_there_has_no_models(client, tmp_path):
    assert open_repository("s3://absent/models", tmp_path / "cache").models() == []


def test_a_store_that_is_away_is_named_and_copies_stand_in(client, tmp_path, monkeypatch):
    put(client, "away/risk/1", version())
    copied = open_repository("s3://models/away", tmp_path / "cache").fetch("risk", "1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    assert open_repository("s3://models/away", tmp_path / "cache").fetch("risk", "1") == copied
    with pytest.raises(RepositoryUnavailable, match="s3://models/away cannot be asked"):
        open_repository("s3://models/away", tmp_path / "empty").models()


@pytest.mark.release
async def test_a_service_serves_from_a_bucket_and_restarts_without_it(client, tmp_path, monkeypatch):
    from tests.packaged import package

    graph = zoo.homogeneous(1).save(tmp_path / "graph")
    options = {"name": "sage", "fanouts": [4, 3, 5], "task": "multiclass", "check_nodes": 20}
    report = package(zoo.Plain().eval(), graph, tmp_path / "models", **options)
    put(client, "serving/sage/1", versions.read(report.path))
    put(client, "serving/sage", {"serving.toml": b"cache_bytes = 65536"})
    answers = []
    for address in (tmp_path / "models", "s3://models/serving", "s3://models/serving"):
        overrides = {
            "graph.path": tmp_path / "graph",
            "models.repository": address,
            "models.cache": tmp_path / "cache",
        }
        service = Service(load_config(overrides=overrides))
        await service.start()
        for _ in range(2):
            answers.append(
                await service.score(ScoreRequest("sage", nodes=["n1", "n2"], outputs=("logits",)))
            )
        service.begin_drain()
        assert await service.drain(5)
        await service.close()
        if isinstance(address, str):
            monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
            monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    # serving.toml came along, also where it is a copy: the second answer of each is from memory
    assert ["cache" in answer.timings_ms for answer in answers] == [False, False, False, True, False, True]
    for answer in answers:
        np.testing.assert_array_equal(answer.outputs["logits"], answers[0].outputs["logits"])
