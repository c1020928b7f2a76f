"""Names in client certificates, and the clients that they are."""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from hopline.config.reader import load_config
from hopline.config.schema import TlsConfig
from hopline.errors import ConfigError, Unauthenticated
from hopline.ingress.certificates import TlsFiles
from hopline.ingress.clients_file import parse_clients
from hopline.ingress.exposure import check_exposure
from hopline.ingress.gatekeeper import Gatekeeper
from hopline.ingress.watched_file import Watched
from tests.ingress.certificates import Authority
from tests.ingress.clocks import Clock
from turnserve.peers import Peer, peer_of

END = "Nov 26 08:00:00 2036 GMT"
UNTIL = ssl.cert_time_to_seconds(END)


def certificate(*alternatives: tuple[str, str], common: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {"subject": ((("organizationName", "x"),), (("commonName", common),))}
    return found | {"notAfter": END} | ({"subjectAltName": alternatives} if alternatives else {})


@pytest.mark.parametrize(
    ("found", "names"),
    [
        (
            certificate(("DNS", "Shop.Example"), ("URI", "spiffe://p/shop")),
            ("spiffe://p/shop", "shop.example"),
        ),
        (certificate(("email", "ada@example")), ("ada@example",)),
        (
            certificate(
                ("email", "Ada@example"),
            ),
            ("Ada@example",),
        ),
        (certificate(common="Shop"), ("shop",)),
        (certificate(("DNS", "a.example"), common="admin"), ("a.example",)),
        (certificate(("DNS", "a\nb"), ("DNS", "b.example")), ("b.example",)),
        # A name whose form is that of another kind could be taken for the other.
        (certificate(("DNS", "spiffe://p/shop"), ("DNS", "b.example")), ("b.example",)),
        (certificate(("email", "spiffe://ada@p/shop"), ("email", "a@b")), ("a@b",)),
        (certificate(("URI", "shop.example"), ("URI", "urn:shop")), ("urn:shop",)),
        (certificate(("DNS", "ada@example"), ("DNS", "b.example")), ("b.example",)),
    ],
)
def test_names_are_those_of_the_alternative_name_or_else_the_common_name(
    found: dict[str, Any], names: tuple[str, ...]
) -> None:
    assert peer_of(found) == Peer(names, UNTIL)


@pytest.mark.parametrize(
    "found",
    [
        None,
        {},
        certificate(),
        certificate(("IP Address", "10.0.0.1")),
        certificate(common="spiffe://p/shop"),
        certificate(common="ada@example"),
        certificate(("DNS", "spiffe://p/shop")),
    ],
)
def test_a_certificate_without_a_usable_name_is_nobody(found: dict[str, Any] | None) -> None:
    assert peer_of(found) is None


@pytest.fixture
def tls(tmp_path: Path) -> dict[str, Any]:
    authority = Authority(tmp_path)
    cert, key = authority.for_localhost()
    return {"tls.cert_file": cert, "tls.key_file": key, "tls.client_ca_file": authority.file}


def gatekeeper(settings: dict[str, Any], clock: Clock, clients: Path | None = None) -> Gatekeeper:
    if clients is not None:
        clients.write_text('[clients.shop]\nscore = ["fraud"]\ncertificate = "spiffe://p/shop"\n')
        settings = settings | {"auth.clients_file": clients}
    return Gatekeeper(load_config(overrides=settings), now=clock, clock=clock.monotonic_ns)


def test_a_certificate_is_the_client_of_the_file_with_one_of_its_names(
    tls: dict[str, Any], tmp_path: Path
) -> None:
    clock = Clock()
    gate = gatekeeper(tls, clock, tmp_path / "clients.toml")
    shop = gate.identify(None, None, Peer(("other.example", "spiffe://p/shop"), clock() + 60))
    assert (shop.name, shop.may("score", "fraud")) == ("shop", True)
    other = gate.identify(None, None, Peer(("spiffe://p/other",), clock() + 60))
    assert (other.name, other.may("read", "fraud")) == ("certificate:spiffe://p/other", False)


def test_a_header_counts_before_the_certificate(tls: dict[str, Any], tmp_path: Path) -> None:
    clock = Clock()
    gate = gatekeeper(tls, clock, tmp_path / "clients.toml")
    with pytest.raises(Unauthenticated, match="unknown API key"):
        gate.identify(None, "hopline_absent", Peer(("spiffe://p/shop",), clock() + 60))


def test_an_expired_certificate_is_refused_on_an_open_connection(tls: dict[str, Any]) -> None:
    clock = Clock()
    gate = gatekeeper(tls, clock)
    peer = Peer(("a",), clock() + 60)
    assert gate.identify(None, None, peer).name == "certificate:a"
    clock.now += 60
    with pytest.raises(Unauthenticated, match="has expired"):
        gate.identify(None, None, peer)


def test_who_has_nothing_is_reported_certificates_where_they_count(tls: dict[str, Any]) -> None:
    with pytest.raises(Unauthenticated, match="or use a client certificate"):
        gatekeeper(tls, Clock()).identify(None, None)


def test_two_clients_cannot_have_one_certificate() -> None:
    text = '[clients.a]\ncertificate = "x"\n[clients.b]\ncertificate = "x"\n'
    with pytest.raises(ConfigError, match="'a' and 'b' have the same certificate"):
        parse_clients(text, "f")
    with pytest.raises(ConfigError, match="have the same certificate"):
        parse_clients(text.replace('"x"', '"X"', 1), "f")
    with pytest.raises(ConfigError, match="reserved for certificates"):
        parse_clients('[clients."certificate:a"]\n', "f")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tls.client_ca_file": "absent.pem"}, "does not exist"),
        ({"tls.client_certificates": "required"}, "also needs tls.client_ca_file"),
        ({"tls.client_ca_file": __file__}, "also needs tls.cert_file"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(overrides=settings)


def test_a_client_authority_is_authentication(tls: dict[str, Any]) -> None:
    check_exposure(load_config(overrides=tls | {"server.host": "0.0.0.0"}))
    with pytest.raises(ConfigError, match="contradicts"):
        check_exposure(load_config(overrides=tls | {"auth.allow_anonymous": True}))


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> bytes:
    """Complete a handshake in memory; returns the server's certificate (DER)."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(up, down, server_side=True)
    theirs = client.wrap_bio(down, up, server_hostname="localhost")
    for _ in range(4):
        for side in (theirs, ours):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    found = theirs.getpeercert(binary_form=True)
    assert found is not None
    return found


def test_an_authority_that_is_removed_is_no_longer_trusted(tmp_path: Path) -> None:
    authority, second = Authority(tmp_path), Authority(tmp_path, "second")
    cert, key = authority.for_localhost()
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(authority.file.read_bytes() + second.file.read_bytes())
    files = TlsFiles(
        TlsConfig(cert_file=cert, key_file=key, client_ca_file=trusted, client_certificates="required")
    )
    context = files.contexts("http/1.1")
    assert context is not None
    client = ssl.create_default_context(cafile=authority.file)
    client.load_cert_chain(*second.sign("ops", x509.DNSName("ops.example")))
    handshake(context(), client)
    trusted.write_bytes(authority.file.read_bytes())
    files.tick()
    with pytest.raises(ssl.SSLError, match="certificate verify failed"):
        handshake(context(), client)


@pytest.mark.parametrize("kinds", [("ec", "rsa"), ("rsa", "ec"), ("ec", "ec")])
def test_a_renewed_certificate_is_served_whatever_its_kind_of_key(
    tmp_path: Path, kinds: tuple[str, str]
) -> None:
    authority = Authority(tmp_path)
    (cert, key), renewed = (
        authority.for_localhost(f"server-{number}", rsa_key=kind == "rsa")
        for number, kind in enumerate(kinds)
    )
    files = TlsFiles(TlsConfig(cert_file=cert, key_file=key))
    context = files.contexts("h2")
    assert context is not None
    client = ssl.create_default_context(cafile=authority.file)
    client.set_alpn_protocols(["h2"])
    before = handshake(context(), client)
    shutil.copy(renewed[0], cert)
    shutil.copy(renewed[1], key)
    files.tick()
    after = handshake(context(), client)
    assert after == ssl.PEM_cert_to_DER_cert(renewed[0].read_text())
    assert after != before


@pytest.mark.parametrize(
    ("minutes", "reason"), [(-1, "certificate has expired"), (60, "")], ids=["expired", "valid"]
)
@pytest.mark.parametrize("client_certificates", ["optional", "required"])
def test_a_certificate_out_of_its_time_does_not_replace_a_valid_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, minutes: int, reason: str, client_certificates: Any
) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.for_localhost()
    config = TlsConfig(
        cert_file=cert,
        key_file=key,
        client_ca_file=authority.file,
        client_certificates=client_certificates,
    )
    files = TlsFiles(config)
    context = files.contexts("http/1.1")
    assert context is not None
    before = context()
    renewed = authority.sign(
        "renewed", common="localhost", server=True, valid_for=datetime.timedelta(minutes=minutes)
    )
    shutil.copy(renewed[0], cert)
    shutil.copy(renewed[1], key)
    files.tick()
    assert (context() is before) == bool(reason)
    assert reason in caplog.text
    if reason:
        with pytest.raises(ConfigError, match=f"tls.cert_file: .*{reason}"):
            TlsFiles(config).contexts("http/1.1")


def test_an_encrypted_key_and_a_pipe_are_refused_without_waiting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """OpenSSL would ask the terminal for a pass phrase, and a pipe has no end."""
    authority = Authority(tmp_path)
    cert, key = authority.for_localhost()
    files = TlsFiles(TlsConfig(cert_file=cert, key_file=key))
    context = files.contexts("http/1.1")
    assert context is not None
    before, content = context(), key.read_bytes()
    private = serialization.load_pem_private_key(content, None)
    key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    files.tick()
    assert "tls.key_file do not hold a PEM certificate and key" in caplog.text
    caplog.clear()
    key.unlink()
    os.mkfifo(key)
    files.tick()
    assert "is a pipe, a socket or a device" in caplog.text
    assert context() is before


def test_a_file_of_the_same_size_and_time_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "clients.toml"
    file.write_text("a = 1")
    stat = file.stat()
    watched = Watched(file)
    file.write_text("a = 2")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert watched.changed()
    assert not watched.changed()


def test_files_that_do_not_fit_together_are_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.for_localhost()
    new_cert, new_key = authority.for_localhost("renewed")
    files = TlsFiles(TlsConfig(cert_file=cert, key_file=key))
    context = files.contexts("http/1.1")
    assert context is not None
    before = context()
    shutil.copy(new_cert, cert)  # the key follows a moment later
    files.tick()
    assert "the changed TLS files were not loaded" in caplog.text
    assert "KEY_VALUES_MISMATCH" in caplog.text
    assert context() is before
    files.tick()
    shutil.copy(new_key, key)
    caplog.clear()
    caplog.set_level("INFO")
    files.tick()
    assert "TLS files reloaded" in caplog.text
