"""One run of `package`: its inputs, the module's answers, and each step from there to files."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

import msgspec
import numpy as np
import torch
from torch import fx, nn

from hopline import artifact
from hopline.artifact import NEGATIVE, Head, ModelSpec, NamedOutput, Stage, StageInput, Task
from hopline.errors import NotServable, NotSplittable, PackagingError, ParityError
from hopline.packaging import gate
from hopline.packaging import head as heads
from hopline.packaging.activation import Output, ToLogits, answers_probabilities
from hopline.packaging.advice import DIFFERS, FIXED, NARROW, UNLIKE_LIST, remedy
from hopline.packaging.analysis import check_rows
from hopline.packaging.arguments import Binding, unlike_matrix
from hopline.packaging.check_graph import CheckGraph, Kinds
from hopline.packaging.export import OPSET, export, export_stage
from hopline.packaging.locality import check_sizes, explain, works_on_all
from hopline.packaging.lower import trace_and_lower
from hopline.packaging.probe import Probe, Unseen, chosen, copied
from hopline.packaging.proxy import BRANCH
from hopline.packaging.reference import Pairs, Reference, Rows, check_numbers
from hopline.packaging.regions import refuse_readouts
from hopline.packaging.repeatable import check_repeatable
from hopline.packaging.settings import CheckedFanouts, Device, Windows, resolve_fanouts, resolve_windows
from hopline.packaging.several import Several, columns, of_output
from hopline.packaging.split import Splitter, StagePlan
from hopline.packaging.trace import Traced
from hopline.types import AnyArray, Progress

if TYPE_CHECKING:
    from hopline.graph import Graph

#: Names of the steps, for progress output; the stages in between have their own names.
MODULE = "running the model on a part of the graph"
TRACE = "tracing the model"
FREEZE = "computing statistics on the whole graph"
COMPARE = "comparing served answers with the model"

#: Real nodes from which the nodes that requests describe are chosen.
_COPIED_FROM = 64


@dataclass(slots=True)
class Job:
    """One run of `package`: its inputs, and what it has found out so far.

    Attributes:
        reference: the user's own module, to compare with.
        check: real nodes and edges.
        probe: the graph on which served answers are compared: these nodes and strangers.
        without: kinds of edges that are not compared: the graph lacks them, and the model reads a matrix.
        edge_type: of the edges whose rows the head reads, or "".
        rows: the module's answers for all nodes of the probe (for its pairs, of a link model).
        outputs: of the module; a single one has no name.
        are_probabilities: whether each ends in its task's activation.
        embedding: the module's embedding, if it exposes one; `embedding_layer` reads it.
        decisions, narrow: lines of its source that branch on values of tensors, compute in half precision.
        rules: as in `StageFigures`, by the name of the stage.
    """

    model: nn.Module
    head: nn.Module | Literal["dot"] | None
    binding: Binding
    graph: Graph
    tasks: Mapping[str, Task]
    targets: tuple[str, ...]
    fanouts: CheckedFanouts
    progress: Progress
    reference: Reference
    edge_type: str = ""
    device: Device = "cpu"
    windows: Windows = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    check: CheckGraph = field(default_factory=lambda: CheckGraph({}, {}))
    probe: Probe = field(init=False)
    rows: Rows = field(init=False)
    without: Kinds = field(default_factory=dict)
    pairs: Pairs | None = None
    outputs: tuple[NamedOutput, ...] = ()
    are_probabilities: tuple[bool, ...] = ()
    embedding: Rows | None = None
    embedding_layer: str = ""
    decisions: list[str] = field(default_factory=list)
    narrow: list[str] = field(default_factory=list)
    rules: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def ask_module(
        self, check_nodes: int, output: Mapping[str, Output], classes: Mapping[str, tuple[str, ...]]
    ) -> None:
        """Run the user's module on a real graph and on the probe.

        Raises:
            PackagingError: it fails, its columns do not fit the task, or it ends in another activation.
            NotServable: its answers are random, or depend on the order of edges or the number of nodes.
        """
        self.progress(MODULE, 0.0)
        self.check = CheckGraph.of(self.graph, check_nodes)
        self.without = unlike_matrix(self.binding, self.graph)
        if self.binding.members:  # some that have no form take minutes for a large graph
            self.reference.states(self.check, refuse_readouts)
        try:
            self.reference.states_of_nodes(self.check)
        except PackagingError as error:
            if works_on_all(self.reference, self.graph, self.check):
                raise NotServable(
                    f"the model works on the whole graph and not on a part of it ({error}). It identifies "
                    "nodes by their row: declare a table with a row for each node, embeddings={'emb': node "
                    "type}, and read edges from forward's argument, not from a buffer"
                ) from error
            raise
        try:
            try:
                self._run_on_probe(wide=True)
            except PackagingError:  # the module may refuse features unlike the real ones
                self._run_on_probe(wide=False)
        except PackagingError as error:
            if not self.is_link:
                why = explain(self.reference, self.probe)
                if why:
                    raise NotServable(f"the model cannot be served node by node: {why}") from error
            raise
        fewer = self.pairs and tuple(each[:0] for each in self.pairs)
        runs = (self.probe.check, self.pairs), (self.check, fewer)
        shapes = [self.reference.outputs(*each).shape for each in runs]
        heads.check_shape(self._task or "regression", *shapes)
        self._find_outputs(classes)
        sides = self.pairs or (np.arange(len(self.rows)),)
        real = np.logical_and.reduce(
            [side < self.check.num_nodes(name) for name, side in zip(self.targets, sides, strict=False)]
        )
        self.notes += check_numbers(self.rows, sides[0], real, self.reference.module)
        seen = check_repeatable(self.reference, self.probe, self.pairs, self.rows)
        self.decisions, self.narrow = seen.decisions, seen.narrow
        check_sizes(self.reference, self.probe, self.pairs, self.rows, self.decisions)
        for each, part in zip(self.outputs, self.reference.parts, strict=True):
            with of_output(each.name):
                self.are_probabilities += (
                    answers_probabilities(
                        self.reference.only(part), self.probe.check, self.pairs, self.rows[:, part],
                        each.task, output.get(each.name) or output.get("", "auto"),
                    ),
                )  # fmt: skip
        self.progress(MODULE, 1.0)

    def _find_outputs(self, classes: Mapping[str, tuple[str, ...]]) -> None:
        """Find the columns of each output. Raises: PackagingError: they do not fit its task."""
        alone = zip(self.tasks, self.rows.shape[1:], strict=False)
        end, widths = 0, dict(alone) if self._task else self._widths()
        for name, width in widths.items():
            names = classes.get(name, classes.get("", ()))
            each = NamedOutput(name, self.tasks[name], (end, end + width), names)
            with of_output(name):
                heads.check_task(each.task, width, names)
            self.outputs, end = (*self.outputs, each), end + width
        self.reference.parts = tuple(slice(*each.columns) for each in self.outputs)

    def _widths(self) -> dict[str, int]:
        """Columns of each of several outputs, by a call of the module; notes those that are not served."""
        several: Any = self._several
        found: dict[str, Any] = {}
        hook = several.module.register_forward_hook(lambda _, args, out: found.update(several.named(out)))
        self.reference.answers(self.check)
        hook.remove()
        if left := [name for name in found if name not in self.tasks and found[name] is not None]:
            self.notes.append(f"not served, as task= does not name them: {', '.join(left)}")
        return {name: columns(name, found[name]).shape[1] for name in self.tasks}

    @property
    def _several(self) -> Several | None:
        of = self.reference.head or self.reference.module
        return of if isinstance(of, Several) else None

    @property
    def _task(self) -> Task | None:
        """Of the only output; None if there are several."""
        return None if self._several else next(iter(self.tasks.values()))

    def _run_on_probe(self, *, wide: bool) -> None:
        self.probe = self._probe(wide=wide)
        if self.is_link:
            self.pairs = self.sides(self.probe)
        self.rows = self.reference.answers(self.probe.check, self.pairs)

    def sides(self, probe: Probe, *, real: bool = True) -> tuple[AnyArray, ...]:
        """Returns what is requested; as `gate.sides_of`."""
        return gate.sides_of(probe, self.targets, self.is_link, edge_type=self.edge_type, real=real)

    def _probe(self, **options: Any) -> Probe:
        schema = self.graph.schema
        signed = [key for key, edges in schema.edge_types.items() if edges.signed_weight]
        options = {"without": self.without, "signed": signed, **options}
        lists = self.fanouts.values() if isinstance(self.fanouts, dict) else [self.fanouts]
        hops = max(map(len, lists), default=0)
        return Probe.of(self.check, hops, both_directions=schema.both_directions, **options)

    def _answered(
        self, probe: Probe, sides: Pairs, check: CheckGraph, pairs: Pairs | None, rows: Rows,
        embedding: Rows | None = None, unseen: Unseen | None = None, of: Reference | None = None,
    ) -> gate.Answered:  # fmt: skip
        rounding, inner = (of or self.reference).rounding(check, pairs, rows), None
        if pairs is None:
            rows, rounding = rows[sides[0]], rounding[sides[0]]
        if embedding is not None:
            inner = self.reference.only(slice(None)).rounding(check, None, embedding, self.embedding_layer)
            embedding, inner = embedding[sides[0]], inner[sides[0]]
        ends = self.are_probabilities
        clock = self.binding.seed_time
        return gate.Answered(
            probe, sides, rows, self.outputs, ends, embedding, rounding, inner, unseen, clock
        )

    def _earlier(self, spec: ModelSpec) -> list[gate.Answered]:
        """The module's answers at earlier times, if it reads the time of the question."""
        of, found = copy.copy(self.reference), []
        edges = [part.time for part in self.check.edges.values() if part.time is not None]
        times = np.concatenate([*edges, [self.binding.seed_time]])
        for time in np.quantile(times, (0.5, 0.9), method="nearest").tolist() if spec.reads_times else ():
            of.binding = replace(self.binding, seed_time=time)
            check, sides = self.probe.check.until(time), self.pairs or self.sides(self.probe)
            rows = of.answers(check, self.pairs)
            inner = of.embedding(check, self.embedding_layer) if self.embedding is not None else None
            found.append(self._answered(self.probe, sides, check, self.pairs, rows, inner, of=of))
            found[-1].as_of = time
        return found

    def _agrees(self, folder: Path, spec: ModelSpec, signed: list[str]) -> bool:
        """True if served answers are the module's where weights of such edges are below 0."""
        probe = self._probe(wide=False, seed=1, signed=signed)
        try:
            self.compare(folder, spec, probe, self.sides(probe, real=False), self.reference)
        except PackagingError:
            return False
        return True

    def compare(
        self, folder: Path, spec: ModelSpec, probe: Probe, sides: Pairs, of: Reference
    ) -> dict[str, float]:
        """Compare what is served on a graph with a module there; as `gate.judge`."""
        pairs = sides if self.is_link else None
        rows = of.answers(probe.check, pairs)
        return gate.judge(folder, spec, self._answered(probe, sides, probe.check, pairs, rows, of=of))

    def _unseen(self, spec: ModelSpec) -> list[gate.Answered]:
        """The module's answers for nodes that requests describe, if the artifact accepts such nodes."""
        read = (self.graph.schema.edge_types[key] for key in spec.fanouts)
        if self.is_link or any(edges.reverse_of for edges in read) or spec.reads_times:
            return []
        target, check = self.targets[0], self.probe.check
        of = chosen(check, target, self.probe.seeds(target, _COPIED_FROM))
        found = []
        for linked in (False, True):
            unseen = copied(check, target, of, linked=linked)
            sides = (check.num_nodes(target) + np.arange(len(of)),)
            rows = self.reference.answers(unseen.check)
            embedding = None
            if self.embedding is not None:
                embedding = self.reference.embedding(unseen.check, self.embedding_layer)
            found.append(self._answered(self.probe, sides, unseen.check, None, rows, embedding, unseen))
        return found

    def judge(self, folder: Path, spec: ModelSpec) -> ModelSpec:
        """Compare what a server would answer with the module.

        Raises: ParityError: they differ.
        """
        self.progress(COMPARE, 0.0)
        own, before = spec.by_type[self.targets[0]], cast(dict[str, float], spec.parity.get("served", {}))
        sides = self.pairs or self.sides(self.probe)
        answered = self._answered(
            self.probe, sides, self.probe.check, self.pairs, self.rows, self.embedding
        )
        found = gate.judge(folder, own, answered, [*self._unseen(own), *self._earlier(own)])
        self.notes += answered.imprecise()
        served = before | {name: max(value, before.get(name, 0.0)) for name, value in found.items()}
        figures: dict[str, object] = {
            "max_abs_diff": max(served.values()), "tolerance": gate.TOLERANCE, "served": served,
            "check_nodes": {key: len(rows) for key, rows in self.probe.check.features.items()},
            "check_edges": {key: len(edges.indices) for key, edges in self.probe.check.edges.items()},
        }  # fmt: skip
        self.progress(COMPARE, 1.0)
        types = self.graph.schema.edge_types
        read = {key: types[key] for key in self.check.edges}
        signed = [key for key, edges in read.items() if edges.has_weight and not edges.signed_weight]
        relied_on = dict(self.without)
        if signed and not self._agrees(folder, own, signed):
            relied_on |= {key: (*relied_on.get(key, ()), NEGATIVE) for key in signed}
        self.notes += [
            f"the answers rely on {key} having no {' and no '.join(kinds)}: a live graph that can get such "
            "edges is refused, and so are a later graph and a request with them"
            for key, kinds in relied_on.items()
        ]
        without = dict(spec.edges_without)
        for key, kinds in relied_on.items():
            without[key] = tuple(dict.fromkeys((*without.get(key, ()), *kinds)))
        return msgspec.structs.replace(spec, parity=figures, edges_without=without)

    def refuse(self, reason: NotSplittable | ParityError) -> NoReturn:
        """Raise `reason`, or an error that says on what else than its neighbourhood an answer depends."""
        error = self._explained(reason)
        if error is reason:
            raise reason  # "from reason" would make it its own cause
        raise error from reason

    def _explained(self, reason: NotSplittable | ParityError) -> PackagingError:
        if self.binding.reads_sparse and not self._agrees_as_list():
            return NotServable(f"the model cannot be served: {UNLIKE_LIST}. The check found: {reason}")
        why = ""
        if not self.binding.members and "answer has rows of node" not in str(reason):
            is_branch = isinstance(reason, ParityError) or BRANCH in str(reason)
            why = explain(self.reference, self.probe, self.decisions, is_branch=is_branch)
        if why:
            return NotServable(f"the model cannot be served node by node: {why}. The check found: {reason}")
        if isinstance(reason, ParityError):
            half = [f"forward computes in half precision ({line}), and {NARROW}" for line in self.narrow]
            fixed = [FIXED] if "Got invalid dimensions" in str(reason) else []
            return ParityError(f"{reason}; {[*half, *fixed, DIFFERS][0]}")
        known = remedy(str(reason))
        return NotSplittable(f"{reason}{known}") if known else reason

    def _agrees_as_list(self) -> bool:
        """True unless the module's answers over a list are others than those over a sparse matrix."""
        listed = copy.copy(self.reference)
        listed.sparse = False
        try:
            rows = listed.answers(self.probe.check, self.pairs)
        except PackagingError:  # code over the matrix itself, adj_t.sum(1), has another remedy
            return True
        return not self.reference.differ(self.rows, rows).any()

    @property
    def is_link(self) -> bool:
        """True if the head scores pairs."""
        return heads.is_link(self.head)

    def write_stages(self, folder: Path, spec: ModelSpec, others: Sequence[Job] = ()) -> ModelSpec:
        """Write the stages and the head, and check them.

        Args:
            others: jobs of the same model for heads of further node types, over the same stages.

        Raises: NotSplittable, ParityError, PackagingError: as `package`.
        """
        self.progress(TRACE, 0.0)
        slots, jobs = self.binding.slots(self.check), (self, *others)
        targets = tuple(name for job in jobs for name in job.targets)
        traced, lowered = trace_and_lower(self.model, self.binding, targets, slots, device=self.device)
        check_rows(traced, self.binding, slots, self.probe.check)
        ends = [job._finals(traced) for job in jobs]
        self.progress(TRACE, 1.0)
        finals = {name: node for own, _ in ends for name, node in own.items()}
        splitter = Splitter(traced, lowered, finals)
        plans = splitter.stages()
        self.rules = {f"{plan.level}.{plan.node_type}": plan.rules for plan in plans}
        edge_types = {item.edge_type for plan in plans for item in plan.inputs if item.edge_type}
        if spec.sampling == "weighted" and (signed := self.graph.schema.signed(edge_types)):
            raise PackagingError(f"{'; '.join(signed)} (sampling 'uniform' accepts any)")
        count = splitter.num_layers
        members = {*self.binding.members.values()}
        fanouts = resolve_fanouts(self.fanouts, count - bool(members), edge_types - members)
        if members:  # of a graph, all are read
            fanouts = {key: (-1, *each) for key, each in fanouts.items()}
            fanouts |= dict.fromkeys(sorted(members), (-1,) * count)
        windows = resolve_windows(self.windows, count, fanouts, self.graph.schema)
        spec = msgspec.structs.replace(
            spec, num_layers=count, fanouts=fanouts, windows=windows, opset=OPSET
        )
        spec = self._export(folder, spec, plans)
        described = []
        for job, head, (_, plan) in zip(jobs, (spec.head, *spec.heads), ends, strict=True):
            file = "head.onnx" if job is self else f"head.{head.node_type}.onnx"
            described.append(job._write_head(folder / file, head, plan))
        return msgspec.structs.replace(spec, head=described[0], heads=tuple(described[1:]))

    def _finals(self, traced: Traced) -> tuple[dict[str, fx.Node], heads.HeadPlan]:
        """The value that each target's last state holds, and the head."""
        outputs = {name: traced.outputs[name] for name in self.targets}
        dims = tuple(int(np.prod(traced.values[node].shape[1:])) for node in outputs.values())
        ends = self.are_probabilities
        then = ToLogits(self.outputs, ends).eval() if any(ends) else None
        if self.is_link:
            widths = dims if len(dims) == 2 else dims * 2
            if self.edge_type:
                widths = (*widths, self.graph.schema.edge_types[self.edge_type].attr_dim)
            if not isinstance(self.head, nn.Module):
                return outputs, heads.HeadPlan("link", None, widths, 1)
            decoder = heads.Columns(self.head, then)
            return outputs, heads.HeadPlan("link", decoder, widths, self.rows.shape[1])
        ((node_type, output),) = outputs.items()
        if isinstance(self.head, nn.Module):
            head = heads.Columns(self.head, then)
            self.embedding = self.reference.embedding(self.probe.check)
            return {node_type: output}, heads.HeadPlan("node", head, dims, self.rows.shape[1])
        task = self._task
        below = heads.logits_below(traced, output, task) if task and then else None
        last = output if below is None else below
        state = last if task == "embedding" else heads.embedding_of(traced, last, several=not task)
        self.embedding_layer = heads.linear_after(traced, state, output)
        self.embedding = self.reference.embedding(self.probe.check, self.embedding_layer)
        if below is not None:
            traced.outputs[node_type] = output = below
        width = int(np.prod(traced.values[state].shape[1:]))
        trailing = heads.trailing_module(traced, state, output)
        if below is None and then is not None:
            trailing = then if trailing is None else nn.Sequential(trailing, then).eval()
        return {node_type: state}, heads.HeadPlan("node", trailing, (width,), dims[0])

    def _export(self, folder: Path, spec: ModelSpec, plans: list[StagePlan]) -> ModelSpec:
        """Write the file of each stage."""
        levels: list[dict[str, Stage]] = [{} for _ in range(spec.num_layers + 1)]
        dims = {(plan.level, plan.node_type): plan.state_dim for plan in plans}
        for plan in plans:
            step = f"writing stage {plan.level} of {plan.node_type}"
            self.progress(step, 0.0)
            stage = Stage(plan.state_dim, None, plan.inputs)
            if plan.module is not None:
                file, query_file = f"layers/{plan.level}.{plan.node_type}.onnx", ""
                widths = [self._width(item, plan, dims) for item in plan.inputs]
                if plan.level == 0 and not sum(widths):
                    raise NotSplittable(
                        f"node type {plan.node_type!r} has no features, so that no stage can compute its "
                        "rows; a feature column of ones would let the model be split"
                    )
                if plan.query is not None:
                    query_file = f"layers/{plan.level}.{plan.node_type}.query.onnx"
                    of_query = [self._width(item, plan, dims) for item in plan.query_inputs]
                    export_stage(plan.query, plan.query_inputs, of_query, folder / query_file)
                packed = export_stage(plan.module, plan.inputs, widths, folder / file)
                queries = query_file, plan.query_dim, plan.query_inputs
                stage = Stage(plan.state_dim, file, plan.inputs, packed, "", *queries)
            levels[plan.level][plan.node_type] = stage
            self.progress(step, 1.0)
        kinds = {item.kind for plan in plans for item in plan.inputs}
        oldest = max(spec.format, artifact.ATTENTION_FORMAT if "attend" in kinds else 1)
        oldest = artifact.EDGE_ROWS_FORMAT if "nodes" in kinds else oldest
        oldest = artifact.EDGE_HEAD_FORMAT if self.edge_type else oldest
        oldest = artifact.EXCLUDED_FORMAT if spec.head.exclude_seed_edges else oldest
        oldest = artifact.TIMES_FORMAT if kinds & artifact.TIMES or spec.windows else oldest
        return msgspec.structs.replace(spec, levels=tuple(levels), format=oldest)

    def _width(self, item: StageInput, plan: StagePlan, dims: dict[tuple[int, str], int]) -> int:
        """Columns of an input, 0 if its kind defines the whole shape; `dims`: those of each state."""
        if item.attention is not None:
            return item.attention.width
        if item.columns is not None:
            return item.columns[1] - item.columns[0]
        if item.kind == "features":
            return self.check.features[plan.node_type].shape[1]
        edges = self.graph.schema.edge_types.get(item.edge_type)
        if item.kind in ("self", "sources", "reduce"):
            return dims[plan.level - 1, plan.node_type if edges is None else edges.src]
        return edges.attr_dim if item.kind == "edge_attr" and edges is not None else 0

    def _write_head(self, path: Path, described: Head, head: heads.HeadPlan) -> Head:
        if head.module is not None:
            examples = [torch.zeros(7, width) for width in head.widths]
            rows: Any = [{0: torch.export.Dim("n", min=1)}] * len(examples)
            names = ["h"] if head.kind == "node" else ["h_src", "h_dst", "edge_attr"][: len(examples)]
            export(head.module, examples, rows, names, "logits", path)
        return msgspec.structs.replace(
            described, output_dim=head.output_dim, kind=head.kind,
            file=None if head.module is None else path.name,
            dst_node_type=self.targets[-1] if head.kind == "link" else "", edge_type=self.edge_type,
        )  # fmt: skip
