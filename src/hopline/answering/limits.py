"""Limits of one model in a server: `serving.toml` next to the model's versions.

    # <repository>/risk/serving.toml
    max_concurrency = 64
    isolate = true
    memory_bytes = "2 GiB"

Every key is optional. What is not said is as the server's own settings have it.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopline.config.reader import read_toml
from hopline.config.schema import Config
from hopline.config.setting import did_you_mean, read_value, setting
from hopline.errors import ConfigError
from hopline.types import Priority

#: Where a key's default stands in hopline.toml.
DEFAULTS = {
    "max_queue_ms": "batching.max_queue_ms",
    "max_queue_rows": "batching.max_queue_rows",
    "max_batch_rows": "batching.max_rows",
    "queue_delay_ms": "batching.queue_delay_ms",
    "timeout_ms": "limits.default_timeout_ms",
}


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Bounds of one model, for each worker; `of` has those of a server's settings."""

    max_queue_ms: float = setting(
        2000.0, "predicted processor time waiting before requests are refused", minimum=0.001
    )
    max_queue_rows: int = setting(0, "the same in predicted rows; 0 is any number", minimum=0)
    max_concurrency: int = setting(0, "requests waiting or running; 0 is any number", minimum=0)
    rate_per_s: float = setting(
        0.0, "requests a second of each version, over all workers; 0 is any", minimum=0
    )
    burst: int = setting(0, "requests in one burst; 0 is one second's worth", minimum=0)
    max_batch_rows: int = setting(4096, "predicted rows of one batch", minimum=1)
    queue_delay_ms: float = setting(
        0.0, "wait this long for more requests; 0 batches what is waiting", minimum=0
    )
    timeout_ms: float = setting(30_000.0, "deadline of a request that names none", minimum=0.001)
    priority: Priority = setting(
        "normal",
        "class of requests that ask for none or for normal, and the model's share of a loop that several "
        "models use: high has four times that of normal, low a quarter",
    )
    isolate: bool = setting(False, "a separate process, in each worker")
    memory_bytes: int = setting(
        0, "of that process, without what it shares; above it the process is replaced; 0 is any", minimum=0
    )
    hang_s: float = setting(5.0, "that process is replaced after it hung for this time", minimum=0.1)
    precomputed_file: str = setting(
        "", "final rows computed by `hopline batch`, in place of precomputed.file; several with commas"
    )
    cache_bytes: int = setting(0, "memory of the response cache; 0 turns it off", minimum=0)
    cache_ttl_s: float = setting(60.0, "age at which a cached answer is computed again", minimum=0)

    @staticmethod
    def of(config: Config) -> ModelLimits:
        """The limits of a model that says nothing."""
        values = {}
        for name, path in DEFAULTS.items():
            section, _, key = path.partition(".")
            values[name] = getattr(getattr(config, section), key)
        return ModelLimits(**values)

    def inside(self) -> ModelLimits:
        """The limits for the queue inside a model's own process: its parent has counted already."""
        return dataclasses.replace(self, max_concurrency=0, rate_per_s=0.0)


def read_limits(file: Path | None, config: Config) -> ModelLimits:
    """The limits that a serving.toml sets.

    Args:
        file: the file, or the folder that it would be in; None or an absent file sets nothing.
        config: for what it does not say.

    Raises: ConfigError: an unknown key (with the closest known one) or a bad value; names file and key.
    """
    limits = ModelLimits.of(config)
    if file is not None and file.is_dir():
        file = file / "serving.toml"
    if file is None or not file.exists():
        return limits
    return _applied(limits, read_toml(file), str(file))


def _applied(limits: ModelLimits, values: Mapping[str, Any], source: str) -> ModelLimits:
    hints = typing.get_type_hints(ModelLimits)
    known = {item.name: item for item in dataclasses.fields(ModelLimits)}
    changes = {}
    for key, value in values.items():
        if key not in known:
            if isinstance(value, Mapping):
                raise ConfigError(f"{source}: [{key}]: there are no tables here; keys stand alone")
            guess = did_you_mean(key, known) or f"; keys are {', '.join(known)}"
            raise ConfigError(f"{source}: {key}: unknown key{guess}")
        try:
            changes[key] = read_value(value, hints[key], key, known[key], "serving.toml")
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}") from None
    limits = dataclasses.replace(limits, **changes)
    if limits.memory_bytes and not limits.isolate:
        raise ConfigError(
            f"{source}: memory_bytes: memory is a process's, and this model shares one with others; "
            "add isolate = true"
        )
    if limits.burst and not limits.rate_per_s:
        raise ConfigError(f"{source}: burst: means nothing without rate_per_s")
    return limits
