"""Modules made at random: each is served as its author's module answers on the whole graph, or refused.

    python -m tests.packaging.random_modules [--count 2000] [--seed 0] [--plain]
    python -m tests.packaging.random_modules --each    # the smallest module with each trick, and no others

Prints each silent difference and each crash with its source, a table of what was refused, and last one JSON
object with the counts. The exit status is 1 where there was a silent difference or a crash.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import logging
import re
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.machine import commit, machine
from benchmarks.zoo_phases.verdict import (
    DEEP_TOLERANCE,
    KINDS,
    TOLERANCE,
    ServedGraph,
    Verdict,
    ask_module,
    judge,
)
from tests.packaging.module_source import ALL_TRICKS, Case, write_case, write_single
from tests.packaging.random_graphs import CHECK_NODES, Place, Places, make_places


class Answering(nn.Module):
    """A module and its head."""

    def __init__(self, module: nn.Module, head: nn.Module | None) -> None:
        super().__init__()
        self.module, self.head = module, head

    def forward(self, **arguments: Tensor) -> Any:
        answer = self.module(**arguments)
        return answer if self.head is None else self.head(answer)


class Bench:
    """A folder with graphs, sources and artifacts in which cases are judged.

    Args:
        folder: empty; kept by the caller.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: dict[tuple[bool, tuple[str, ...]], Places] = {}

    def judge(self, case: Case) -> Verdict | None:
        """None where the module itself fails on the graph that it would be packaged on."""
        has = tuple(sorted((*case.takes, *case.columns)))
        key = case.symmetric, has
        if key not in self._places:
            self._places[key] = make_places(self._folder, has, symmetric=case.symmetric)
        places = self._places[key]
        module, head = case.build(self._folder)
        reference = Answering(case.build(self._folder, quiet=True)[0] if case.random else module, head)
        # Loading an artifact takes a quarter of a case. What is right on the larger graph, of which the
        # smaller one is a component, is right on that one: it is for modules that fail on the larger.
        place, expected = places.large, _answer(case, reference, places.large)
        on_small = _answer(case, reference, places.small)
        if on_small is None:
            return None
        if expected is None:
            place, expected = places.small, on_small
        found = judge(
            module,
            places.small.graph,
            self._folder / "models",
            [_served(case, reference, place, expected)],
            fanouts=case.hops,
            task=case.end.task,
            answers=case.end.answers,  # type: ignore[arg-type]
            tolerance=TOLERANCE if case.layers < 3 else DEEP_TOLERANCE,
            check_nodes=CHECK_NODES,
            head=head,
        )
        random_and_accepted = case.random and found.kind == "split"
        if random_and_accepted and not any("random" in note or "dropout" in note for note in found.notes):
            return replace(found, kind="silent", why="random lines were left out without a note")
        if not case.pure and found.kind == "split":
            return replace(
                found, kind="silent", why="accepted, though the same rows have other answers later"
            )
        if found.kind == "silent" and _left_at_default(case, found):
            return replace(found, kind="split", why="noted as left at its default: " + found.why)
        return found


def _left_at_default(case: Case, found: Verdict) -> bool:
    """True if the report names an argument that the author passes and packaging left at its default."""
    optional = [name for name in case.call if f"{name}=None" in case.source]
    return any(re.search(rf"\b{name}\b", note) for name in optional for note in found.notes)


def _served(case: Case, module: nn.Module, place: Place, expected: Tensor) -> ServedGraph:
    num_nodes = place.data.num_nodes
    if len(expected) != num_nodes:  # not rows of nodes: no answer is right
        expected = torch.full((num_nodes, 1), torch.nan)
    return ServedGraph(
        place.graph,
        expected,
        batch=place.nodes,
        alone=place.nodes[::3],
        rounding=functools.partial(_rounding, case, module, place, expected),
    )


def _answer(case: Case, module: nn.Module, place: Place, dtype: torch.dtype | None = None) -> Tensor | None:
    """What the module answers; None where it fails."""
    arguments = {name: place.data[attribute] for name, attribute in case.call.items()}
    try:
        answer = ask_module(module, arguments, dtype=dtype)
    except Exception:  # for example rows of an embedding that end before the larger graph does
        return None
    picked = eval(case.end.pick, {"answer": answer}) if case.end.pick else answer
    return picked if isinstance(picked, Tensor) else None


def _rounding(case: Case, module: nn.Module, place: Place, expected: Tensor) -> float:
    exact = _answer(case, module, place, torch.float64)
    if exact is None or exact.shape != expected.shape:
        return 0.0
    return float((exact - expected).abs().max())


def main() -> int:
    """Returns: 1 where an answer was wrong in silence or something crashed."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--each", action="store_true", help="the smallest module with each trick")
    parser.add_argument("--only", default="", help="with --each: tricks whose kind or name has this in it")
    parser.add_argument("--plain", action="store_true", help="only modules that must be accepted")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    at_start, began = machine(), time.perf_counter()
    counts: Counter[str] = Counter()
    by_kind: dict[str, Counter[str]] = defaultdict(Counter)
    found: list[tuple[Case, Verdict]] = []
    with tempfile.TemporaryDirectory(prefix="random-modules-") as folder:
        # collecting garbage among all objects of torch would take a third of the time
        gc.collect()
        gc.freeze()
        bench = Bench(Path(folder))
        if args.each:
            cases = list(each_trick(args.only))
        else:
            seeds = range(args.seed, args.seed + args.count)
            cases = [write_case(seed, plain=True if args.plain else None) for seed in seeds]
        for case in cases:
            verdict = bench.judge(case)
            if verdict is None:
                counts["unusable"] += 1
                continue
            found.append((case, verdict))
            counts[verdict.kind] += 1
            for kind in case.kinds or ("plain",):
                by_kind[kind][verdict.kind] += 1
            if verdict.kind in ("silent", "crashed") or (not case.tricks and verdict.kind == "refused"):
                print(report_of(case, verdict), flush=True)
    seconds = time.perf_counter() - began
    _table(found, by_kind)
    told: dict[str, Any] = {
        "count": len(found),
        **{kind: counts[kind] for kind in KINDS},
        "unusable": counts["unusable"],
        "plain_refused": sum(1 for case, verdict in found if not case.tricks and verdict.kind == "refused"),
        "by_kind": {kind: dict(each) for kind, each in by_kind.items()},
        "seconds_a_case": round(seconds / max(1, len(cases)), 2),
        "config": {"count": args.count, "seed": args.seed, "plain": args.plain},
        "machine": at_start,
        "commit": commit(),
    }
    print(json.dumps(told))
    return 1 if counts["silent"] or counts["crashed"] else 0


def each_trick(only: str = "") -> Iterator[Case]:
    """The smallest module with each trick, one that could be split but for it and one that could not."""
    for kind, name in ALL_TRICKS:
        if only in f"{kind}: {name}":
            yield write_single(kind, name, "SAGEConv")
            if kind != "convs":
                yield write_single(kind, name, "FiLMConv")
            if kind not in ("convs", "ends"):
                yield write_single(kind, name, "GraphConv", first=True)


def report_of(case: Case, verdict: Verdict) -> str:
    """What came of a case, with its source but for its imports."""
    tricks = ", ".join(case.tricks) or "plain"
    why = " ".join(verdict.why.split())[:500]
    first = (
        f"== {verdict.kind.upper()} seed {case.seed} [{tricks}] {case.hops} x -1, {case.end.task}: {why}"
    )
    return f"{first}\n{case.source[case.source.index('class ') :]}"


def _table(found: list[tuple[Case, Verdict]], by_kind: dict[str, Counter[str]]) -> None:
    print(f"\n  {'':<12}" + "".join(f"{kind:>10}" for kind in KINDS))
    for kind, counts in sorted(by_kind.items()):
        print(f"  {kind:<12}" + "".join(f"{counts[each]:>10}" for each in KINDS))
    alone: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for case, verdict in found:
        if len(case.tricks) == 1:
            alone[case.kinds[0], case.tricks[0]][verdict.kind] += 1
    print("\n  modules with one trick")
    for (kind, name), counts in sorted(alone.items()):
        said = ", ".join(f"{each} {counts[each]}" for each in KINDS if counts[each])
        print(f"  {kind + ': ' + name:<46}{said}")


if __name__ == "__main__":
    sys.exit(main())
