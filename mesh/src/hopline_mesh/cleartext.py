"""Tokens on unencrypted connections."""

from __future__ import annotations

import ipaddress
import logging
from urllib.parse import urlsplit

logger = logging.getLogger("hopline_mesh")


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
