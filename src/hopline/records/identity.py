"""Identity of a version in log entries: its artifact, preprocessing and libraries."""

from __future__ import annotations

import functools
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from hopline import __version__
from hopline.answering.served import Preprocessing, Served


class Identity(NamedTuple):
    """The identity of one version; see `entry.Entry`. Has no reference to the version itself.

    Attributes:
        shows_tensors: whether the version is a `Preprocessing`.
    """

    model: str
    version: str
    graph_version: str
    artifact_hash: str
    preprocessing_hash: str
    feature_schema_hash: str
    runtime: str
    shows_tensors: bool


def identity_of(served: Served) -> Identity:
    """The identity of a version; the hashes are properties of its `info`."""
    properties = served.info((served.version,)).properties
    return Identity(
        served.name,
        served.version,
        served.graph_version,
        str(properties.get("artifact_hash", "")),
        str(properties.get("preprocessing_hash", "")),
        str(properties.get("feature_schema_hash", "")),
        runtime_name("torch" if properties.get("runtime") == "torch" else "onnxruntime"),
        isinstance(served, Preprocessing),
    )


@functools.cache
def runtime_name(library: str) -> str:
    """Versions of Hopline and of the library that runs models."""
    try:
        return f"hopline {__version__}, {library} {version(library)}"
    except PackageNotFoundError:  # a build under another name, such as onnxruntime-gpu
        return f"hopline {__version__}, {library}"
