"""Hopline on Ray Serve: a model repository as a Serve application. Needs the extra `ray-serve`.

    from ray import serve
    from hopline.ray import application

    serve.run(application("models", "graph", replicas=(2, 8)), route_prefix="/")

Replicas answer the HTTP API of `hopline serve`, and calls through handles (`RetryingHandle`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hopline.ray.app import application, build
    from hopline.ray.handle import RetryingHandle

__all__ = ["RetryingHandle", "application", "build"]

_HOMES = {
    "RetryingHandle": "hopline.ray.handle",
    "application": "hopline.ray.app",
    "build": "hopline.ray.app",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'hopline.ray' has no attribute {name!r}")
