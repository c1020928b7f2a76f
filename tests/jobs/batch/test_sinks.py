"""All sinks keep the same promises."""

import os
import subprocess
import sys
from itertools import count

import pytest

from hopline.jobs.batch import parquet_sink, precomputed_sink
from hopline.testing.sinks import SinkSuite
from tests.features.conftest import redis_nodes, redis_server  # noqa: F401
from tests.jobs.batch import places

NUMBERS = count()

MOTO = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def aws(tmp_path_factory):
    """The address of what plays S3 and DynamoDB; credentials of nobody."""
    nowhere = str(tmp_path_factory.mktemp("aws") / "absent")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_ACCESS_KEY_ID", "nobody")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
        patch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_CONFIG_FILE", nowhere)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", nowhere)
        patch.setenv("NO_PROXY", "127.0.0.1")
        process = subprocess.Popen(
            [sys.executable, "-c", MOTO],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        url = f"http://127.0.0.1:{process.stdout.readline().strip()}"
        patch.setenv("AWS_ENDPOINT_URL", url)
        yield url
        process.communicate()


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


class TestRedis(SinkSuite):
    @pytest.fixture
    def place(self, redis_server):  # noqa: F811
        url = f"{redis_server.url}?prefix=p{next(NUMBERS)}:"
        wrong = (
            "redis://:secret@127.0.0.1:1",
            f"redis://:secret@127.0.0.1:{redis_server.port}",
            f"{url}&keep_s=soon",
            f"{url}&name=a:b",
            f"{url}&prfix=x",
        )
        place = places.StorePlace(url, wrong)
        place.resumes = 200
        return place


class TestRedisCluster(SinkSuite):
    @pytest.fixture
    def place(self, redis_nodes):  # noqa: F811
        url = f"redis+cluster://127.0.0.1:{redis_nodes[0].port}?prefix=p{next(NUMBERS)}:"
        place = places.StorePlace(url, ())
        place.resumes = 200
        return place


class TestDynamoDb(SinkSuite):
    @pytest.fixture
    def place(self, aws):
        query = f"region=eu-central-1&endpoint_url={aws}&create=true&timeout_ms=9000"
        place = places.StorePlace(f"dynamodb://results-{next(NUMBERS)}?{query}", ("dynamodb://absent",))
        place.resumes = 200
        return place
