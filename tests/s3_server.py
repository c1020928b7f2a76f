"""s3:// and dynamodb://, as moto's server plays it in a process of its own."""

import contextlib
import os
import subprocess
import sys

import boto3
import pytest

SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
REGION = "eu-central-1"


@contextlib.contextmanager
def s3_server(nowhere):
    """The server's URL; the environment names it meanwhile, with credentials that it accepts.

    Args:
        nowhere: path of a file that does not exist.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_ACCESS_KEY_ID", "nobody")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
        patch.setenv("AWS_DEFAULT_REGION", REGION)
        patch.setenv("AWS_CONFIG_FILE", nowhere)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", nowhere)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("NO_PROXY", "127.0.0.1")
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        url = f"http://127.0.0.1:{process.stdout.readline().strip()}"
        patch.setenv("AWS_ENDPOINT_URL", url)
        yield url
        process.communicate()


@contextlib.contextmanager
def bucket(endpoint, name):
    """A client of the server, and a new bucket."""
    client = boto3.client("s3", endpoint_url=endpoint)
    client.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})
    yield client
    client.close()
