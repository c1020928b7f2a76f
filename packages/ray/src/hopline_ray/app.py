"""The Serve application: how many replicas, when more are started, how they are updated; and its callers.

Hopline queues and batches requests inside a replica, so Serve hands it many at the same time. The number of
requests that a replica has (queued or computed) is what autoscaling compares with its target.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hopline.errors import ConfigError, DeadlineExceeded, HoplineError, Overloaded, Unavailable
from hopline.retry import delays
from hopline.types import ScoreRequest, ScoreResult

if TYPE_CHECKING:
    from ray.serve import Application


#: Requests that a replica may have at the same time; more wait in Serve's routers.
_MAX_REQUESTS = 512
#: Requests of one replica at which autoscaling starts another one.
_TARGET_REQUESTS = 32
#: Seconds that a stopped replica may take for the requests that it has.
_DRAIN_S = 30.0


def application(
    repository: str | os.PathLike[str],
    graph: str | os.PathLike[str] | None = None,
    *,
    replicas: int | tuple[int, int] = 1,
    target_requests: float = _TARGET_REQUESTS,
    versions: Mapping[str, str] | None = None,
    settings: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Application:
    """A model repository as a Serve application, for `serve.run`.

    Args:
        repository: folder or URL that every node of the cluster can read.
        graph: folder that every node can read; None where `settings` name a graph store, or for models
            without a graph.
        replicas: how many, or (fewest, most) for autoscaling.
        target_requests: requests of one replica, queued ones included, that autoscaling aims at.
        versions: model -> version that answers; other models answer with their newest version. Running the
            application again with other versions loads them in the running replicas, one at a time,
            without a lost request.
        settings: "section.key" -> value, as in hopline.toml.
        options: further options of the Serve deployment, such as `ray_actor_options`.

    Raises:
        ConfigError: Ray Serve is missing, or an argument is wrong.
    """
    serve = _import_serve()
    from hopline_ray.replica import HoplineReplica

    least, most = (replicas, replicas) if isinstance(replicas, int) else replicas
    if not 1 <= least <= most:
        raise ConfigError(f"replicas: {replicas!r} must be a number from 1, or (fewest, most)")
    if not target_requests > 0:
        raise ConfigError(f"target_requests: {target_requests!r} must be above 0")
    overrides = {"models.repository": str(repository), **(settings or {})}
    if graph is not None:
        overrides["graph.path"] = str(graph)
    chosen: dict[str, Any] = {
        "name": "hopline",
        "max_ongoing_requests": _MAX_REQUESTS,
        "graceful_shutdown_timeout_s": _DRAIN_S,
        "health_check_period_s": 5,
        "user_config": {"versions": dict(versions or {})},
    }
    if least == most:
        chosen["num_replicas"] = least
    else:
        chosen["autoscaling_config"] = {
            "min_replicas": least,
            "max_replicas": most,
            "target_ongoing_requests": target_requests,
        }
    deployment = serve.deployment(HoplineReplica).options(**chosen | dict(options or {}))
    app: Application = deployment.bind(overrides)
    return app


def build(arguments: Mapping[str, str]) -> Application:
    """The application of `serve run hopline_ray:build repository=… graph=…` and of Serve's YAML files.

    Args:
        arguments: repository, graph, replicas ("2" or "2-8"), target_requests, versions ("model=version",
            separated by commas), and any setting as "section.key".

    Raises: ConfigError: an unknown argument, or a wrong value.
    """
    given = {name: str(value) for name, value in arguments.items()}
    if "repository" not in given:
        raise ConfigError("repository: not given; pass repository=FOLDER")
    settings = {name: given.pop(name) for name in list(given) if "." in name}
    replicas = given.pop("replicas", "1")
    least, _, most = replicas.partition("-")
    pairs = [item.partition("=") for item in given.pop("versions", "").split(",") if item]
    try:
        count = int(least) if not most else (int(least), int(most))
        target = float(given.pop("target_requests", _TARGET_REQUESTS))
    except ValueError:
        raise ConfigError(f"replicas: {replicas!r} must be as 2 or 2-8, target_requests a number") from None
    repository, graph = given.pop("repository"), given.pop("graph", None)
    if given:
        raise ConfigError(
            f"{', '.join(given)}: unknown; known are repository, graph, replicas, target_requests, "
            "versions, and settings as section.key"
        )
    return application(
        repository,
        graph,
        replicas=count,
        target_requests=target,
        versions={model: version for model, _, version in pairs},
        settings=settings,
    )


def _import_serve() -> Any:
    try:
        from ray import serve
    except ImportError as error:
        raise ConfigError(
            f"Ray Serve cannot be imported ({error}): pip install 'hopline[ray-serve]'"
        ) from None
    return serve


_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.05, 2.0


class RetryingHandle:
    """A handle of the Hopline deployment.

    Args:
        handle: from `serve.get_deployment_handle` or `serve.run`.
        timeout_s: time for one call with all of its repetitions.
    """

    def __init__(self, handle: Any, timeout_s: float = 60.0) -> None:
        self._handle = handle
        self._timeout_s = timeout_s

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Answer one request.

        Raises: HoplineError: of any kind; DeadlineExceeded: no replica answered in time.
        """
        found: ScoreResult = await self._call("score", request)
        return found

    async def score_many(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult | HoplineError]:
        """The outcome of each request, from one replica.

        Raises: DeadlineExceeded: no replica answered in time.
        """
        found: list[ScoreResult | HoplineError] = await self._call("score_many", list(requests))
        return found

    async def _call(self, method: str, argument: Any) -> Any:
        from ray.exceptions import RayError, RayTaskError
        from ray.serve.exceptions import RayServeException

        end = time.monotonic() + self._timeout_s
        waits = delays(_FIRST_PAUSE_S, _LAST_PAUSE_S, spread=0.5)
        while True:
            wait_s = next(waits)
            try:
                async with asyncio.timeout(max(0.0, end - time.monotonic())):
                    return await getattr(self._handle, method).remote(argument)
            except TimeoutError:
                raise DeadlineExceeded(f"no replica answered within {self._timeout_s:g} s") from None
            except (Overloaded, Unavailable) as error:  # with Ray's wrapper around it, or without
                failed: Exception = error
                wait_s = max(wait_s, error.retry_after_s)
            except RayTaskError as error:  # the replica's own exception
                if isinstance(error.cause, HoplineError):
                    raise error.cause from None
                raise
            except (RayError, RayServeException) as error:  # the replica or its node died
                failed = error
            if time.monotonic() + wait_s >= end:
                raise DeadlineExceeded(
                    f"no replica answered within {self._timeout_s:g} s; the last failure: {failed}"
                )
            await asyncio.sleep(wait_s)
