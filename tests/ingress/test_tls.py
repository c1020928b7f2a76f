"""Certificate files that change while they are loaded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hopline.config.schema import TlsConfig
from hopline.ingress import tls
from hopline.ingress.tls import TlsFiles
from tests.ingress.certificates import Authority


def test_an_authority_that_is_removed_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """OpenSSL only adds authorities to a context."""
    authority, second = Authority(tmp_path), Authority(tmp_path, "second")
    cert, key = authority.for_localhost()
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(authority.file.read_bytes())
    files = TlsFiles(TlsConfig(cert_file=cert, key_file=key, client_ca_file=trusted))
    files.context("http/1.1")
    trusted.write_bytes(authority.file.read_bytes() + second.file.read_bytes())
    files.tick()
    assert "only after a restart" not in caplog.text
    trusted.write_bytes(second.file.read_bytes())
    files.tick()
    assert "1 certificates of authorities are no longer in tls.client_ca_file" in caplog.text


def test_files_that_are_replaced_between_check_and_load_are_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.for_localhost()
    new_cert, new_key = authority.for_localhost("renewed")
    files = TlsFiles(TlsConfig(cert_file=cert, key_file=key))
    assert files.context("http/1.1") is not None
    checked = tls.tls_context

    def check_then_replace(config: TlsConfig) -> object:
        found = checked(config)
        shutil.copy(new_cert, cert)  # the key follows a moment later
        return found

    cert.touch()
    with monkeypatch.context() as patch:
        patch.setattr(tls, "tls_context", check_then_replace)
        files.tick()
    assert "the changed TLS files were not loaded: [X509: KEY_VALUES_MISMATCH]" in caplog.text
    files.tick()
    shutil.copy(new_key, key)
    caplog.clear()
    caplog.set_level("INFO")
    files.tick()
    assert "TLS files reloaded" in caplog.text
