"""Hopline on Ray: a model repository as a Serve application, and batch runs on a cluster.

    from ray import serve
    from hopline_ray import application

    serve.run(application("models", "graph", replicas=(2, 8)), route_prefix="/")

Replicas answer the HTTP API of `hopline serve`, and calls through handles (`RetryingHandle`). `engine.py`
is the engine of `hopline batch --engine ray`.
"""

from hopline_ray.app import RetryingHandle, application, build

__all__ = ["RetryingHandle", "application", "build"]
__version__ = "0.1.0"
