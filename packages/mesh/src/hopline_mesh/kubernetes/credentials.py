"""The address of the API server, and credentials for it.

In a pod these are the service account: an address in the environment, and a token and a certificate as
files, which Kubernetes replaces while the pod runs. Elsewhere see `kubeconfig`.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hopline_mesh.server_access import read_token, trusted

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class Credentials:
    """The address of an API server, and credentials.

    Attributes:
        url: its address.
        token: returns the present bearer token, "" for none; called before each request, because it
            changes.
        tls: creates a TLS context, None for plain HTTP; called again after a failed connection.
    """

    url: str
    token: Callable[[], str]
    tls: Callable[[], ssl.SSLContext | None]


def in_cluster(env: Mapping[str, str] = os.environ, account: Path = ACCOUNT) -> Credentials | None:
    """Return credentials of the pod's service account; None outside of a cluster, or without a token."""
    host, port = env.get("KUBERNETES_SERVICE_HOST", ""), env.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (account / "token").is_file():
        return None
    address = f"[{host}]" if ":" in host else host
    return from_files(f"https://{address}:{port}", account / "token", account / "ca.crt")


def from_files(url: str, token_file: Path | None, ca_file: Path | None) -> Credentials:
    """Return credentials from files.

    Args:
        url: of the API server; with http:// no certificate is checked (`kubectl proxy`, tests).
        token_file: None sends no token.
        ca_file: PEM; None uses the system's certificates.
    """

    def token() -> str:
        return "" if token_file is None else read_token(token_file, "the token of Kubernetes")

    def tls() -> ssl.SSLContext | None:
        if url.startswith("http://"):
            return None
        return trusted(ca_file, "the certificate of Kubernetes")

    return Credentials(url.rstrip("/"), token, tls)
