"""Packages a module, serves it in process and compares with the module itself on the full graph.

Knows the public interface only: `hopline.package`, and a loaded model. Also used by the property test of
random modules (tests/packaging).
"""

from __future__ import annotations

import copy
import re
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import hopline
from hopline.engine.model import load_model
from hopline.errors import GraphError, HoplineError, PackagingError
from hopline.graph import Graph

Kind = Literal["split", "refused", "silent", "crashed"]
KINDS: tuple[Kind, ...] = ("split", "refused", "silent", "crashed")

#: What a module's answer is: `logits` (or plain values), probabilities of the task, or their logarithm.
Answers = Literal["logits", "probabilities", "log_probabilities"]

#: Absolute, and relative to the expected value; the second is for models of three layers and more.
TOLERANCE, DEEP_TOLERANCE = 1e-4, 1e-3
#: How much of the module's own rounding (float32 against float64) is allowed.
_OF_ROUNDING = 20.0

_SAYS_FANOUTS = re.compile(r"has (\d+) message-passing")


@dataclass(frozen=True, slots=True)
class ServedGraph:
    """A graph to serve on, and what the module answers on it.

    Attributes:
        graph: opened from a disk.
        expected: [n, c], or [n]; one row for each node of the target type.
        batch: nodes asked for together.
        alone: nodes asked for one at a time.
        rounding: of the module, computed only where a difference was found.
    """

    graph: Graph
    expected: Tensor
    batch: Sequence[int]
    alone: Sequence[int]
    rounding: Callable[[], float] = lambda: 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of one module.

    Attributes:
        why: of a refusal, a silent difference or a crash; else the report's notes.
        max_diff: the largest difference from the module, of all answers.
        fanouts: how many it was packaged with.
        node_us: median microseconds for one node through the engine.
    """

    kind: Kind
    why: str = ""
    max_diff: float | None = None
    fanouts: int = 0
    node_us: float | None = None
    notes: tuple[str, ...] = field(default=(), repr=False)


def ask_module(module: nn.Module, arguments: Mapping[str, Any], *, dtype: torch.dtype | None = None) -> Any:
    """Answers of a copy of the module in eval mode. Arguments are copied: modules write to them."""
    mine, given = copy.deepcopy((module, dict(arguments)))
    mine = mine.eval()
    if dtype is not None:
        mine = mine.to(dtype)
        given = _to(given, dtype)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mine(**given)


def _to(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, dict):
        return {key: _to(each, dtype) for key, each in value.items()}
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def judge(
    module: nn.Module,
    graph: Graph,
    repository: Path,
    served: Sequence[ServedGraph],
    *,
    fanouts: int,
    task: str,
    answers: Answers = "logits",
    tolerance: float = TOLERANCE,
    target: str = "node",
    retry: bool = True,
    **options: Any,
) -> Verdict:
    """Package on `graph`, serve on each of `served`, and compare.

    Args:
        fanouts: how many of -1.
        retry: once more with as many fanouts as a refusal asks for.
        options: further ones of `hopline.package`.
    """
    options |= {"task": task, "target": target}
    try:
        report = _package(module, graph, repository, fanouts, options)
    except (PackagingError, GraphError) as refusal:
        wanted = fanouts_asked_for(str(refusal)) if retry else None
        if wanted is not None and wanted != fanouts:
            return judge(
                module,
                graph,
                repository,
                served,
                fanouts=wanted,
                answers=answers,
                tolerance=tolerance,
                retry=False,
                **options,
            )
        return Verdict("refused", f"{type(refusal).__name__}: {refusal}", fanouts=fanouts)
    except Exception as error:  # whatever a user's module brings out of it is a finding
        return Verdict("crashed", f"package: {type(error).__name__}: {error}", fanouts=fanouts)
    found = Verdict("split", fanouts=fanouts, max_diff=0.0, notes=tuple(report.notes))
    for place in served:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = load_model(report.path, report.spec, place.graph)
                asked, took = _ask(model, task, target, place)
        except HoplineError as refusal:  # of a graph that is not as the model relies on
            return replace(found, kind="refused", why=f"serving: {type(refusal).__name__}: {refusal}")
        except Exception as error:  # the same
            return replace(
                found, kind="crashed", why=f"serving {found.kind}: {type(error).__name__}: {error}"
            )
        found = replace(found, node_us=took if found.node_us is None else found.node_us)
        worst, why = _compare(asked, place, task, answers, tolerance)
        found = replace(found, max_diff=max(worst, found.max_diff or 0.0))
        if why:
            return replace(found, kind="silent", why=f"served {found.kind}: {why}")
    return found


def fanouts_asked_for(message: str) -> int | None:
    """Number of fanouts that a refusal's message asks for."""
    said = _SAYS_FANOUTS.search(message)
    return int(said[1]) if said else None


def _package(
    module: nn.Module, graph: Graph, repository: Path, fanouts: int, options: dict[str, Any]
) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return hopline.package(
            copy.deepcopy(module),
            graph,
            repository,
            name="m",
            fanouts=[-1] * fanouts,
            overwrite=True,
            progress=False,
            **options,
        )


#: (node ids, output name -> rows)
_Asked = list[tuple[NDArray[np.int64], dict[str, NDArray[Any]]]]


def _ask(model: Any, task: str, target: str, place: ServedGraph) -> tuple[_Asked, float]:
    names: tuple[str, ...] = ("logits", "probabilities", "label")
    if task in ("regression", "embedding"):
        names = ("logits",) if task == "regression" else ("embedding",)
    found: _Asked = []
    took = []
    batch = np.asarray(place.batch, np.int64)
    for ids in (batch, *(np.array([node]) for node in place.alone)):
        began = time.perf_counter()
        states = model.final_states({target: ids})[target]
        outputs = model.outputs(names, states)
        took.append(time.perf_counter() - began)
        found.append((ids, {name: np.array(rows) for name, rows in outputs.items()}))
    return found, float(np.median(took[1:] or took) * 1e6)


def _compare(
    asked: _Asked, place: ServedGraph, task: str, answers: Answers, tolerance: float
) -> tuple[float, str]:
    """The largest difference, and what it is where it is too large."""
    expected = _expected_outputs(place.expected, task, answers)
    found, worst, rounding = "", 0.0, None
    for ids, outputs in asked:
        for name, want_all in expected.items():
            if name == "sure":
                continue
            got, want = outputs[name], want_all[ids]
            how = f"{len(ids)} nodes" if len(ids) > 1 else f"node {ids[0]} alone"
            if name == "label":
                wrong = got != want
                if not found and (wrong & expected["sure"][ids]).any():
                    found = (
                        f"labels of {how}: {got[wrong][:3].tolist()}, expected {want[wrong][:3].tolist()}"
                    )
                continue
            got = got.reshape(len(got), -1).astype(np.float64)
            want = want.reshape(len(want), -1)
            if got.shape != want.shape:
                return worst, f"{name} of {how} have shape {got.shape}, expected {want.shape}"
            difference = np.where((got == want) | (np.isnan(got) & np.isnan(want)), 0.0, np.abs(got - want))
            worst = max(worst, float(np.nan_to_num(difference, nan=np.inf).max(initial=0.0)))
            if found or (difference <= tolerance * (1 + np.abs(want))).all():
                continue
            rounding = place.rounding() if rounding is None else rounding
            bad = ~(difference <= tolerance * (1 + np.abs(want)) + _OF_ROUNDING * rounding)
            if bad.any():
                row = int(bad.any(1).argmax())
                ours, theirs = (each[row][:3].round(5).tolist() for each in (got, want))
                found = (
                    f"{name} of {how}: {bad.any(1).sum()} rows differ by up to "
                    f"{np.nanmax(difference):.3g}; node {ids[row]} {ours}, expected {theirs}"
                )
    return worst, found


def _expected_outputs(answer: Tensor, task: str, answers: Answers) -> dict[str, NDArray[Any]]:
    """Output name -> rows; `sure` marks labels that do not hang on a rounding."""
    rows = answer.to(torch.float64)
    rows = rows.reshape(len(rows), -1)
    if task == "embedding":
        return {"embedding": rows.numpy()}
    if task == "regression":
        return {"logits": rows.numpy()}
    found: dict[str, NDArray[Any]] = {}
    if answers == "logits":
        found["logits"] = rows.numpy()
        rows = rows.softmax(1) if task == "multiclass" else rows.sigmoid()
    elif answers == "log_probabilities":
        rows = rows.exp()
    found["probabilities"] = rows.numpy()
    if task == "multiclass":
        found["label"] = rows.argmax(1).numpy()
        top = rows.topk(2, 1).values
        found["sure"] = (top[:, 0] - top[:, 1] > 1e-3).numpy()
    else:
        label, sure = (rows >= 0.5).long().numpy(), ((rows - 0.5).abs() > 1e-3).numpy()
        found["label"], found["sure"] = (label[:, 0], sure[:, 0]) if task == "binary" else (label, sure)
    return found
