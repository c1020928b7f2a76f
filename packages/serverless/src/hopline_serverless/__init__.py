"""Scores on a function platform, from precomputed answers or a student: no server, no compiled kernels.

A process that starts for one request has no time to load the code that computes over graphs. It can look up
rows that `hopline batch` computed, and run the small student MLP of a model. `handler` is for AWS Lambda,
`application` for WSGI platforms (Google Cloud Run and functions, Azure Functions). Requests, answers and
errors are those of `POST /v1/models/<model>/score`; the settings are the server's environment variables.

    app.py                 platform event to call and back; the models of the settings
    known.py               a model's known nodes: checks, rows, outputs, missing rows
    ids.py                 the ids of a snapshot, and of a file without its graph
"""

import os

from hopline_serverless.app import application, handler, warm_up

__all__ = ["application", "handler"]
__version__ = "0.1.0"

if "AWS_LAMBDA_FUNCTION_NAME" in os.environ:
    # The platform gives more CPU to imports than to the first request.
    warm_up()
