from __future__ import annotations

import http.client
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import numpy as np
import pytest
import tritonclient.grpc

import hopline
from tests.servers import RunningServer, running, spawn


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    command += ["-subj", "/CN=localhost", "-addext", names, "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


@pytest.fixture(scope="module")
def server(pair: tuple[Path, Path]) -> Iterator[RunningServer]:
    with running(tls__cert_file=pair[0], tls__key_file=pair[1]) as started:
        yield started


def test_https_is_served_and_http_is_not(server: RunningServer, pair: tuple[Path, Path]) -> None:
    assert server.url.startswith("https://")
    trust = ssl.create_default_context(cafile=str(pair[0]))
    with hopline.Client(server.url, verify=trust) as client:
        assert client.score("sage", [1]).outputs["label"].tolist() == [1]
    with pytest.raises(httpx.TransportError):
        httpx.get(server.url.replace("https", "http"))
    with (
        hopline.Client(server.url, retries=0) as stranger,
        pytest.raises(hopline.HoplineError, match="certificate"),
    ):
        stranger.score("sage", [1])


def test_a_server_stops_while_clients_keep_their_connections(pair: tuple[Path, Path]) -> None:
    """A client that waits for its next request does not answer the end of TLS (RFC 8446, 6.1)."""
    trust = ssl.create_default_context(cafile=str(pair[0]))
    with running(tls__cert_file=pair[0], tls__key_file=pair[1], server__drain_timeout_s=600) as started:
        port = int(started.url.rsplit(":", 1)[1])
        kept = [http.client.HTTPSConnection("127.0.0.1", port, context=trust) for _ in range(3)]
        for connection in kept:
            connection.request("GET", "/v1/models")
            assert len(connection.getresponse().read()) > 100
        started.process.terminate()
        assert started.process.wait(60) == 0
        for connection in kept:
            assert connection.sock.recv(1) == b""  # an end, not a reset
            connection.close()


def test_grpc_is_encrypted(server: RunningServer, pair: tuple[Path, Path]) -> None:
    credentials = grpc.ssl_channel_credentials(pair[0].read_bytes())
    with tritonclient.grpc.InferenceServerClient(server.grpc, ssl=True, creds=credentials) as client:
        tensor = tritonclient.grpc.InferInput("node_ids", [1], "INT64")
        tensor.set_data_from_numpy(np.array([5]))
        assert client.infer("sage", [tensor]).as_numpy("label").tolist() == [1]


def test_a_key_that_does_not_fit_is_reported(pair: tuple[Path, Path]) -> None:
    process = spawn(tls__cert_file=pair[0], tls__key_file=pair[0])
    _, error = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "do not hold a PEM certificate and key" in error


@pytest.mark.parametrize(
    ("group", "is_served"), [("P-256", True), ("X25519:P-256", True), ("ffdhe2048", False)]
)
def test_a_client_cannot_choose_an_expensive_key_exchange(
    server: RunningServer, pair: tuple[Path, Path], group: str, is_served: bool
) -> None:
    """Finite fields take up to 200 ms of the loop."""
    command = ["openssl", "s_client", "-connect", server.address, "-CAfile", str(pair[0]), "-groups", group]
    done = subprocess.run(command, input="", capture_output=True, text=True, timeout=30)
    assert ("BEGIN CERTIFICATE" in done.stdout) is is_served
