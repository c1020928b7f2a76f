"""All sinks keep the same promises."""

from itertools import count

import pytest

from hopline.jobs.batch import precomputed_sink
from hopline_stores import parquet_sink
from hopline_stores.testing.sinks import SinkSuite
from tests.jobs.batch import places
from tests.s3_server import s3_server

NUMBERS = count()


@pytest.fixture(scope="module")
def aws(tmp_path_factory):
    """The address of what plays S3 and DynamoDB."""
    with s3_server(str(tmp_path_factory.mktemp("aws") / "absent")) as url:
        yield url


class TestNpy(SinkSuite):
    @pytest.fixture
    def place(self, tmp_path):
        return places.NpyPlace(tmp_path)


class TestPrecomputedFile(SinkSuite):
    @pytest.fixture
    def place(self, tmp_path, monkeypatch):
        monkeypatch.setattr(precomputed_sink, "_NOTE_BYTES", 1)
        place = places.TablePlace(tmp_path)
        place.resumes = 160
        return place


class TestParquetFile(SinkSuite):
    @pytest.fixture
    def place(self, tmp_path):
        return places.ParquetPlace(tmp_path)


class TestParquetFileOfManyGroups(SinkSuite):
    @pytest.fixture
    def place(self, tmp_path, monkeypatch):
        monkeypatch.setattr(parquet_sink, "_GROUP_BYTES", 1)
        monkeypatch.setattr(parquet_sink, "_LEAST_ROWS", 7)
        return places.ParquetPlace(tmp_path)


class TestParquetFolder(SinkSuite):
    @pytest.fixture
    def place(self, tmp_path, monkeypatch):
        monkeypatch.setattr(parquet_sink, "_GROUP_BYTES", 1)
        monkeypatch.setattr(parquet_sink, "_LEAST_ROWS", 30)
        monkeypatch.setattr(parquet_sink, "_PART_BYTES", 1)
        place = places.ParquetFolderPlace(tmp_path)
        place.resumes = 180  # of 200, in parts of 30
        return place


class TestParquetInABucket(SinkSuite):
    @pytest.fixture
    def place(self, aws):
        place = places.S3Place(aws, f"bucket-{next(NUMBERS)}")
        yield place
        place.close()
