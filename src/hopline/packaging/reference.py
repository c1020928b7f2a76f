"""The user's own module as the oracle of packaging: called as its owner calls it, on a full graph.

Independent of tracing, stages and artifacts: their mistakes must not occur here too. The file is
long because it has all that the oracle runs, and nothing else may.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.nn.models.rev_gnn import InvertibleModule

from hopline.errors import NotServable, PackagingError
from hopline.packaging.advice import ONE_ROW, hint
from hopline.packaging.arguments import Binding
from hopline.packaging.check_graph import CheckGraph
from hopline.packaging.memberships import as_batch
from hopline.packaging.probe import reordered
from hopline.packaging.user_source import user_line
from hopline.types import AnyArray, IdArray

#: float64: the oracle keeps the precision of the module's answers.
Rows = NDArray[np.float64]
Pairs = tuple[AnyArray, ...]  # sources, destinations, maybe rows of edges
#: Far above float32 rounding in another order of sums, far below the effect of a real dependence.
TOLERANCE = 1e-3
#: Errors of float32 that need no explanation, and the factor by which one of several roundings shows them.
_SMALL, _NUDGES = 1e-5, 32.0
_EPSILON = float(np.finfo(np.float32).eps)
HALF = (torch.float16, torch.bfloat16)


class Reference:
    """A module in eval mode that is never traced, changed or called twice in the same state.

    Args:
        module: the user's; a copy is run.
        binding: how it is called.
        targets: node types whose rows are the answer: one, or the two of a pair.
        head: of one argument, of two or three, "dot", or None where the module's own rows are the answer.
        is_link: the head scores pairs.

    Attributes:
        fresh: makes the module or the head for one call: a copy without the state of earlier ones.
        given: changes the tensors that the module gets.
        sparse: an `adj_t` is a sparse matrix; else the list of its edges.
        parts: columns of each of its outputs: what is far from another answer is so by its own size.
    """

    sparse = True

    def __init__(
        self, module: nn.Module, binding: Binding, targets: Sequence[str],
        head: nn.Module | Literal["dot"] | None, is_link: bool,
    ) -> None:  # fmt: skip
        self.module, self.binding = eval_copy(module), binding
        self.targets = tuple(targets)
        self.head = eval_copy(head) if isinstance(head, nn.Module) else head
        self.is_link = is_link
        self.fresh: Callable[[nn.Module], nn.Module] = shared_copy
        self.given: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict
        self.parts: tuple[slice, ...] = (slice(None),)
        self._columns = slice(None)
        self._dtype = next(
            (p.dtype for p in self.module.parameters() if p.is_floating_point()), torch.float32
        )

    @property
    def modules(self) -> list[nn.Module]:
        """The module, and the head if it is one."""
        return [each for each in (self.module, self.head) if isinstance(each, nn.Module)]

    def states(
        self, graph: CheckGraph, prepare: Callable[[nn.Module], object] | None = None
    ) -> list[Tensor]:
        """The module's answers for all nodes of each target type.

        Args:
            prepare: called with the copy before it runs, for example to hook a submodule.

        Raises: PackagingError: the module fails, or does not answer rows.
        """
        module = self.fresh(self.module)
        if prepare is not None:
            prepare(module)
        slots = self.binding.slots(as_batch(graph, of) if (of := self.binding.members) else graph)
        if self._dtype == torch.float64:
            slots = {name: x.double() if x.is_floating_point() else x for name, x in slots.items()}
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # torch's warnings about PyG's sparse tensors
                out = self.binding.call(module, self.given(slots), sparse=self.sparse)
        except PackagingError:
            raise
        except Exception as error:  # user code
            remedy = hint(error, module, slots) or self.binding.matrix_hint or single_columns(slots)
            where = f" (at {line})" if (line := user_line(error)) else ""
            raise PackagingError(
                f"the model fails on the graph: {type(error).__name__}: {error}{where}; "
                f"{self.binding.called}; the graph gives {described(slots)}{remedy}"
            ) from error
        return [self._of_type(out, target, graph) for target in self.targets]

    def _of_type(self, out: Any, target: str, graph: CheckGraph) -> Tensor:
        out = of_target(out, target)
        if isinstance(out, list | tuple):
            raise PackagingError(
                f"the model returns {len(out)} values: name the task of each that is served, such as "
                "task={'output_0': 'binary'}. For several node types return a dict by type, {'user': ...}"
            )
        if not isinstance(out, Tensor) or out.dim() == 0:
            what = "one number, such as a loss" if isinstance(out, Tensor) else type(out).__name__
            raise PackagingError(
                f"the model must answer a tensor with a row for each node; it returned {what}"
            )
        count = graph.num_nodes(target) + 1  # the last graph has the nodes that are in none
        if self.binding.members and len(out) != count:
            raise PackagingError(
                f"the model answers {len(out)} rows for {count} graphs: give batch to its readout, such as "
                "global_mean_pool(h, batch), or pass target= if it answers a row for each node"
            )
        return out[:-1] if self.binding.members else out

    def without_head(self) -> Reference:
        """The same, whose answers are the states of nodes."""
        plain = copy.copy(self)
        plain.head, plain.is_link, plain.parts = None, False, (slice(None),)
        return plain

    def in_float64(self) -> Reference:
        """The same with weights and inputs in float64; not every module runs so."""
        exact = copy.copy(self)
        exact.module = copy.deepcopy(self.module).double()
        exact.head = copy.deepcopy(self.head).double() if isinstance(self.head, nn.Module) else self.head
        exact._dtype = torch.float64
        return exact

    def rounding(
        self, graph: CheckGraph, pairs: Pairs | None, rows: Rows, layer: str | None = None
    ) -> NDArray[np.float64]:
        """Distance of the module's answers from its answers in float64.

        Args:
            rows: its answers on `graph`; its embedding there, if `layer` (as of `embedding`) is given.

        Returns: for each row the largest of each output, [n, outputs]; 0 if the module does not run in
            float64. At most what nudged inputs and another order of sums explain: another branch for
            float64 is no rounding.
        """
        try:
            other = self.in_float64()._rows(graph, pairs, layer)
        except PackagingError:
            return np.zeros((len(rows), len(self.parts)))
        with np.errstate(invalid="ignore"):
            error = self.largest(other - rows)
        if error.max(initial=0.0) <= _SMALL:
            return error
        return np.minimum(error, _NUDGES * self._nudged(graph, pairs, rows, layer))

    def _rows(self, graph: CheckGraph, pairs: Pairs | None, layer: str | None) -> Rows:
        found = self.answers(graph, pairs) if layer is None else self.embedding(graph, layer)
        if found is None:
            raise PackagingError(f"{layer} runs several times")
        return found

    def _nudged(
        self, graph: CheckGraph, pairs: Pairs | None, rows: Rows, layer: str | None
    ) -> NDArray[np.float64]:
        """Change of answers if weights and inputs change by one rounding, and edges are reordered."""
        rng = np.random.default_rng(5)
        near = copy.copy(self)
        near.module, near.head = copy.deepcopy((self.module, self.head))
        for module in near.modules:
            for weight in module.parameters():
                if weight.is_floating_point():
                    weight.data *= 1 + _EPSILON * torch.from_numpy(rng.choice([-1.0, 1.0], weight.shape))
        features = {
            name: np.where(x == np.rint(x), x, x * (1 + _EPSILON * rng.choice([-1.0, 1.0], x.shape)))
            for name, x in graph.features.items()  # whole numbers may be codes
        }
        narrow = {name: x.astype(np.float32) for name, x in features.items()}
        try:
            with np.errstate(invalid="ignore"):
                changed = near._rows(reordered(CheckGraph(narrow, graph.edges)), pairs, layer)
                return self.largest(changed - rows)
        except PackagingError:
            return np.full((len(rows), len(self.parts)), np.inf)

    def largest(self, rows: Rows) -> NDArray[np.float64]:
        """The largest size in each row, NaN and infinity not counted; float64 [n, outputs]."""
        size = np.nan_to_num(np.abs(rows), posinf=0.0)
        return np.stack([size[:, part].max(axis=1, initial=0.0) for part in self.parts], axis=1)

    def differ(self, one: Rows, other: Rows, tolerance: float = TOLERANCE) -> NDArray[np.bool_]:
        """As `differ`, of each output."""
        parts = [differ(one[:, part], other[:, part], tolerance) for part in self.parts]
        return np.asarray(np.logical_or.reduce(parts))

    def only(self, part: slice) -> Reference:
        """The same with the answers of one output."""
        other = copy.copy(self)
        other.parts, other._columns = (slice(None),), part
        return other

    def states_of_nodes(self, graph: CheckGraph) -> list[Tensor]:
        """The same as `states`, with a row for each node.

        Raises: PackagingError: as `states`; also if the number of rows is another.
        """
        states = self.states(graph)
        for rows, target in zip(states, self.targets, strict=True):
            if len(rows) == 1 < graph.num_nodes(target):
                raise NotServable(ONE_ROW)
            if len(rows) != graph.num_nodes(target):
                raise PackagingError(
                    f"the model answers {len(rows)} rows for {graph.num_nodes(target)} nodes of type "
                    f"{target!r}{self._of_edges(len(rows), graph)}"
                )
        return states

    def _of_edges(self, count: int, graph: CheckGraph) -> str:
        """Advice if the module answers as many rows as there are edges, or nodes of all types; else ""."""
        if count == sum(map(len, graph.features.values())):
            return (
                ", one for each node of all types: build the graph of data.to_homogeneous(), as in forward"
            )
        if count not in (len(part.indices) for part in graph.edges.values()):
            return ""
        return (
            ", one for each edge. Scores of edges are those of pairs: the module answers states of nodes, "
            "and head=, a module of (h_src, h_dst) or (h_src, h_dst, edge_attr), scores a pair from them"
            f"{single_columns(self.binding.slots(graph))}"
        )

    def answers(self, graph: CheckGraph, pairs: Pairs | None = None) -> Rows:
        """The module's answers, float64 [n, c]: for all nodes of the target type, or for pairs.

        Raises: PackagingError: as `states_of_nodes`.
        """
        return as_rows(self.outputs(graph, pairs))[:, self._columns]

    def outputs(self, graph: CheckGraph, pairs: Pairs | None = None) -> Tensor:
        """The same as `answers`, in the shape and dtype that the module or the head returns."""
        states = self.states_of_nodes(graph)
        if self.is_link:
            assert pairs is not None
            # torch takes no array with a negative stride, such as a reversed one.
            sources, destinations, *rows = (torch.from_numpy(np.ascontiguousarray(each)) for each in pairs)
            sides = [states[0][sources], states[-1][destinations], *(each.to(self._dtype) for each in rows)]
        else:
            sides = [states[0]]
        return self._behind(sides)

    def _behind(self, sides: list[Tensor]) -> Tensor:
        """The head's answer for rows of states."""
        widths = [math.prod(rows.shape[1:]) for rows in sides]
        if self.head == "dot":
            if widths[0] != widths[-1]:
                raise PackagingError(
                    f"head 'dot' needs states of equal width, got {widths[0]} and {widths[-1]}"
                )
            return (sides[0] * sides[1]).sum(-1)
        if not isinstance(self.head, nn.Module):
            return sides[0]
        try:
            with torch.no_grad():
                out = self.fresh(self.head)(*sides)
        except Exception as error:  # user code
            shapes = " and ".join(f"[n, {width}]" for width in widths)
            raise PackagingError(f"the head fails on {shapes}: {type(error).__name__}: {error}") from error
        if not isinstance(out, Tensor) or len(out) != len(sides[0]):
            shape = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise PackagingError(
                f"the head must answer one row for each input row; for {len(sides[0])} rows it gave {shape}"
            )
        return out

    def embedding(self, graph: CheckGraph, layer: str = "") -> Rows | None:
        """The expected output "embedding" for all nodes of the target type, float64 [N, d].

        Args:
            layer: path of the submodule that reads it; "" with a head means the module's own answer.
        """
        if isinstance(self.head, nn.Module):
            return as_rows(self.states(graph)[0])
        if not layer:
            return None
        seen: list[Tensor] = []

        def hook(module: nn.Module) -> None:
            module.get_submodule(layer).register_forward_pre_hook(
                lambda _, args: seen.append(args[0].clone())
            )

        self.states(graph, hook)
        return as_rows(seen[-1][: graph.num_nodes(self.targets[0])]) if len(seen) == 1 else None


def of_target(out: Any, target: str) -> Any:
    """The answer for one node type, from a module that answers for one or several types, or the only value.

    Raises: PackagingError: there is no answer for it.
    """
    if isinstance(out, dict) and target in out:
        out = out[target]
    if isinstance(out, dict):
        keys = sorted(map(str, out))
        raise PackagingError(
            f"the model returns a dict with {', '.join(map(repr, keys)) or 'no entry'}, and nothing for "
            f"node type {target!r}. If these are node types, choose one with target=...; otherwise name "
            f"the task of each that is served, such as task={{{next(iter(keys), 'name')!r}: 'binary'}}"
        )
    return out[0] if isinstance(out, list | tuple) and len(out) == 1 else out


def differ(one: Rows, other: Rows, tolerance: float = TOLERANCE) -> NDArray[np.bool_]:
    """Rows that differ, bool [n].

    Args:
        tolerance: share of a number, and of the mean size of all.
    """
    if one.shape != other.shape:
        return np.ones(len(one), np.bool_)
    finite = np.abs(one[np.isfinite(one)])
    size = float(finite.mean()) if len(finite) else 0.0
    near = np.isclose(one, other, rtol=tolerance, atol=tolerance * (tolerance + size), equal_nan=True)
    return np.asarray(~near.all(axis=1))


def as_rows(out: Tensor) -> Rows:
    """Any answer as float64 [n, c].

    Raises: PackagingError: complex numbers.
    """
    if out.is_complex():
        raise PackagingError(
            "the model answers complex numbers; return their parts as columns, "
            "torch.view_as_real(out).flatten(1), or their size, out.abs()"
        )
    rows: Rows = out.detach().reshape(len(out), -1).double().numpy()
    return rows


def described(slots: dict[str, Tensor]) -> str:
    """The tensors of a graph, in words."""
    return ", ".join(
        f"{role} of {name!r} {str(rows.dtype).removeprefix('torch.')} {['n', *rows.shape[1:]]}".replace(
            "'n'", "n"
        )
        for (role, _, name), rows in ((slot.partition(":"), rows) for slot, rows in slots.items())
        if role in ("features", "edge_attr", "edge_weight")
    )


def single_columns(slots: Mapping[str, Tensor]) -> str:
    """Advice for a column that was [n] in training; "" if no matrix has a single column."""
    known = {"features": "x", "edge_attr": "edge_attr"}
    single = [
        name.partition(":")[0] for name, rows in slots.items() if rows.dim() == 2 and rows.shape[1] == 1
    ]
    names = [known[role] for role in single if role in known]
    if not names:
        return ""
    shown = " and ".join(f"{name}.view(-1)" for name in dict.fromkeys(names))
    return (
        f"; a single column has two dimensions, [n, 1], also if the data has [n]: write {shown} in forward"
    )


@contextmanager
def originals_in_eval(*modules: object) -> Iterator[None]:
    """Have the modules that were passed in eval mode.

    A function or a hook that a module keeps may hold the module itself, which its copy then runs.
    """
    parts = [part for module in modules if isinstance(module, nn.Module) for part in module.modules()]
    with ExitStack() as stack:
        for part in parts:
            stack.enter_context(patch.object(part, "training", False))
        yield


def eval_copy(module: nn.Module) -> nn.Module:
    """A CPU copy in eval mode with the module's own dtype; half precision becomes float32.

    Raises: PackagingError: the module has uninitialised (lazy) parameters, or cannot be copied.
    """
    for name, parameter in module.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise PackagingError(
                f"parameter {name} is uninitialised: run the model once (in_channels=-1) and load its "
                "trained weights before packaging"
            )
    memo = {id(tensor): tensor.detach().clone() for tensor in _left_over(module)}
    try:
        copied = copy.deepcopy(module, memo)
    except Exception as error:  # any attribute of a user's module may refuse a copy
        raise PackagingError(
            f"{type(module).__name__} cannot be copied: {error}; move what cannot be copied out of the "
            "module"
        ) from error
    copied = copied.cpu()
    if any(p.dtype in HALF for p in copied.parameters()):
        copied = copied.float()
    drop_caches(copied)
    return copied.eval().requires_grad_(False)


def drop_caches(module: nn.Module) -> None:
    """Turn off PyG's `cached=True`, whose values belong to the edges that the module saw first.

    So are reversible layers that free their input, which other code may read.
    """
    for part in module.modules():
        if isinstance(part, InvertibleModule):
            part.disable = True
    for _, part, name in [*_caches(module)]:
        part.cached = False  # type: ignore[assignment]
        setattr(part, name, None)


def _caches(module: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Path and part with `cached=True`, and the name of each attribute that has cached values."""
    for path, part in module.named_modules():
        if getattr(part, "cached", None) is True:
            yield from ((path, part, name) for name in vars(part) if name.startswith("_cached"))


def copy_notes(module: nn.Module) -> list[str]:
    """Notes on what `eval_copy` does not copy: weights of half precision, and values that PyG cached."""
    half = [f"{name} ({p.dtype})" for name, p in module.named_parameters() if p.dtype in HALF]
    kept = [
        f"{at}.{name}".lstrip(".") for at, part, name in _caches(module) if vars(part)[name] is not None
    ]
    notes = []
    if half:
        notes.append(
            f"{half[0]}{f' and {len(half) - 1} more parameters' if half[1:] else ''} are converted to "
            "float32: served answers are those of module.float(), and differ from those in half precision"
        )
    if kept:
        notes.append(
            f"{kept[0]}{f' and {len(kept) - 1} more parts' if kept[1:] else ''} has cached values of the "
            "edges that it saw first (cached=True): they are dropped, answers are for the graph's edges"
        )
    return notes


def shared_copy(module: nn.Module) -> nn.Module:
    """A copy that shares the parameters: values that forward stores on it do not reach the next call."""
    memo: dict[int, Any] = {id(parameter): parameter for parameter in module.parameters()}
    for value in (value for part in module.modules() for value in vars(part).values()):
        if type(value) is OrderedDict and not value:  # hooks: most of the time of a copy goes into them
            memo[id(value)] = OrderedDict()
        elif type(value).__module__ == "torch_geometric.inspector":  # what PyG reads from the class
            memo[id(value)] = value
    return copy.deepcopy(module, memo)


def _left_over(module: nn.Module) -> Iterator[Tensor]:
    """Results that training left as attributes: tensors with a history cannot be copied directly."""
    for part in module.modules():
        for value in vars(part).values():
            values = value.values() if isinstance(value, dict) else value
            for each in values if isinstance(value, dict | list | tuple) else [value]:
                if isinstance(each, Tensor) and each.grad_fn is not None:
                    yield each


def check_numbers(rows: Rows, nodes: IdArray, real: NDArray[np.bool_], module: nn.Module) -> list[str]:
    """Notes about rows that have NaN or infinity.

    Args:
        rows: float64 [n, d], the module's answers.
        nodes: int64 [n], the node of each row, for messages.
        real: bool [n], the rows that are not of the probe; of another length if rows are not of nodes.
    Raises: PackagingError: every real row has NaN.
    """
    counted = real if len(real) == len(rows) else np.ones(len(rows), bool)
    notes = []
    for what, found, then in (
        ("infinity", np.isinf(rows), "JSON has null there"),
        ("NaN", np.isnan(rows), "the label of such a row is -1"),
    ):
        wrong = found.any(axis=1) & counted
        if not wrong.any():
            continue
        if what == "NaN" and wrong.sum() == max(1, real.sum()):
            weights = [name for name, values in module.named_parameters() if values.isnan().any()]
            why = f": its weights {weights[0]} hold NaN" if weights else ", whatever the node"
            raise PackagingError(f"the model answers NaN{why}; it cannot be compared or served")
        notes.append(
            f"the model answers {what} for {wrong.sum()} of {real.sum()} rows that were checked, for "
            f"example node {int(nodes[wrong.argmax()])} of the sample; {then}"
        )
    return notes
