"""Interfaces of models as their files describe them: a model over others is checked without a server.

A loaded version's description has more in it, such as the graph's version. What a check reads is the same,
which a test holds.
"""

from __future__ import annotations

from hopline.errors import ModelNotFound
from hopline.models.kinds import find_kind
from hopline.models.repository import Repository
from hopline.types import ModelInfo


class Offline:
    """Describes the models of a repository.

    Args:
        repository: where models are.
    """

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
            known = ", ".join(self._repository.models()) or "none"
            raise ModelNotFound(f"no model {model!r} in {self._repository.address}; there are: {known}")
        folder = self._repository.fetch(model, version or versions[-1])
        if model in self._below:
            raise ModelNotFound(f"pipelines nest themselves: {' → '.join((*self._below, model))}")
        self._below.append(model)
        try:
            return find_kind(folder).describe(folder, self.describe)
        finally:
            self._below.pop()
