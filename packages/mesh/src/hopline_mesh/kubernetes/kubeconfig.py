"""Credentials from a kubeconfig file, for development: from a workstation to a cluster.

Supports contexts with certificates, tokens, token files and credential plugins (`exec`), as of
https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/ and client-authentication.v1.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import os
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from hopline.errors import ConfigError
from hopline_mesh.kubernetes.credentials import Credentials, from_files

#: Timeout of a credential plugin, which may call a cloud API.
PLUGIN_S = 60.0
#: Tokens are renewed this long before they expire.
EARLY_S = 60.0


def from_kubeconfig(file: Path, clock: Callable[[], float] = time.time) -> Credentials:
    """Return the credentials of the current context of a kubeconfig file.

    Args:
        clock: Unix seconds, for tokens that expire.

    Raises:
        ConfigError: the file, or a file that it names, cannot be read or is invalid.
    """
    import yaml

    try:
        tree = yaml.safe_load(file.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{file}: cannot be read as a kubeconfig file: {error}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{file}: not a kubeconfig file")
    name = tree.get("current-context") or ""
    chosen = _entry(tree, "contexts", "context", name, file)
    cluster = _entry(tree, "clusters", "cluster", chosen.get("cluster", ""), file)
    user = _entry(tree, "users", "user", chosen["user"], file) if chosen.get("user") else {}
    url = cluster.get("server")
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise ConfigError(f"{file}: cluster {chosen.get('cluster')!r} has no server")
    plugin = _Plugin(user["exec"], cluster, file, clock) if isinstance(user.get("exec"), dict) else None

    def token() -> str:
        if plugin is not None:
            return plugin.status().token
        if user.get("tokenFile"):
            return from_files(url, file.parent / str(user["tokenFile"]), None).token()
        return str(user.get("token", ""))

    def tls() -> ssl.SSLContext | None:
        if url.startswith("http://"):
            return None
        certificate, key = _pem(user, "client-certificate", file), _pem(user, "client-key", file)
        if plugin is not None and plugin.status().client_certificate_data:
            certificate = plugin.status().client_certificate_data.encode()
            key = plugin.status().client_key_data.encode()
        try:
            found = ssl.create_default_context(
                cadata=_pem(cluster, "certificate-authority", file).decode("ascii") or None
            )
            if cluster.get("insecure-skip-tls-verify"):
                found.check_hostname = False
                found.verify_mode = ssl.CERT_NONE
            if certificate and key:
                # OpenSSL reads certificates only from files.
                with tempfile.NamedTemporaryFile() as both:
                    both.write(certificate + b"\n" + key)
                    both.flush()
                    found.load_cert_chain(both.name)
        except (ssl.SSLError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file}: certificates of context {name!r}: {error}") from None
        return found

    return Credentials(url.rstrip("/"), token, tls)


def _entry(tree: dict[str, Any], group: str, inside: str, name: Any, file: Path) -> dict[str, Any]:
    for each in tree.get(group) or ():
        if isinstance(each, dict) and each.get("name") == name and isinstance(each.get(inside), dict):
            found: dict[str, Any] = each[inside]
            return found
    raise ConfigError(f"{file}: no {inside} named {name!r}")


def _pem(part: Mapping[str, Any], name: str, file: Path) -> bytes:
    """Return a certificate or key, given inline or as a file; empty if it is not given."""
    try:
        if part.get(f"{name}-data"):
            return base64.b64decode(part[f"{name}-data"], validate=True)
        return (file.parent / str(part[name])).read_bytes() if part.get(name) else b""
    except (OSError, binascii.Error, TypeError) as error:
        raise ConfigError(f"{file}: {name}: {error}") from None


class _Status(msgspec.Struct, rename="camel"):
    """The credentials that a plugin prints."""

    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class _Printed(msgspec.Struct):
    status: _Status


class _Plugin:
    """A program that prints credentials, as cloud providers have; run again when they expire."""

    def __init__(
        self, spec: Mapping[str, Any], cluster: Mapping[str, Any], file: Path, clock: Callable[[], float]
    ) -> None:
        self._file = file
        self._clock = clock
        command = str(spec.get("command", ""))
        # A path with a slash is relative to the file; a plain name is searched in PATH.
        self._command = [str(file.parent / command) if "/" in command else command]
        self._command += [str(each) for each in spec.get("args") or ()]
        self._env = {str(each["name"]): str(each["value"]) for each in spec.get("env") or ()}
        info: dict[str, Any] = {
            "kind": "ExecCredential",
            "apiVersion": spec.get("apiVersion", "client.authentication.k8s.io/v1"),
            "spec": {"interactive": False},
        }
        if spec.get("provideClusterInfo"):
            info["spec"]["cluster"] = {
                "server": cluster["server"],
                "certificate-authority-data": cluster.get("certificate-authority-data"),
            }
        self._info = json.dumps(info)
        self._status = _Status()
        self._until_s = -1.0

    def status(self) -> _Status:
        if self._clock() < self._until_s:
            return self._status
        env = {**os.environ, **self._env, "KUBERNETES_EXEC_INFO": self._info}
        program = f"{self._file}: {self._command[0]}"
        try:
            ran = subprocess.run(self._command, env=env, capture_output=True, timeout=PLUGIN_S, check=True)
            self._status = msgspec.json.decode(ran.stdout, type=_Printed).status
        except subprocess.CalledProcessError as error:
            output = error.stderr.decode("utf-8", "replace").strip()[-300:]
            raise ConfigError(f"{program} exited with {error.returncode}: {output}") from None
        except (OSError, subprocess.TimeoutExpired, msgspec.DecodeError, ValueError) as error:
            raise ConfigError(f"{program} returned no credentials: {error}") from None
        until = self._status.expiration_timestamp
        self._until_s = math.inf if until is None else until.timestamp() - EARLY_S
        return self._status
