"""Kinds of models: the folder of a version says of which kind it is, and a door has the code of each kind.

Graph models are Hopline's own; packages add kinds (`docs/extending.md` shows how).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import msgspec

from hopline.config.setting import did_you_mean
from hopline.doors import Door
from hopline.errors import ArtifactError, HoplineError
from hopline.models.version_folder import MARKED, MARKERS
from hopline.types import UNREADABLE, ModelInfo

if TYPE_CHECKING:
    from hopline.answering.limits import ModelLimits
    from hopline.models.load import Load
    from hopline.models.tools import Tools


#: Model name and version (None is the newest) -> its inputs and outputs.
Describe: TypeAlias = Callable[[str, str | None], ModelInfo]

MODEL_KINDS = Door(
    "hopline.model_kinds",
    {"graph": "hopline.models.graph_kind:GRAPH"},
    {
        "generative": "'hopline[generate]'",
        "pipeline": "'hopline[pipelines]'",
        "tabular": "'hopline[tabular]'",
    },
)


class ModelKind(ABC):
    """Loads and describes versions of one kind; has no state.

    Attributes:
        isolates: versions may run in a separate process, if the settings demand it.
        caches: answers may be cached.
    """

    isolates: ClassVar[bool] = False
    caches: ClassVar[bool] = True

    def check(self, folder: Path, model: str) -> None:  # noqa: B027 - most kinds check as they load
        """Refuse a version before anything is opened or started for it.

        Raises: HoplineError: it cannot be served here as this model.
        """

    @abstractmethod
    async def load(self, load: Load, folder: Path, limits: ModelLimits, tools: Tools) -> None:
        """Make what answers and set `load.served` to it, then warm it up.

        Args:
            load: names the model and its unit, and owns what is opened for it.
            folder: of the version; every file that its model.json lists is as listed.
            limits: of the model's serving.toml. tools: what versions of all kinds share.

        Raises: HoplineError: it cannot be loaded; the message says why.
        """

    @abstractmethod
    def describe(self, folder: Path, describe: Describe) -> ModelInfo:
        """Inputs and outputs of a version that is not loaded.

        Args:
            describe: describes models that this one uses.

        Raises: HoplineError: it cannot be served.
        """

    def models_below(self, folder: Path) -> Collection[str] | None:
        """Names of the models that a version uses, which are loaded first; None for a kind that uses none.

        Raises: HoplineError: it cannot be read.
        """
        return None


class _Kind(msgspec.Struct):
    kind: str = "graph"


def kind_of(folder: Path) -> str:
    """The kind of a version; "graph" for one that cannot be read: loading it says why."""
    try:
        return msgspec.json.decode((folder / MARKERS[0]).read_bytes(), type=_Kind).kind
    except FileNotFoundError:
        return next((kind for name, kind in MARKED.items() if (folder / name).is_file()), "graph")
    except (OSError, *UNREADABLE):
        return "graph"


def find_kind(folder: Path) -> ModelKind:
    """The code of a version's kind.

    Raises: ArtifactError: no installed package has the kind; the message says how to install a known one.
    """
    name = kind_of(folder)
    kind = MODEL_KINDS.find(name)
    if isinstance(kind, ModelKind):
        return kind
    shown = f"{folder.parent.name}/{folder.name}"
    if kind is not None:
        raise ArtifactError(f"{shown}: the package of kind {name!r} names {kind!r}, not a ModelKind object")
    if install := MODEL_KINDS.how_to_install(name):
        raise ArtifactError(f"{shown} is a {name} model, which needs a package: {install}")
    known = MODEL_KINDS.names()
    raise ArtifactError(
        f"{shown}: kind {name!r} in model.json is unknown{did_you_mean(name, known)}; "
        f"known are {', '.join(known)}"
    )


def nesting(model: str, folder_of: Callable[[str], Path | None]) -> int:
    """0 for a model that uses no others, 1 for one that uses such models, and so on: load these first.

    Args:
        folder_of: name -> folder of the version that will serve; None where there is none.

    A model that cannot be read or that uses itself has some depth too: loading it says what is wrong.
    """
    return _nesting(model, folder_of, frozenset())


def _nesting(model: str, folder_of: Callable[[str], Path | None], around: frozenset[str]) -> int:
    folder = None if model in around else folder_of(model)
    if folder is None:
        return 0
    try:
        kind = find_kind(folder)
    except HoplineError:
        return 0
    try:
        below = kind.models_below(folder)
    except HoplineError:
        return 1
    if below is None:
        return 0
    inside = around | {model}
    return 1 + max((_nesting(name, folder_of, inside) for name in below), default=0)
