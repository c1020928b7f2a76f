"""Watches all needed objects of a cluster, for the loop of the watch.

Without a cluster, or without permissions, the watch of the mesh continues and reports gaps.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from hopline.errors import ConfigError
from hopline_mesh.changes import Context
from hopline_mesh.kubernetes.api import Api, Timeouts
from hopline_mesh.kubernetes.credentials import ACCOUNT, Credentials, from_files, in_cluster
from hopline_mesh.kubernetes.feed import ChangeFeed
from hopline_mesh.kubernetes.reflector import Pace, Reflector
from hopline_mesh.kubernetes.resources import NODE_EVENTS, RESOURCES
from hopline_mesh.scope import Scope
from hopline_mesh.server_access import is_sent_in_clear
from hopline_mesh.settings import KubernetesSettings, MeshSettings
from hopline_mesh.snapshot import Gap


class KubernetesWatch:
    """Watches a cluster while it is open (`async with`).

    Args:
        credentials: None watches nothing, and `gaps` gives the reason.
        feed: interprets the objects; None creates one.
        scope: namespaces to watch. If all are plain names, the account needs permissions only in these.
        absent: the reason for missing credentials, for people; "" if that is intended.
    """

    def __init__(
        self,
        credentials: Credentials | None,
        feed: ChangeFeed | None = None,
        *,
        scope: Scope | None = None,
        absent: str = "",
        pace: Pace | None = None,
        timeouts: Timeouts | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.feed = feed or ChangeFeed()
        self._absent = absent
        self._clock = clock
        self._api = Api(credentials, timeouts) if credentials is not None else None
        self._reflectors: list[Reflector] = []
        self._tasks: list[asyncio.Task[None]] = []
        if self._api is None:
            return
        scope, pace = scope or Scope(), pace or Pace()
        for resource in RESOURCES:
            for namespace in scope.places():
                if namespace is not None and resource is NODE_EVENTS:
                    continue  # events of nodes are not in the namespaces that users name
                self._reflectors.append(
                    Reflector(self._api, resource, namespace, scope, self.feed, pace, clock=clock)
                )

    async def __aenter__(self) -> Self:
        self._tasks = [
            asyncio.create_task(each.run(), name=f"kubernetes {each.name}") for each in self._reflectors
        ]
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self._api is not None:
            await self._api.close()

    async def wait_listed(self, timeout_s: float) -> bool:
        """Wait until all permitted objects were listed once, or until the timeout.

        Returns: whether everything was listed.
        """
        waits = [each.answered.wait() for each in self._reflectors]
        try:
            await asyncio.wait_for(asyncio.gather(*waits), timeout_s)
        except TimeoutError:
            return False
        return all(each.synced.is_set() for each in self._reflectors)

    def context(self, now_s: float) -> Context:
        """Return the known planned changes and troubles."""
        return self.feed.context(now_s)

    def gaps(self) -> tuple[Gap, ...]:
        """Return a gap for each resource that is unavailable at present, with the reason."""
        gaps = [Gap("kubernetes", self._absent)] if self._absent else []
        for each in self._reflectors if self._tasks else ():
            if reason := each.missing():
                gaps.append(Gap(f"kubernetes.{each.name}", reason))
        return tuple(gaps)


def kubernetes_watch(
    settings: MeshSettings, env: Mapping[str, str] = os.environ, account: Path = ACCOUNT
) -> KubernetesWatch:
    """Create the watch of the cluster.

    Raises:
        ConfigError: `kubernetes = require` without credentials for a cluster, or configured credentials
            cannot be read.
    """
    wanted = settings.kubernetes
    credentials = None if wanted.kubernetes == "never" else _credentials(wanted, env, account)
    absent = ""
    if credentials is not None:
        # Report invalid files at the start, not an hour later.
        token = credentials.token()
        credentials.tls()
        if token and is_sent_in_clear(credentials.url):
            raise ConfigError(
                f"kubernetes_url: {credentials.url} would send the account's token unencrypted over "
                "the network; use https://, or http:// only to this machine (`kubectl proxy`)"
            )
    elif wanted.kubernetes != "never":
        absent = (
            "planned changes are unknown: not in a pod with a service account; "
            "set kubernetes_url or kubeconfig, or kubernetes = never"
        )
        if wanted.kubernetes == "require":
            raise ConfigError(f"kubernetes: {absent}")
    return KubernetesWatch(
        credentials,
        ChangeFeed(stuck_after_s=wanted.stuck_after_s, calm_s=wanted.trouble_calm_s),
        scope=Scope(settings.source.namespaces, settings.source.exclude_namespaces),
        absent=absent,
    )


def _credentials(wanted: KubernetesSettings, env: Mapping[str, str], account: Path) -> Credentials | None:
    if wanted.kubernetes_url:
        token, ca = (file if file.is_file() else None for file in (account / "token", account / "ca.crt"))
        token, ca = wanted.kubernetes_token_file or token, wanted.kubernetes_ca_file or ca
        return from_files(wanted.kubernetes_url, token, ca)
    if wanted.kubeconfig is not None:
        from hopline_mesh.kubernetes.kubeconfig import from_kubeconfig

        return from_kubeconfig(wanted.kubeconfig)
    return in_cluster(env, account)
