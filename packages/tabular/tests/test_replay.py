"""Logs of tabular models: columns in any form, what preprocessing made of them, the same answers again."""

import numpy as np
import pytest
from xgboost import XGBClassifier

import hopline
from hopline.config.reader import load_config
from hopline.jobs.targets import ServerTarget
from hopline.service import Service
from hopline.types import ScoreRequest
from hopline_drift.log_reader import LogReader
from hopline_drift.replay import replay
from hopline_drift.targets import ServiceTarget
from packages.drift.tests.conftest import serve  # noqa: F401
from packages.tabular.tests.tabular_models import columns_of, payments, pipeline


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    hopline.package_tabular(
        pipeline(XGBClassifier(n_estimators=20)), payments(100, seed=1), folder, name="fraud"
    )
    return folder


async def logged(repository, tmp_path, count=40):
    """Settings of a service that kept a log of some payments."""
    config = load_config(
        overrides={
            "models.repository": repository,
            "models.state": tmp_path / "state",
            "prediction_log.path": tmp_path / "log",
            "prediction_log.tensors_share": 1.0,
        }
    )
    service = Service(config)
    await service.start()
    frame = payments(count, seed=2)
    for row in range(count):
        columns = columns_of(frame.iloc[row : row + 1 + row % 3])
        if row % 2:
            columns["amount"] = np.array(columns["amount"], np.float32)
        await service.score(ScoreRequest("fraud", columns=columns, request_id=f"p{row}"))
    service.begin_drain()
    assert await service.drain(5)
    await service.close()
    return config


async def test_the_same_version_gives_the_same_answers_bit_for_bit(repository, tmp_path):
    config = await logged(repository, tmp_path)
    async with ServiceTarget(config) as target:
        report = await replay(LogReader(config.prediction_log.path), target)
    assert report.all_identical
    assert report.compared == 40


async def test_entries_name_and_show_the_preprocessing(repository, tmp_path):
    config = await logged(repository, tmp_path, 4)
    estimator = pipeline(XGBClassifier(n_estimators=20))
    for entry in LogReader(config.prediction_log.path):
        seen = entry.tensors["features"]
        assert seen.shape[0] == len(entry.inputs.columns["amount"])
        assert len(entry.preprocessing_hash) == len(entry.feature_schema_hash) == 16
        row = int(entry.request_id[1:])
        frame = payments(4, seed=2).iloc[row : row + 1 + row % 3]
        expected = np.asarray(estimator[:-1].transform(frame), np.float64)
        np.testing.assert_allclose(seen, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.release
async def test_a_server_is_called_through_the_client(repository, tmp_path, serve):  # noqa: F811
    config = await logged(repository, tmp_path)
    with serve("--repository", repository) as url:
        async with ServerTarget(url) as target:
            report = await replay(LogReader(config.prediction_log.path), target)
    assert report.all_identical
    assert report.compared == 40
