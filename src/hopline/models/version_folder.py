"""A version of a model as a folder: its name, what makes it one, whether it is whole.

Knows nothing of where folders come from; repositories (`repository.py`) do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import msgspec

from hopline.artifact import NOT_CONTENT, check_fields, check_files, sha256_of
from hopline.engine.student import SPEC_FILE
from hopline.errors import ArtifactError, BadRequest
from hopline.files import check_regular
from hopline.types import UNREADABLE

#: File that makes a folder without a model.json a version -> its kind.
MARKED = {"pipeline.toml": "pipeline"}
#: A folder that holds one of these is a version; the first one found says what it is.
MARKERS = ("model.json", *MARKED)

_LONGEST_NAME = 255
_DIGITS = re.compile(r"(\d+)")


class _Manifest(msgspec.Struct):
    """The part of any kind's model.json that tells which files belong to it."""

    files: dict[str, str] = {}


def is_name(name: str) -> bool:
    """True if a model, version or file may have this name: one visible part of a path."""
    return (
        0 < len(name.encode("utf-8", "replace")) <= _LONGEST_NAME
        and name[0] != "."
        and name.isprintable()
        and "/" not in name
        and "\\" not in name
    )


def check_name(what: str, name: str) -> None:
    """Refuse a name that could lead out of a repository.

    Args:
        what: "model" or "version", for the message.

    Raises:
        BadRequest: it is not one visible part of a path.
    """
    if not is_name(name):
        raise BadRequest(
            f"{what} name {name!r}: must not be empty, begin with a dot, be longer than {_LONGEST_NAME} "
            "bytes or contain slashes or unprintable characters"
        )


def in_order(names: Iterable[str]) -> list[str]:
    """Natural order, oldest version first: 2 before 10, v1.9 before v1.10."""
    return sorted(names, key=_order)


def _order(name: str) -> list[tuple[int, int, str]]:
    return [
        (0, int(part), "") if part.isdecimal() else (1, 0, part) for part in _DIGITS.split(name) if part
    ]


def listed_files(manifest: bytes, where: str) -> dict[str, str]:
    """Files of a version as its model.json lists them: path inside the folder -> sha256.

    Raises:
        ArtifactError: not a model.json, or a path that leads out of the folder; `where` it was read.
    """
    try:
        files = msgspec.json.decode(manifest, type=_Manifest).files
    except UNREADABLE as error:
        raise ArtifactError(f"{where}: not a valid model.json: {error}") from None
    for name in files:
        parts = PurePosixPath(name).parts
        if not parts or name[0] == "/" or ".." in parts or not name.isprintable() or "\\" in name:
            raise ArtifactError(
                f"{where}: lists the file {name!r}, which is not inside the version's folder"
            )
    return files


def content_of(folder: Path) -> dict[str, str]:
    """Files and fields of model.json that decide what a version answers, by name: two contents compare.

    Where no model.json lists files, whatever is there belongs to the version.
    """
    path = folder / MARKERS[0]
    if not path.is_file():
        below = [file for file in folder.rglob("*") if file.is_file()]
        return {str(file.relative_to(folder)): sha256_of(file) for file in below}
    fields = msgspec.json.decode(path.read_bytes())
    files: dict[str, str] = fields.pop("files", {})
    fields = {name: repr(value) for name, value in fields.items() if name not in NOT_CONTENT}
    return files | fields | {path.name: sha256_of(path) for path in folder.glob(SPEC_FILE)}


def verify(folder: Path, shown: str = "") -> None:
    """Compare every file of a version with the sha256 in its model.json; a pipeline has none.

    Args:
        shown: where the files come from, for messages; "" means the folder.

    Raises:
        ArtifactError: no version, or a malformed one.
        ArtifactCorrupted: a file is absent or changed.
    """
    shown = shown or str(folder)
    try:
        check_regular(folder)
        content = (folder / MARKERS[0]).read_bytes()
    except FileNotFoundError:
        if any((folder / name).is_file() for name in MARKERS[1:]):
            return
        raise ArtifactError(
            f"{shown}: no {' or '.join(MARKERS)}; is this a <model>/<version> folder?"
        ) from None
    except OSError as error:
        raise ArtifactError(f"{shown} cannot be read: {error}") from None
    files = listed_files(content, f"{shown}/{MARKERS[0]}")
    check_fields(content, f"{shown}/{MARKERS[0]}")
    check_files(folder, files, shown)
