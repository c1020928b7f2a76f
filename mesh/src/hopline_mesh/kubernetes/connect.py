"""Creates the watch of the cluster from the settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from hopline.errors import ConfigError
from hopline_mesh.kubernetes.credentials import ACCOUNT, Credentials, from_files, in_cluster
from hopline_mesh.kubernetes.feed import ChangeFeed
from hopline_mesh.kubernetes.watcher import KubernetesWatch
from hopline_mesh.scope import Scope
from hopline_mesh.server_access import is_sent_in_clear
from hopline_mesh.settings import MeshSettings


def kubernetes_watch(
    settings: MeshSettings, env: Mapping[str, str] = os.environ, account: Path = ACCOUNT
) -> KubernetesWatch:
    """Create the watch of the cluster.

    Raises:
        ConfigError: `kubernetes = require` without credentials for a cluster, or configured credentials
            cannot be read.
    """
    wanted = settings.kubernetes
    credentials: Credentials | None = None
    absent = ""
    if wanted.kubernetes != "never":
        if wanted.kubernetes_url:
            credentials = from_files(
                wanted.kubernetes_url,
                wanted.kubernetes_token_file or _if_file(account / "token"),
                wanted.kubernetes_ca_file or _if_file(account / "ca.crt"),
            )
        elif wanted.kubeconfig is not None:
            from hopline_mesh.kubernetes.kubeconfig import from_kubeconfig

            credentials = from_kubeconfig(wanted.kubeconfig)
        else:
            credentials = in_cluster(env, account)
        if credentials is None:
            absent = (
                "planned changes are unknown: not in a pod with a service account; "
                "set kubernetes_url or kubeconfig, or kubernetes = never"
            )
            if wanted.kubernetes == "require":
                raise ConfigError(f"kubernetes: {absent}")
        else:
            # Report invalid files at the start, not an hour later.
            token = credentials.token()
            credentials.tls()
            if token and is_sent_in_clear(credentials.url):
                raise ConfigError(
                    f"kubernetes_url: {credentials.url} would send the account's token unencrypted over "
                    "the network; use https://, or http:// only to this machine (`kubectl proxy`)"
                )
    return KubernetesWatch(
        credentials,
        ChangeFeed(stuck_after_s=wanted.stuck_after_s, calm_s=wanted.trouble_calm_s),
        scope=Scope(settings.source.namespaces, settings.source.exclude_namespaces),
        absent=absent,
    )


def _if_file(file: Path) -> Path | None:
    return file if file.is_file() else None
