"""Packages the small models of fixtures once for all processes of a run: a model takes a second or more.

Many files package the same model of the same graph. The first process leaves the files in a folder of the
run, and the others copy them. Tests of packaging itself use `hopline.packaging`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import pickle
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hopline import packaging
from hopline.graph import Graph
from hopline.packaging.report import PackageReport

#: The folder of the run; conftest.py sets it.
folder: Path | None = None

_OF_TORCH = frozenset(vars(nn.Module()))
_HOOKS = sorted(name for name in _OF_TORCH if name.endswith("_hooks"))
_PLAIN = (bool, int, float, str, type(None))


def package(module: nn.Module, graph: Graph, repository: Path | str, **options: Any) -> PackageReport:
    """As `hopline.package`, but files of an equal call are copied. torch's generator stays as it is."""
    key = key_of(module, graph, options)
    if folder is None or key is None:
        return packaging.package(module, graph, repository, **options)
    place = folder / key
    with _alone(place):
        if not (place / "report").exists():
            shutil.rmtree(place, ignore_errors=True)
            with torch.random.fork_rng(devices=()):
                made = packaging.package(module, graph, place / "models", **options)
            (place / "report").write_bytes(pickle.dumps(made))
    report: PackageReport = pickle.loads((place / "report").read_bytes())
    path = Path(repository) / report.path.relative_to(place / "models")
    shutil.copytree(report.path, path)
    return dataclasses.replace(report, path=path)


def export_once() -> None:
    """Have torch's exporter import and make what it keeps. torch's generator stays as it is."""
    from hopline.packaging.export import export

    with tempfile.TemporaryDirectory() as made, torch.random.fork_rng(devices=()):
        rows = {0: torch.export.Dim("n", min=1)}
        export(nn.Linear(2, 3).eval(), [torch.zeros(7, 2)], [rows], ["x"], "h", Path(made, "x.onnx"))


def key_of(module: nn.Module, graph: Graph, options: Mapping[str, Any]) -> str | None:
    """Hash of all that a package is made of; None for a module or an option that it cannot describe.

    A module is its classes, its plain attributes and its weights: the code of classes is the same in a run.
    """
    found: list[Any] = [graph.version, torch.get_num_threads()]
    for name, value in sorted(options.items()):
        found.append((name, repr(value)))
        if not _is_plain(value):
            return None
    for name, part in module.named_modules():
        found.append((name, type(part).__module__, type(part).__qualname__, part.training))
        if "<locals>" in type(part).__qualname__ or any(vars(part)[name] for name in _HOOKS):
            return None
        for attribute, value in sorted(vars(part).items()):
            if attribute in _OF_TORCH:
                continue
            if _is_plain(value):
                found.append((attribute, repr(value)))
            elif type(value).__module__ != "torch_geometric.inspector":  # is made of the class alone
                return None
    sums = hashlib.blake2b(repr(found).encode(), digest_size=16)
    for name, value in (*module.state_dict().items(), *module.named_buffers()):
        sums.update(f"{name} {value.dtype} {list(value.shape)}".encode())
        sums.update(value.detach().cpu().contiguous().numpy().tobytes())
    return sums.hexdigest()


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(each) for each in (*value, *value.values()))
    return isinstance(value, _PLAIN) or (isinstance(value, list | tuple) and all(map(_is_plain, value)))


@contextlib.contextmanager
def _alone(place: Path) -> Iterator[None]:
    place.parent.mkdir(exist_ok=True)
    lock = os.open(place.with_suffix(".lock"), os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
