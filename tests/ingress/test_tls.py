"""Certificate files that change while the server runs."""

from __future__ import annotations

import contextlib
import shutil
import ssl
from pathlib import Path

import pytest
from cryptography import x509

from hopline.config.schema import TlsConfig
from hopline.ingress.tls import TlsFiles
from tests.ingress.certificates import Authority


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
