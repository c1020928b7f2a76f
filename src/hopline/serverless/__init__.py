"""Scores on a function platform, from precomputed answers or a student: no server, no compiled kernels.

A process that starts for one request has no time to load the code that computes over graphs. It can look up
rows that `hopline batch` computed, and run the small student MLP of a model. `handler` is for AWS Lambda,
`application` for WSGI platforms (Google Cloud Run and functions, Azure Functions). Requests, answers and
errors are those of `POST /v1/models/<model>/score`; the settings are the server's environment variables.

    app.py                 platform event to call and back; the models of the settings
    known.py               a model's known nodes: checks, rows, outputs, missing rows
    ids.py                 the ids of a snapshot, and of a file without its graph
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hopline.serverless.app import application, handler

__all__ = ["application", "handler"]


def __getattr__(name: str) -> Any:
    if name == "handler":
        from hopline.serverless.app import handler

        return handler
    if name == "application":
        from hopline.serverless.app import application

        return application
    raise AttributeError(f"module 'hopline.serverless' has no attribute {name!r}")


if "AWS_LAMBDA_FUNCTION_NAME" in os.environ:
    # The platform gives more CPU to imports than to the first request.
    from hopline.serverless.app import warm_up

    warm_up()
