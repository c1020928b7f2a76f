"""Checks the listen address: a server without authentication is reachable by others only if configured."""

from __future__ import annotations

import ipaddress
import logging
import socket

from hopline.config.schema import Config
from hopline.errors import ConfigError

#: Settings of the keys of tokens, of which one may be set.
_KEYS = ("jwt_key_file", "jwt_jwks_file", "jwt_jwks_url", "jwt_discovery")

logger = logging.getLogger(__name__)


def check_exposure(config: Config) -> None:
    """Refuse a server that others can reach without authentication, unless it is configured.

    Raises: ConfigError: contradictory settings, or an address that others can reach without
        authentication.
    """
    auth, host = config.auth, config.server.host
    _check_auth(config)
    if is_loopback(host):
        return
    if config.authenticates:
        if not config.tls.enabled:
            logger.warning(
                "keys and tokens are sent unencrypted to server.host %r: set tls.cert_file and "
                "tls.key_file, or terminate TLS directly in front of this server",
                host,
            )
    elif not auth.allow_anonymous:
        raise ConfigError(
            f"server.host: {host!r} can be reached by other machines without authentication; set "
            "auth.clients_file (create it with `hopline auth new-key`), auth.jwt_key_file or "
            "tls.client_ca_file, or auth.allow_anonymous = true if the network keeps strangers out"
        )


def is_loopback(host: str, setting: str = "server.host") -> bool:
    """Return True if only this machine reaches an address or name.

    Args:
        host: address or name.
        setting: its setting, for errors.

    Raises: ConfigError: the host is neither.
    """
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise ConfigError(f"{setting}: {host!r} is not an address: {error.strerror}") from None
    return all(ipaddress.ip_address(str(item[4][0]).partition("%")[0]).is_loopback for item in found)


def _check_auth(config: Config) -> None:
    auth = config.auth
    if auth.allow_anonymous and config.authenticates:
        raise ConfigError(
            "auth.allow_anonymous: contradicts auth.clients_file, auth.jwt_* and tls.client_ca_file, which "
            "require authentication; set one or the other"
        )
    given = {name: bool(getattr(auth, name)) for name in _KEYS}
    named = [f"auth.{name}" for name, is_set in given.items() if is_set]
    if len(named) > 1:
        raise ConfigError(f"{named[0]}: set it or {named[1]}, not both")
    for name in ("jwt_issuer", "jwt_audience"):
        if bool(getattr(auth, name)) > auth.tokens:
            *others, last = (f"auth.{key}" for key in _KEYS)
            raise ConfigError(f"auth.{name}: also needs {', '.join(others)} or {last}")
        if bool(getattr(auth, name)) < auth.tokens:
            raise ConfigError(
                f"auth.{name}: must be set for tokens: without it, tokens of others would be accepted"
            )
    if auth.jwt_ca_file is not None and not auth.is_remote:
        raise ConfigError("auth.jwt_ca_file: also needs auth.jwt_jwks_url or auth.jwt_discovery")
