"""The names that a verified client certificate gives its holder.

TLS verifies the certificate before its names are read here.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

#: Longest name; DNS names have 253 characters, and SPIFFE allows 2048 for an id.
_MAX_LENGTH = 2048
#: Kinds of subject alternative names that identify a client, in the order of preference.
_KINDS = ("URI", "DNS", "email")


def kind_of(name: str) -> str:
    """Return the kind of a client's name, which its form tells: URIs have a colon, addresses an `@`.

    A name of a certificate whose kind and form differ is not used, so that no DNS or common name can equal
    a SPIFFE id.
    """
    return "URI" if ":" in name else "email" if "@" in name else "DNS"


class Peer(NamedTuple):
    """The holder of a client certificate.

    Attributes:
        names: never empty; the preferred one first.
        until: end of the certificate's validity, seconds since the epoch.
    """

    names: tuple[str, ...]
    until: float


def peer_of(certificate: Mapping[str, Any] | None) -> Peer | None:
    """Return the holder of a certificate.

    Names are the URIs (such as SPIFFE ids), DNS names and e-mail addresses of the subject alternative name.
    Without one, the name is the common name of the subject, which counts as a DNS name.

    Args:
        certificate: in the form of `ssl.SSLSocket.getpeercert`; empty or None if the client sent none.

    Returns: None without a certificate, or for one without a usable name.
    """
    if not certificate:
        return None
    names = tuple(
        name for name in _names(certificate) if name.isprintable() and 0 < len(name) <= _MAX_LENGTH
    )
    return Peer(names, ssl.cert_time_to_seconds(certificate["notAfter"])) if names else None


def peer_of_transport(transport: asyncio.BaseTransport) -> Peer | None:
    """Return the holder of a connection's client certificate; None without one, or without TLS."""
    tls = transport.get_extra_info("ssl_object")
    return None if tls is None else peer_of(tls.getpeercert())


def normalized(name: str) -> str:
    """Return the form in which names are compared: only URIs and e-mail addresses depend on case."""
    return name.lower() if kind_of(name) == "DNS" else name


def _names(certificate: Mapping[str, Any]) -> Iterator[str]:
    alternatives = certificate.get("subjectAltName", ())
    for kind in _KINDS:
        for found, value in alternatives:
            if found == kind == kind_of(value):
                yield normalized(value)
    if not alternatives:
        for part in certificate.get("subject", ()):
            for name, value in part:
                if name == "commonName" and kind_of(value) == "DNS":
                    yield normalized(value)
