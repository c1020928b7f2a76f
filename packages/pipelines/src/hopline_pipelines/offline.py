"""Descriptions of the models of a repository, for checks of a pipeline over them without a server."""

from __future__ import annotations

from hopline.errors import ModelNotFound
from hopline.models.kinds import find_kind
from hopline.models.repository import Repository, absent
from hopline.types import ModelInfo


class Offline:
    """Describes the models of a repository without loading them, for checks of a model over others."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._below: list[str] = []

    def describe(self, model: str, version: str | None) -> ModelInfo:
        """One version, None being the newest.

        Raises:
            ModelNotFound: no such model, or a model that uses itself.
            HoplineError: it cannot be used.
        """
        versions = self._repository.versions(model)
        if not versions:
            raise ModelNotFound(absent(self._repository, model, version or ""))
        folder = self._repository.fetch(model, version or versions[-1])
        if model in self._below:
            raise ModelNotFound(f"pipelines nest themselves: {' → '.join((*self._below, model))}")
        self._below.append(model)
        try:
            return find_kind(folder).describe(folder, self.describe)
        finally:
            self._below.pop()
