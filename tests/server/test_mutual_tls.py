"""Client certificates over HTTP and gRPC, and new certificates without a restart."""

from __future__ import annotations

import datetime
import shutil
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from cryptography import x509

import hopline
from hopline.errors import PermissionDenied, Unauthenticated
from hopline.transports.proto import message
from tests.ingress.certificates import Authority
from tests.server.live_rig import until
from tests.servers import RunningServer, running, spawn

SHOP, OTHER = "spiffe://prod/shop", "spiffe://prod/other"
CLIENTS = f"""
[clients.shop]
score = ["sage"]
certificate = "{SHOP}"

[clients.reader]
read = true
subject = "reader"
"""


@dataclass
class World:
    server: RunningServer
    authority: Authority
    pairs: dict[str, tuple[Path, Path]]

    def trust(self, pair: str | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.authority.file)
        if pair is not None:
            context.load_cert_chain(*self.pairs[pair])
        return context

    def client(self, pair: str | None = None, **options: Any) -> hopline.Client:
        return hopline.Client(self.server.url, verify=self.trust(pair), retries=0, **options)

    def call(self, pair: str | None, model: str = "sage") -> tuple[str, str]:
        """(status, text) of an inference over gRPC."""
        request, response = message("inference.ModelInferRequest"), message("inference.ModelInferResponse")
        tensor = {
            "name": "node_ids",
            "datatype": "INT64",
            "shape": [1],
            "contents": {"int64_contents": [5]},
        }
        files = [path.read_bytes() for path in reversed(self.pairs[pair])] if pair else [None, None]
        credentials = grpc.ssl_channel_credentials(self.authority.file.read_bytes(), *files)
        with grpc.secure_channel(self.server.grpc, credentials) as channel:
            method = "/inference.GRPCInferenceService/ModelInfer"
            call = channel.unary_unary(method, request.SerializeToString, response.FromString)
            try:
                call(request(model_name=model, inputs=[tensor]), timeout=10)
            except grpc.RpcError as error:
                return error.code().name, error.details()
        return "OK", ""


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> tuple[Authority, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("mtls")
    authority = Authority(folder)
    cert, key = authority.for_localhost()
    (folder / "clients.toml").write_text(CLIENTS)
    return authority, {
        "tls__cert_file": cert,
        "tls__key_file": key,
        "tls__client_ca_file": authority.file,
        "auth__clients_file": folder / "clients.toml",
    }


@pytest.fixture(scope="module")
def world(settings: tuple[Authority, dict[str, Any]]) -> Iterator[World]:
    authority, given = settings
    stranger = Authority(authority.file.parent, "stranger")
    uri = x509.UniformResourceIdentifier
    pairs = {
        "shop": authority.sign("shop", uri(SHOP), x509.DNSName("shop.example")),
        "other": authority.sign("other", uri(OTHER)),
        "forged": stranger.sign("forged", uri(SHOP)),
        "server": authority.for_localhost("other-server"),
        "expired": authority.sign("expired", uri(SHOP), valid_for=datetime.timedelta(minutes=-1)),
    }
    with running(**given) as server:
        yield World(server, authority, pairs)


def test_a_certificate_is_its_client_over_both_transports(world: World) -> None:
    with world.client("shop") as client:
        for _ in range(3):  # also on a known connection
            assert client.score("sage", [1]).outputs["label"].tolist() == [1]
        with pytest.raises(PermissionDenied, match="'shop'"):
            client.score("link", pairs=[(1, 2)])
    assert world.call("shop") == ("OK", "")
    assert world.call("shop", "people")[0] == "PERMISSION_DENIED"


def test_a_large_body_is_read_from_a_client_with_a_certificate(world: World) -> None:
    """It is refused before it is read, from others."""
    body = b'{"nodes": [1], "key": "%b"}' % (b"x" * 100_000)
    target = f"{world.server.url}/v1/models/sage/score"
    for pair, status in (("shop", 200), (None, 401)):
        assert httpx.post(target, content=body, verify=world.trust(pair)).status_code == status


def test_a_certificate_of_no_client_has_no_permission(world: World) -> None:
    with world.client("other") as client, pytest.raises(PermissionDenied, match=f"certificate:{OTHER}"):
        client.score("sage", [1])
    assert world.call("other")[0] == "PERMISSION_DENIED"


def test_without_a_certificate_a_key_is_needed_and_probes_need_nothing(world: World) -> None:
    with world.client() as client, pytest.raises(Unauthenticated, match="or use a client certificate"):
        client.score("sage", [1])
    assert world.call(None)[0] == "UNAUTHENTICATED"
    assert httpx.get(f"{world.server.url}/readyz", verify=world.trust()).json() == {"ready": True}
    known = httpx.get(f"{world.server.url}/readyz", verify=world.trust("shop")).json()
    assert known["models"] == {"sage": "READY"}


@pytest.mark.parametrize("pair", ["forged", "server", "expired"])
def test_certificates_of_others_of_servers_and_expired_ones_are_refused(world: World, pair: str) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{world.server.url}/healthz", verify=world.trust(pair))
    assert world.call(pair)[0] == "UNAVAILABLE"
    assert httpx.get(f"{world.server.url}/healthz", verify=world.trust()).status_code == 200
    assert not [line for line in world.server.log if "Traceback" in line]


def test_the_description_names_certificates_as_credentials(world: World) -> None:
    found = httpx.get(f"{world.server.url}/openapi.json", verify=world.trust("shop")).json()
    assert found["components"]["securitySchemes"]["certificate"]["type"] == "mutualTLS"
    assert {"certificate": ["score"]} in found["paths"]["/v1/models/{model}/score"]["post"]["security"]


@pytest.mark.release
def test_a_required_certificate_is_needed_for_any_connection(
    world: World, settings: tuple[Authority, dict[str, Any]]
) -> None:
    with running(**settings[1], tls__client_certificates="required") as server:
        strict = World(server, world.authority, world.pairs)
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{server.url}/healthz", verify=strict.trust())
        assert httpx.get(f"{server.url}/healthz", verify=strict.trust("shop")).status_code == 200


def test_a_page_cannot_use_the_certificate_that_a_browser_has(world: World) -> None:
    page = {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}
    url = f"{world.server.url}/v1/models"
    with httpx.Client(verify=world.trust("shop")) as client:
        assert client.get(url).status_code == 200
        assert client.get(url, headers=page).status_code == 403
        # A page that has a key was given it; no page of another site has one.
        assert client.get(url, headers=page | {"x-api-key": "hopline_x_y"}).status_code == 401


def test_a_file_that_holds_no_authorities_is_reported(settings: tuple[Authority, dict[str, Any]]) -> None:
    given = settings[1] | {"tls__client_ca_file": settings[1]["tls__key_file"]}
    process = spawn(**given)
    _, error = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "tls.client_ca_file" in error
    assert "does not hold PEM certificates" in error


def serial(server: RunningServer, trust: ssl.SSLContext) -> int:
    """The serial number of the certificate that a new connection gets."""
    host, port = server.address.split(":")
    with (
        socket.create_connection((host, int(port))) as plain,
        trust.wrap_socket(plain, server_hostname="localhost") as encrypted,
    ):
        found = encrypted.getpeercert(binary_form=True)
        assert found is not None
        return x509.load_der_x509_certificate(found).serial_number


def test_new_certificates_are_used_without_a_restart(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.for_localhost()
    given = {"tls__cert_file": cert, "tls__key_file": key, "tls__client_ca_file": authority.file}
    with running(**given) as server:
        world = World(server, authority, {})
        trust = world.trust()
        first = serial(server, trust)
        with httpx.Client(verify=trust, base_url=server.url) as open_one:
            assert open_one.get("/healthz").status_code == 200
            new_cert, new_key = authority.for_localhost("renewed")
            shutil.copy(new_cert, cert)  # for a moment they do not fit together
            until(lambda: any("were not loaded" in line for line in server.log))
            assert serial(server, trust) == first
            shutil.copy(new_key, key)
            until(lambda: serial(server, trust) != first)
            assert open_one.get("/healthz").status_code == 200  # on its old connection
            assert world.call(None)[0] == "UNAUTHENTICATED"  # and gRPC has the new one
        second = Authority(tmp_path, "second")
        world.pairs["late"] = second.sign("late", common="late")
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{server.url}/v2", verify=world.trust("late"))
        with authority.file.open("ab") as file:
            file.write(second.file.read_bytes())
        trust = ssl.create_default_context(cafile=authority.file)
        trust.load_cert_chain(*world.pairs["late"])

        def is_trusted() -> bool:
            try:
                return httpx.get(f"{server.url}/v2", verify=trust).status_code == 200
            except httpx.TransportError:
                return False

        until(is_trusted)
