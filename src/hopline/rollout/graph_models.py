"""The graph models of a repository, for programs that only read what models read."""

from __future__ import annotations

from pathlib import Path

from hopline.artifact import ModelSpec, read_artifact
from hopline.config.schema import Config
from hopline.generate.spec import is_generative
from hopline.rollout.repositories import configured_repository


def graph_models(config: Config) -> list[tuple[Path, ModelSpec]]:
    """(folder, spec) of every graph model version in the repository, for the prefetcher."""
    repository = configured_repository(config)
    found = []
    for name in list(config.models.names) or repository.models():
        for version in repository.versions(name):
            folder = repository.fetch(name, version)
            is_other = not (folder / "model.json").is_file() or is_generative(folder)
            spec = None if is_other else read_artifact(folder)
            if isinstance(spec, ModelSpec):
                found.append((folder, spec))
    return found
