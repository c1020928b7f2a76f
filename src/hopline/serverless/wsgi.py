"""WSGI (PEP 3333), which Cloud Run, Cloud Functions and Azure Functions can run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

from hopline.serverless.app import Call, answer


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer a request; see `hopline.serverless.app.answer`."""
    headers = {
        name[5:].replace("_", "-").lower(): value for name, value in environ.items() if name[:5] == "HTTP_"
    }
    length = environ.get("CONTENT_LENGTH") or "0"
    body = environ["wsgi.input"].read(int(length)) if length.isdecimal() else b""
    # WSGI passes the path decoded, as bytes in Latin-1.
    path = environ.get("PATH_INFO", "/").encode("latin-1").decode("utf-8", "replace")
    made = answer(Call(environ.get("REQUEST_METHOD", "GET"), path, headers, body))
    sent = [*made.headers.items(), ("content-length", str(len(made.body)))]
    start_response(f"{made.status} {HTTPStatus(made.status).phrase}", sent)
    return [made.body]
