"""The kind of models that generate text."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from hopline.models.kinds import Describe, ModelKind
from hopline.types import ModelInfo
from hopline_generate.spec import describe as describe_version
from hopline_generate.spec import read_generative

if TYPE_CHECKING:
    from hopline.answering.limits import ModelLimits
    from hopline.models.load import Load
    from hopline.models.tools import Tools

#: A process of a shadow leaves the processor to serving processes.
_SHADOW_NICE = 19


class GenerativeKind(ModelKind):
    """Generative models: prompts. Each has a process, and texts are not cached."""

    caches: ClassVar[bool] = False

    async def load(self, load: Load, folder: Path, limits: ModelLimits, tools: Tools) -> None:
        """As `ModelKind.load`."""
        await tools.in_thread(importlib.import_module, "hopline_generate.version")
        from hopline_generate.version import load_generative

        nice = _SHADOW_NICE if load.unit.shadow else tools.config.generate.nice
        made = tools.config, limits, tools.metrics, tools.recorders, nice, tools.token_rates
        load.served = await load_generative(folder, load.model, load.unit.id, *made)
        await tools.in_thread(load.served.warm_up)

    def describe(self, folder: Path, describe: Describe) -> ModelInfo:
        """As `ModelKind.describe`."""
        spec = read_generative(folder)
        return describe_version(
            spec, (spec.version,), spec.version, "UNAVAILABLE", "not loaded", spec.context_tokens
        )


GENERATIVE = GenerativeKind()
