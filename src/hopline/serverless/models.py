"""The models of a function: precomputed files of the settings, and students in the repository."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping

from hopline.artifact import read_spec
from hopline.engine.precomputed_file.reader import read_header
from hopline.errors import ConfigError, ModelNotFound
from hopline.models.version_folder import in_order, is_name
from hopline.serverless.known import KnownModel
from hopline.serverless.settings import Settings, read_settings
from hopline.serverless.student import SPEC_FILE

log = logging.getLogger(__name__)

#: Seconds between checks for replaced files: a check may query a network file system.
_LOOK_S = 2.0


class Models:
    """The models of a function.

    Args:
        settings: settings of the function.
        clock: seconds, monotonic.

    Attributes:
        settings: as given.

    Raises:
        ConfigError: no model can answer.
        HoplineError: a model or file is invalid.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self._clock = clock
        self._looked = clock()
        self._known = self._loaded()

    @staticmethod
    def of_environment(env: Mapping[str, str] = os.environ) -> Models:
        """The models of the environment variables; raises as the class."""
        return Models(read_settings(env))

    def of(self, name: str | None, version: str | None) -> KnownModel:
        """A model; the name may be None if there is only one.

        Raises: ModelNotFound: there is no such name or version.
        """
        self._follow()
        if name is None and len(self._known) == 1:
            name = next(iter(self._known))
        found = self._known.get(name or "")
        if found is None:
            raise ModelNotFound(f"no model {name!r}; there are: {', '.join(self._known)}")
        if version is not None and version != found.version:
            raise ModelNotFound(f"model {name!r} has no version {version!r}; there are: {found.version}")
        return found

    def _follow(self) -> None:
        """Load files that were replaced."""
        now = self._clock()
        if now - self._looked < _LOOK_S:
            return
        self._looked = now
        if any(known.rows is not None and known.rows.file.is_replaced() for known in self._known.values()):
            self._known = self._loaded()

    def _loaded(self) -> dict[str, KnownModel]:
        settings, found = self.settings, {}
        for path in settings.tables:
            plan = read_header(path).plan
            if settings.names and plan.model not in settings.names:
                continue
            folder = settings.repository / plan.model / plan.version
            found[plan.model] = KnownModel(folder, read_spec(folder, verify=False), path, settings)
        for name in settings.names or sorted(os.listdir(settings.repository)):
            folder = settings.repository / name
            if name in found or not is_name(name) or not folder.is_dir():
                continue
            versions = in_order(
                each for each in os.listdir(folder) if (folder / each / SPEC_FILE).is_file()
            )
            if versions:
                last = folder / versions[-1]
                found[name] = KnownModel(last, read_spec(last, verify=False), None, settings)
        absent = [name for name in settings.names if name not in found]
        if absent or not found:
            raise ConfigError(
                f"no source of answers for {', '.join(absent) or 'any model'}: name a file of `hopline "
                "batch` in HOPLINE__PRECOMPUTED__FILE, or add a student to the model (`hopline distill`)"
            )
        return found
