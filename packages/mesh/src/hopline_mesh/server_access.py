"""Tokens and certificates for the servers that the watch connects to."""

from __future__ import annotations

import ipaddress
import logging
import re
import ssl
from pathlib import Path
from urllib.parse import urlsplit

from hopline.errors import ConfigError

logger = logging.getLogger("hopline_mesh")


def read_token(file: Path, setting: str) -> str:
    """Read a bearer token. Call it for each request, because tokens are renewed.

    Args:
        setting: that names the file, for messages.

    Raises:
        ConfigError: the file cannot be read, is empty, or has characters that no token has.
    """
    try:
        token = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise ConfigError(f"{setting}: {file} cannot be read: {reason}") from None
    if not token:
        raise ConfigError(f"{setting}: {file} is empty")
    if not re.fullmatch(r"[!-~]+", token):
        raise ConfigError(f"{setting}: the token in {file} has blanks or other invalid characters")
    return token


def trusted(ca_file: Path | None, setting: str) -> ssl.SSLContext:
    """Return a context that trusts the PEM certificates in a file; None: those of the system.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{setting}: {ca_file} cannot be read as PEM certificates: {error}") from None


def is_sent_in_clear(url: str) -> bool:
    """Return whether requests to a URL leave this machine unencrypted."""
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    try:
        is_here = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_here = host == "localhost"
    return parts.scheme == "http" and not is_here


def warn_of_token(setting: str, url: str) -> None:
    """Log a warning if a token is configured for a URL and others in the network can read it."""
    if is_sent_in_clear(url):
        logger.warning(
            "%s: the token is sent unencrypted to %s; use https:// if the server has it", setting, url
        )
