"""The stored state of rollouts, with a checksum that is right: what it holds may still be anything."""

from __future__ import annotations

import hashlib

from hopline.errors import ConfigError
from hopline.rollout.state import decode_state


def check(data: bytes) -> None:
    """Args: data: whether the checksum is made right, and the content."""
    if not data:
        return
    body = data[1:]
    digest = b'{"sha256": "' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'
    try:
        state = decode_state(digest + body if data[0] % 4 else body, "a test", "remove it")
    except ConfigError:
        return
    for model in state.models.values():
        model.unit(model.serving)
