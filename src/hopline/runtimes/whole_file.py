"""The description of a whole model's program: `whole.json` in its folder."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hopline.errors import ArtifactError
from hopline.types import UNREADABLE

SLOTS_FILE = "whole.json"


class WholeSlots(msgspec.Struct, frozen=True):
    """The content of whole.json.

    Attributes:
        slots: names of the tensors that the program reads; see `torch.WholeModel`.
        pooled: the model pools its graph and answers one row.
        relations: edge types of a relational model, in the order of their numbers.
    """

    slots: list[str]
    pooled: bool
    relations: list[str] = []


def read_slots(folder: Path) -> WholeSlots:
    """Read whole.json of an artifact. Raises: ArtifactError: it is missing or malformed."""
    path = folder / SLOTS_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=WholeSlots)
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror or error}") from None
    except UNREADABLE as error:
        raise ArtifactError(f"{path}: not a description of a whole model: {error}; package again") from None
