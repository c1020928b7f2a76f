"""Changing what a server serves: the calls behind `hopline models` and `hopline rollout`.

Never repeated automatically: a call whose answer was lost may have been carried out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from hopline.client.sync import Client
from hopline.client.wire import read_json


class Admin:
    """Versions and rollouts of a server, in Python.

    Args:
        client: of the server; its key or token needs the permission `admin`.

    All methods raise the server's errors as the same classes: ModelNotFound, Conflict, ArtifactError, …
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def index(self) -> list[dict[str, str]]:
        """Every version of every model in the repository: {"name", "version", "state", "reason"}."""
        return self._post("/v2/repository/index", {})  # type: ignore[no-any-return]

    def load(
        self,
        model: str,
        version: str | None = None,
        *,
        graph: str = "",
        groups: Iterable[str] = (),
        serve: bool = True,
    ) -> None:
        """Load a version (None: the newest) and let it serve.

        Args:
            graph: folder of a snapshot on the server's machine, where it is not the server's own.
            groups: feature groups as "<node type>=<group>".
            serve: False only makes it available by name.
        """
        parameters: dict[str, Any] = {"serve": serve}
        if version is not None:
            parameters["version"] = version
        if graph:
            parameters["graph"] = graph
        if groups := list(groups):
            parameters["groups"] = groups
        self._post(f"/v2/repository/models/{quote(model, safe='')}/load", {"parameters": parameters})

    def unload(self, model: str, version: str | None = None) -> None:
        """Unload one version, or the whole model."""
        parameters = {} if version is None else {"version": version}
        self._post(f"/v2/repository/models/{quote(model, safe='')}/unload", {"parameters": parameters})

    def begin_rollout(
        self, model: str, version: str, kind: str = "canary", **options: Any
    ) -> dict[str, Any]:
        """Begin a rollout; options are the fields of `hopline.rollout.rollout.RolloutRequest`."""
        body = {"model": model, "version": version, "kind": kind, **options}
        return self._post("/v1/rollouts", body)  # type: ignore[no-any-return]

    def rollout(self, model: str) -> dict[str, Any]:
        """A model's versions, the rollout under way and past ones."""
        return read_json(self._client.send("GET", f"/v1/rollouts/{quote(model, safe='')}"))  # type: ignore[no-any-return]

    def rollouts(self) -> list[dict[str, Any]]:
        """The rollouts of every model."""
        return read_json(self._client.send("GET", "/v1/rollouts"))["rollouts"]  # type: ignore[no-any-return]

    def decide(self, model: str, verb: str, reason: str = "") -> dict[str, Any]:
        """ "promote", "rollback", "pause", "resume", "advance" or "end"; returns what `rollout` does.

        Without a rollout under way, "rollback" returns to the version that served before.
        """
        path = f"/v1/rollouts/{quote(model, safe='')}/{quote(verb, safe='')}"
        return self._post(path, {"reason": reason})  # type: ignore[no-any-return]

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        return read_json(self._client.send("POST", path, body, retries=0))
