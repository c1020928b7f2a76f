"""The lifecycle's state file, with a checksum that is right: what it holds may still be anything."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from hopline.errors import ConfigError
from hopline.rollout.state import StateFile

_folder = tempfile.TemporaryDirectory(prefix="hopline-fuzz-")
_path = Path(_folder.name)


def check(data: bytes) -> None:
    """Args: data: whether the checksum is made right, and the content."""
    if not data:
        return
    body = data[1:]
    digest = b'{"sha256": "' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'
    (_path / "lifecycle.json").write_bytes(digest + body if data[0] % 4 else body)
    try:
        state, _ = StateFile(_path).read()
    except ConfigError:
        return
    for model in state.models.values():
        model.unit(model.serving)
