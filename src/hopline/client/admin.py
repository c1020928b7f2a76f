"""Administration of a server: the calls behind `hopline models` and `hopline rollout`.

Calls are never retried automatically: a call without a response may have been carried out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from hopline.client.sync import Client
from hopline.client.wire import read_json


class Admin:
    """Versions and rollouts of a server.

    Args:
        client: connected to the server; its key or token needs the permission `admin`.

    All methods raise the server's errors as the same classes: ModelNotFound, Conflict, ArtifactError, …
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def index(self) -> list[dict[str, str]]:
        """Return every version of every model in the repository: {"name", "version", "state", "reason"}."""
        return self._post("/v2/repository/index", {})  # type: ignore[no-any-return]

    def load(
        self,
        model: str,
        version: str | None = None,
        *,
        graph: str = "",
        groups: Iterable[str] = (),
        serve: bool = True,
        force: bool = False,
    ) -> None:
        """Load a version (None: the newest) and serve it.

        Args:
            graph: folder of a snapshot on the server's machine, or its address; "" for the server's own.
            groups: feature groups as "<node type>=<group>".
            serve: False only makes it available by its version.
            force: serve it though it refuses requests that callers send now.
        """
        parameters: dict[str, Any] = {"serve": serve}
        if force:
            parameters["force"] = True
        if version is not None:
            parameters["version"] = version
        if graph:
            parameters["graph"] = graph
        if groups := list(groups):
            parameters["groups"] = groups
        self._post(f"/v2/repository/models/{quote(model, safe='')}/load", {"parameters": parameters})

    def unload(self, model: str, version: str | None = None) -> None:
        """Unload a version, or all versions of a model."""
        parameters = {} if version is None else {"version": version}
        self._post(f"/v2/repository/models/{quote(model, safe='')}/unload", {"parameters": parameters})

    def begin_rollout(
        self, model: str, version: str, kind: str = "canary", **options: Any
    ) -> dict[str, Any]:
        """Begin a rollout; options are the fields of `hopline.rollout.rollout.RolloutRequest`."""
        body = {"model": model, "version": version, "kind": kind, **options}
        return self._post("/v1/rollouts", body)  # type: ignore[no-any-return]

    def rollout(self, model: str) -> dict[str, Any]:
        """Return a model's versions, its running rollout and past ones."""
        return read_json(self._client.send("GET", f"/v1/rollouts/{quote(model, safe='')}"))  # type: ignore[no-any-return]

    def rollouts(self) -> list[dict[str, Any]]:
        """Return the same as `rollout`, for every model."""
        return read_json(self._client.send("GET", "/v1/rollouts"))["rollouts"]  # type: ignore[no-any-return]

    def decide(self, model: str, verb: str, reason: str = "") -> dict[str, Any]:
        """Decide "promote", "rollback", "pause", "resume", "advance" or "end"; return the new `rollout`.

        Without a running rollout, "rollback" returns to the version that served before.
        """
        path = f"/v1/rollouts/{quote(model, safe='')}/{quote(verb, safe='')}"
        return self._post(path, {"reason": reason})  # type: ignore[no-any-return]

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        return read_json(self._client.send("POST", path, body, retries=0))
