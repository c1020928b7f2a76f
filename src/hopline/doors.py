"""Finds by name what Hopline's own package or an installed one adds: commands, kinds of models, stores.

A door is a group of entry points. Packages add names to it, and the server's package imports none of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def imported(target: str) -> Any:
    """The object at "module:attribute"."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


@dataclass(frozen=True, slots=True)
class Door:
    """The names of one group, each imported when it is requested.

    Args:
        group: entry point group in which packages add names: name = "module:attribute".
        own: the same for names of Hopline's own package, which no other package can replace.
        packages: name -> requirement that brings it, for those that come as separate packages.
    """

    group: str
    own: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)

    def find(self, name: str) -> Any:
        """The object of a name; None if no installed package has the name.

        Raises: ImportError: a package that it imports is missing.
        """
        if name in self.own:
            return imported(self.own[name])
        point = self.installed().get(name)
        return None if point is None else point.load()

    def require(self, name: str) -> Any:
        """The object of a name.

        Raises: ModuleNotFoundError: the message says how to install what is missing.
        """
        install = self.how_to_install(name)
        try:
            found = self.find(name)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"{name} needs {error.name}: {install}", name=error.name) from error
        if found is None:
            raise ModuleNotFoundError(f"{name} needs a package: {install}")
        return found

    def installed(self) -> dict[str, EntryPoint]:
        """Names that other packages add; nothing is imported."""
        from importlib.metadata import entry_points  # slow, and most commands need none

        return {point.name: point for point in entry_points(group=self.group) if point.name not in self.own}

    def names(self) -> list[str]:
        """All names, those of Hopline's own first."""
        return [*self.own, *self.installed()]

    def how_to_install(self, name: str) -> str:
        """The command that installs a name's package; "" for a name that no known package has."""
        return f"pip install {self.packages[name]}" if name in self.packages else ""


#: Names below `hopline` that another package brings, and what loads scikit-learn and weights for
#: `hopline package`.
NAMES = Door(
    "hopline.names",
    packages={
        **dict.fromkeys(("artifact.Column", "package.sklearn", "package.preprocess"), "'hopline[tabular]'"),
        "package.weights": "'hopline[train]'",
        "models.import_model": "'hopline[mlflow]'",
        "models.remote_repository": "'hopline[remote]'",
        **dict.fromkeys(("packaging.TabularReport", "packaging.package_tabular"), "'hopline[tabular]'"),
        **dict.fromkeys(("ray.RetryingHandle", "ray.application", "ray.build"), "'hopline[ray-serve]'"),
        **dict.fromkeys(("serverless.application", "serverless.handler"), "'hopline[serverless]'"),
    },
)


def brought(module: str) -> Callable[[str], Any]:
    """`__getattr__` of a module with `NAMES` that another package brings."""

    def find(name: str) -> Any:
        known = f"{module.removeprefix('hopline.')}.{name}"
        if known in NAMES.packages:
            return NAMES.require(known)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return find
