"""Keeps httpx's TLS contexts: each client reads 140 certificates of authorities again, also for `http://`."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import pytest


def keep_contexts(patch: pytest.MonkeyPatch) -> None:
    """Make clients of httpx that trust the usual authorities share one context, until `patch` is undone."""
    for name in ("httpx", "httpx2"):
        if (place := sys.modules.get(f"{name}._transports.default")) is not None:
            patch.setattr(place, "create_ssl_context", _kept(place.create_ssl_context))


def _kept(create: Callable[..., Any]) -> Callable[..., Any]:
    kept: dict[Any, Any] = {}

    @functools.wraps(create)
    def create_once(verify: Any = True, cert: Any = None, trust_env: bool = True) -> Any:
        if verify is not True or cert is not None:
            return create(verify=verify, cert=cert, trust_env=trust_env)
        key = (trust_env, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
        if key not in kept:
            kept[key] = create(trust_env=trust_env)
        return kept[key]

    return create_once
