"""Refuses modules that answer the same question differently at another call, time or place.

One copy is called again and again, so that state that it keeps shows, and with generators seeded
differently. Code that reads the clock, the process or the environment is refused: a package would freeze
what it read.
"""

from __future__ import annotations

import copy
import dataclasses
import decimal
import functools
import logging
import random
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any, NoReturn
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.nn import HGTConv

from hopline.errors import NotServable, PackagingError
from hopline.packaging import kept_state
from hopline.packaging.advice import DERIVATIVE, DRAWS, instead_of
from hopline.packaging.check_graph import CheckGraph
from hopline.packaging.probe import Probe, only, reordered
from hopline.packaging.reference import HALF, TOLERANCE, Pairs, Reference, Rows, drop_caches
from hopline.packaging.user_source import iterated_sets
from hopline.packaging.watch import Kind, Seen, seeded, watched

#: Further calls of a module that draws, reads or keeps something.
_REPEATS = 16
#: Share of an answer that two calls of such a module may differ by: a drift is no rounding.
_DRIFT = 1e-5
#: Dtypes that the rows of a graph may have had in training; it has them as float32. Sums of weights in a
#: narrow one overflow, which says nothing.
_DTYPES = (torch.int64, torch.float64, torch.int32, torch.uint8, torch.bool)
_OF_WEIGHTS = _DTYPES[:2]
#: Answers for edges in another order may be this many times as far off as float32 is from float64.
_ROUNDING = 8.0
_REMEDIES: dict[Kind, str] = {
    "the clock": "give ages and times as feature columns, and measure time outside of forward",
    "random bytes": "draw in __init__ and keep a buffer",
    "the environment": "read it in __init__",
    "how it runs": "write self.training or x.dtype, or read it in __init__",
    "a file": "read it in __init__, and keep a buffer; write files in training",
}
#: Types of generators that a model may keep.
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_LOGGER = logging.Logger
_is_enabled, _level_of = _LOGGER.isEnabledFor, _LOGGER.getEffectiveLevel
#: What may be read if answers do not change with it: name in code -> in words, and makes it another.
_MOVED: dict[str, tuple[str, Callable[[], AbstractContextManager[Any]]]] = {
    "getcontext": ("decimal.getcontext()", lambda: decimal.localcontext(prec=97)),
    **dict.fromkeys(
        ("isEnabledFor", "getEffectiveLevel"),
        ("a logger's level", lambda: patch.multiple(
            _LOGGER, handle=lambda *_: None, isEnabledFor=lambda *its: not _is_enabled(*its),
            getEffectiveLevel=lambda its: 97 - _level_of(its),
        )),
    ),
}  # fmt: skip
_SAME = "a server must answer the same question the same way"


def check_repeatable(reference: Reference, probe: Probe, pairs: Pairs | None, rows: Rows) -> Seen:
    """Run the module again: one copy several times, and with the edges in another order.

    Args:
        rows: its answers on the probe.

    Returns: what it did in one run.

    Raises: NotServable: its answers differ; names the source: a line, a generator, a clock, an attribute.
    """
    check = _Check(reference, probe, pairs, rows)
    check.same_copy()
    check.orders_of_sets()
    check.forms()
    check.variants()
    other = reference.answers(reordered(probe.check), pairs)
    if reference.differ(rows, other).any():
        rounding = reference.rounding(probe.check, pairs, rows).max(initial=0.0)
        if np.nan_to_num(np.abs(rows - other)).max(initial=0.0) <= _ROUNDING * rounding:
            raise NotServable(
                f"float32 is not enough for the model's answers: they are up to {rounding:.2g} from those "
                "in float64, and change when edges are listed in another order. Large values of small "
                "spread cause it, such as a standard deviation of raw amounts: standardise the features. "
                "So does torch.autocast or bfloat16 in forward: compute in float32"
            )
        raise NotServable(
            "the model's answers depend on the order in which edges are listed (as LSTM aggregation "
            "does), and a graph keeps no such order: in-neighbours are sorted by time and source. Use an "
            "aggregation that does not depend on it (mean, sum, max, attention)"
        )
    return check.seen


def _has_order(value: object) -> bool:
    """True for a set whose order may be another in each process."""
    return isinstance(value, set | frozenset) and not all(isinstance(each, int) for each in value)


def _kept(reference: Reference, module: Any = None, head: Any = None) -> Reference:
    """The same, but all calls are of these modules, or of one copy, which keeps its state."""
    other = copy.copy(reference)
    mine = (reference.module, reference.head)
    other.module, other.head = copy.deepcopy(mine) if module is None else (module, head)
    other.fresh = lambda module: module
    return other


def _unchanged(reference: Reference, graph: CheckGraph, pairs: Pairs | None) -> Rows:
    """Answers; what the modules keep is as before afterwards. Raises: PackagingError: they fail."""
    parts = [part for module in reference.modules for part in module.modules()]
    spaces = [each for part in parts for each in (vars(part), part._buffers, part._parameters)]
    kept: list[tuple[Any, Any]] = [(space, dict(space)) for space in spaces]
    buffers = [(buffer, buffer.clone()) for module in reference.modules for buffer in module.buffers()]
    try:
        for module in reference.modules:
            drop_caches(module)
        with seeded(0):
            return reference.answers(graph, pairs)
    finally:
        for space, before in kept:
            for name in space.keys() - before.keys():
                del space[name]
            space.update(before)
        for buffer, value in buffers:
            buffer.copy_(value)


def check_original(
    reference: Reference, module: nn.Module, head: object, graph: CheckGraph, pairs: Pairs | None,
    rows: Rows,
) -> None:  # fmt: skip
    """Compare the copy, which is packaged, with the modules that were passed.

    Args:
        reference: of the copy, which answers `rows`. module, head: that were passed, in eval mode.

    Raises: PackagingError: they answer otherwise.
    """
    weights = [*module.parameters(), *(head.parameters() if isinstance(head, nn.Module) else ())]
    if any(weight.dtype in HALF or weight.device.type != "cpu" for weight in weights):
        return  # `eval_copy` converts them
    try:
        found = _unchanged(_kept(reference, module, head), graph, pairs)
        if not reference.differ(found, rows).any():
            return
        why = "answers otherwise"
    except PackagingError as error:
        why = f"fails ({error})"
    raise PackagingError(
        f"a copy of the module is packaged, and the module that was passed, in eval mode, {why}. It may "
        "hold what a copy does not: attributes that __getstate__ or __deepcopy__ leave out, values cached "
        "from other edges, or another module that a function keeps"
    )


def _refuse_readings(seen: Seen) -> None:
    for kind, instead in _REMEDIES.items():
        if readings := [what for what, its in seen.readings.items() if its == kind]:
            raise NotServable(
                f"forward reads {kind} ({'; '.join(readings[:3])}), and its answers may change with "
                f"that: a package would freeze what it read. {instead.capitalize()}; {_SAME}"
            )


class _Check:
    """The runs of one module, each compared with its first answers.

    Attributes:
        seen: what it did in the first run.
    """

    def __init__(self, reference: Reference, probe: Probe, pairs: Pairs | None, rows: Rows) -> None:
        self._reference, self._probe, self._pairs, self._rows = reference, probe, pairs, rows
        self.seen = Seen()
        self._changed: list[str] = []
        self._tolerance = TOLERANCE

    def same_copy(self) -> None:
        """Call one copy again, on the same graph, on another one, and on the first one again."""
        kept = _kept(self._reference)
        before = self._state(kept)
        with suppress(PackagingError), seeded(1), watched() as self.seen:
            kept.answers(self._probe.check, self._pairs)
        if self.seen.conditions:
            raise NotServable(f"forward calls torch.cond ({self.seen.conditions[0]}): {instead_of('')}")
        _refuse_readings(self.seen)
        if self.seen.consumed:
            raise NotServable(DRAWS.format("; ".join(self.seen.draws or self.seen.consumed)))
        if self.seen.gradients:
            raise NotServable(
                "forward takes a gradient by torch.autograd, torch.func.grad, vjp or jacrev "
                f"({self.seen.gradients[0]}), and {DERIVATIVE}"
            )
        first = self._state(kept)
        self._same(kept)
        second = self._state(kept)
        each_time = kept_state.changed(first, second)
        at_first = [name for name in kept_state.changed(before, first) if not name.startswith("global")]
        self._changed = each_time or at_first
        if self._changed:
            self._tolerance = _DRIFT
        others = _kept(self._reference)
        self._see_others(others)
        repeats = [(others, 0), *((kept, 2 + n) for n in range(_REPEATS if self._changed else 2))]
        if not all(self._same(*each) for each in repeats):
            self._refuse()
        if drawn := [name for name in each_time if isinstance(second[name].value, _GENERATORS)]:
            raise NotServable(DRAWS.format(f"from {drawn[0]}"))
        if each_time:  # a counter may decide later
            self._refuse()
        self._caches(second)

    def _state(self, kept: Reference) -> kept_state.State:
        return kept_state.state_of(dict(zip(("", "head"), kept.modules, strict=False)), self.seen.codes)

    def _see_others(self, reference: Reference) -> None:
        """Run it on the strangers alone."""
        check, num_real = self._probe.check, self._probe.real.num_nodes
        theirs = {name: np.arange(len(x)) >= num_real(name) for name, x in check.features.items()}
        with suppress(PackagingError):
            reference.answers(
                only(check, theirs), self._pairs and tuple(0 * each[:1] for each in self._pairs)
            )

    def _caches(self, state: kept_state.State) -> None:
        """Refuse a module that fills a cache outside of it from its first input."""
        for name, entry in state.items():
            if not (name.startswith(("global", "class attribute")) or callable(entry.value)):
                continue  # each call has a copy of it
            with kept_state.emptied(entry) as is_filled:
                with watched() as seen:  # a full one hides what its function reads
                    self._see_others(self._reference)
                _refuse_readings(seen)
                if is_filled() and not self._same(self._reference):
                    raise NotServable(
                        f"forward fills a cache, {name}, with what it computes from its first input, and "
                        "answers later ones from it: the first request would decide. Compute it in "
                        f"__init__ from the training data, and keep it as a buffer; {_SAME}"
                    )

    def orders_of_sets(self) -> None:
        """Refuse code that reads the order of a set: that of texts is another in each process."""
        modules = [each for part in self._reference.modules for each in part.modules()]
        attributes = {name for each in modules for name, value in vars(each).items() if _has_order(value)}
        lines: list[str] = []
        for code, names in self.seen.codes.items():
            lines += iterated_sets(code, attributes, [name for name in names if _has_order(names[name])])
        if lines:
            raise NotServable(
                f"forward reads the order of a set ({'; '.join(dict.fromkeys(lines))}), which in each "
                f"process is another if it holds texts: write sorted(...) around the set; {_SAME}"
            )

    def forms(self) -> None:
        """Refuse a module that answers otherwise for the same numbers in another dtype or shape."""
        plain, real = self._reference.without_head(), self._probe.real
        for name, rows in plain.binding.slots(real).items():
            role, _, of = name.partition(":")
            is_known = role == "features" and plain.binding.groups.get(of)  # in its own dtype
            if rows.dtype != torch.float32 or not rows.numel() or is_known:
                continue
            forms: dict[str, Callable[[Tensor], Tensor]] = {
                str(dtype).removeprefix("torch."): functools.partial(Tensor.to, dtype=dtype)
                for dtype in (_OF_WEIGHTS if role == "edge_weight" else _DTYPES)
                if torch.equal(rows.to(dtype).to(rows.dtype), rows)
            }
            if rows.shape[1:] == (1,):
                forms["shape [n]"] = torch.Tensor.flatten
            for shown, form in forms.items():
                other = copy.copy(plain)
                other.given = lambda slots, name=name, form=form: {**slots, name: form(slots[name])}  # type: ignore[misc]
                try:
                    if not plain.differ(plain.answers(real), other.answers(real)).any():
                        continue
                except PackagingError:  # it does not take this form, and was trained with the other one
                    continue
                raise NotServable(
                    f"the model answers otherwise for {shown} than for the {role} of {of!r} of a graph, "
                    "float32 of shape [n, d]: it reads the dtype or shape, or its arithmetic is another "
                    "one (1 - x of uint8, torch.full_like(x, 0.5)). Convert it at the start of forward to "
                    "what training had: x.float(), x.long(), x.view(-1, 1). Integers of Graph.from_pyg("
                    "data, columns=[name]) have their own dtype"
                )

    def variants(self) -> None:
        """Refuse a module that reads the order of a graph's types, whether it is trained, or settings."""
        turned, trained = copy.copy(self._reference), copy.copy(self._reference)
        # edge types have the order of an HGTConv's metadata
        plain = copy.copy(turned)
        plain.binding = dataclasses.replace(plain.binding, frozen=None)  # statistics are in their order
        is_ordered = any(isinstance(part, HGTConv) for part in self._reference.module.modules())
        names = ["node_types", "relations", "attributed", "weighted"][: 1 if is_ordered else 4]
        given = plain.binding
        read = {name for code in self.seen.codes for name in code.co_names}
        for shown, moved in dict.fromkeys(_MOVED[name] for name in _MOVED if name in read):
            with moved():
                self.seen.readings |= {} if self._same(self._reference) else {shown: "the environment"}
        _refuse_readings(self.seen)
        turned.binding = dataclasses.replace(given, **{name: getattr(given, name)[::-1] for name in names})
        trained.module = copy.deepcopy(self._reference.module)
        for parameter in trained.module.parameters():
            if parameter.is_floating_point() and not parameter.is_inference():
                parameter.requires_grad_()
        if given.hetero and not self._same(turned, rows=plain.answers(self._probe.check, self._pairs)):
            raise NotServable(
                "the model's answers depend on the order of the types in x_dict or edge_index_dict, and a "
                "graph gives them sorted by name. Read each by its name, x_dict['user'], or loop over "
                f"sorted(x_dict); {_SAME}"
            )
        if not self._same(trained):
            raise NotServable(
                "the model answers otherwise for weights that require gradients: forward reads "
                f"requires_grad, which a package does not have. Write self.training instead; {_SAME}"
            )

    def _same(self, reference: Reference, seed: int = 0, rows: Rows | None = None) -> bool:
        """True if the answers on the probe are the first ones, or `rows`; False also if it fails."""
        rows = self._rows if rows is None else rows
        try:
            with seeded(seed):
                again = reference.answers(self._probe.check, self._pairs)
        except PackagingError:
            return False
        return not self._reference.differ(rows, again, self._tolerance).any()

    def _refuse(self) -> NoReturn:
        """Raise the reason for which answers differ from call to call, or may do so."""
        if self._changed:
            raise NotServable(
                f"the model keeps state between calls: forward changes {', '.join(self._changed[:3])}"
                f"{' and more' if self._changed[3:] else ''}, so that the same input may get other "
                "answers later. Make the state a feature column, or change it while self.training only; "
                f"{_SAME}"
            )
        raise NotServable(
            "the model's answers are random: two runs in eval mode differ. The cause is state outside of "
            "its attributes, the time, or torch.empty, which nothing fills: write torch.zeros. Compute "
            f"such numbers once in __init__ and keep a buffer; {_SAME}"
        )
