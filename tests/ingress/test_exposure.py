"""A server that strangers can reach asks who they are, or was told not to."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from hopline.config.schema import Config
from hopline.errors import ConfigError
from hopline.ingress.exposure import check_exposure, is_loopback


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
    ],
)
def test_addresses_that_only_this_machine_reaches(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_a_name_that_does_not_resolve_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"server.host: 'no.such.name.invalid' is not an address"):
        check_exposure(Config().replace(server__host="no.such.name.invalid"))


def test_an_exposed_server_without_authentication_is_refused(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    check_exposure(Config())
    exposed = Config().replace(server__host="0.0.0.0")
    message = "server.host: '0.0.0.0'.*auth.clients_file.*auth.jwt_key_file.*auth.allow_anonymous = true"
    with pytest.raises(ConfigError, match=message):
        check_exposure(exposed)
    check_exposure(exposed.replace(auth__allow_anonymous=True))
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        check_exposure(exposed.replace(auth__clients_file=tmp_path / "clients.toml"))
    assert "unencrypted" in caplog.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clients_file": "c", "allow_anonymous": True}, "auth.allow_anonymous: contradicts"),
        ({"jwt_key_file": "a", "jwt_jwks_file": "b"}, "auth.jwt_key_file: set it or"),
        ({"jwt_key_file": "a", "jwt_audience": "h"}, "auth.jwt_issuer: must be set"),
        ({"jwt_jwks_file": "a", "jwt_issuer": "h"}, "auth.jwt_audience: must be set"),
        ({"jwt_issuer": "i", "jwt_audience": "a"}, "auth.jwt_issuer: also needs auth.jwt_key_file"),
        ({"jwt_audience": "a"}, "auth.jwt_audience: also needs auth.jwt_key_file"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, Any], message: str) -> None:
    config = Config().replace(**{f"auth__{name}": value for name, value in settings.items()})
    with pytest.raises(ConfigError, match=message):
        check_exposure(config)
