"""Opens the store that the settings name: a folder, or the URL of a Redis or Valkey."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from hopline.config.schema import Config
from hopline.errors import ConfigError
from hopline.files import temporary_root
from hopline.rollout.store.base import StateStore
from hopline.rollout.store.folder import FolderStore

log = logging.getLogger(__name__)


def configured_store(config: Config) -> tuple[StateStore, Callable[[], object]]:
    """The store, not open yet, and what to call once it is closed.

    Raises: ConfigError: an address that names no store.
    """
    address = config.models.state
    if isinstance(address, str) and "://" in address:
        from hopline.rollout.store.redis import SCHEMES, RedisStore

        scheme = address.partition("://")[0].lower()
        if scheme.partition("+")[0] not in SCHEMES:
            raise ConfigError(
                f"models.state: {scheme}:// is not a store; a folder or {', '.join(SCHEMES)}:// is"
            )
        return RedisStore(address, config.models.names), lambda: None
    folder, clean_up = _folder(config)
    worker = config.worker
    store = FolderStore(
        folder,
        index=worker.index,
        count=worker.count,
        server_folder=Path(worker.metrics_dir) if worker.metrics_dir else None,
    )
    return store, clean_up


def _folder(config: Config) -> tuple[Path, Callable[[], object]]:
    """Folder of the state: as configured, in the models' folder, or a temporary one."""
    models = config.models
    if models.state is not None:
        return Path(models.state), lambda: None
    local = Path(str(models.repository))
    if "://" not in str(models.repository) and os.access(local, os.W_OK):
        return local / ".hopline", lambda: None
    log.warning(
        "models.state is not set and %s cannot be written: rollouts will not survive a restart",
        models.repository,
    )
    if config.worker.metrics_dir:
        return Path(config.worker.metrics_dir) / "state", lambda: None
    own = tempfile.mkdtemp(prefix="hopline-state-", dir=temporary_root())
    return Path(own), lambda: shutil.rmtree(own, ignore_errors=True)
