"""`hopline.package`: packages a PyG module for a graph as an artifact folder.

Run the module, split it, compare what would be served, rename into place: the steps of `job.py`.
"""

from __future__ import annotations

import importlib.metadata
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec
import torch
from torch import Tensor, nn
from torch_geometric.nn import GAE, VGAE

from hopline import artifact
from hopline.artifact import Head, ModelSpec, Task
from hopline.engine.embeddings import joined, write_tables
from hopline.engine.encoders import preprocessed
from hopline.errors import NotSplittable, PackagingError, ParityError
from hopline.graph.schema import GRAPH_TYPE
from hopline.observe.progress import shown
from hopline.packaging import settings
from hopline.packaging.activation import Output
from hopline.packaging.arguments import Binding
from hopline.packaging.check_graph import CheckGraph
from hopline.packaging.folder import new_version
from hopline.packaging.head import edge_type_of, head_call, is_link
from hopline.packaging.job import FREEZE, Job
from hopline.packaging.later_types import with_edge_types
from hopline.packaging.learned import LaterNodes, Tables, later_rows, take_out
from hopline.packaging.locality import with_statistics
from hopline.packaging.pairs import check_whole, scores_pairs, split
from hopline.packaging.probe import Probe
from hopline.packaging.reference import Reference, copy_notes, eval_copy, originals_in_eval
from hopline.packaging.repeatable import check_original
from hopline.packaging.report import PackageReport, stage_figures
from hopline.packaging.seed_time import with_seed_time
from hopline.packaging.settings import Device, Fanouts, Role, Sampling, Windows
from hopline.packaging.several import Heads, Several, by_output, node_types_of
from hopline.packaging.signature import bind
from hopline.types import Excluded, Progress, silent

if TYPE_CHECKING:
    from hopline.graph import Graph

_PRODUCERS = ("hopline", "torch", "torch-geometric", "onnx", "onnxscript", "onnxruntime", "numpy")


def unwrap(module: Any, what: str) -> nn.Module:
    """The user's own module inside of wrappers that only change how it is run or trained.

    Args:
        what: "the model" or "the head", for messages.

    Raises:
        PackagingError: not a module, a module for training, or a compiled one that cannot be inspected;
            the message says what to pass instead.
    """
    while (inner := _inside(module)) is not None:
        module = inner
    if not isinstance(module, nn.Module):
        raise PackagingError(_not_a_module(module, what))
    scripted = [name for name, part in module.named_modules() if isinstance(part, torch.jit.ScriptModule)]
    if scripted:
        where = "it" if scripted[0] == "" else f"its {scripted[0]}"
        raise PackagingError(
            f"{what} cannot be packaged: {where} is a TorchScript module, which cannot be inspected; "
            "pass the nn.Module that it was made from, with its weights: "
            "model.load_state_dict(scripted.state_dict())"
        )
    compiled = [name for name, part in module.named_modules() if type(part).__name__ == "OptimizedModule"]
    if compiled:
        raise PackagingError(
            f"{what} cannot be packaged: its {compiled[0]} is compiled by torch.compile. Pass it without: "
            f"model.{compiled[0]} = model.{compiled[0]}._orig_mod"
        )
    parts = [*module.named_modules()]
    if quantised := [(name, type(part)) for name, part in parts if ".quantized" in type(part).__module__]:
        raise PackagingError(
            f"{what} is quantised by torch: {quantised[0][0] or 'it'} ({quantised[0][1].__name__}) scales "
            "by all rows of a call, so that answers change with the batch. Package the float module, then "
            "run hopline quantize"
        )
    if isinstance(module, GAE):
        encoder = "a module whose forward returns model.encode(x, edge_index)"
        raise PackagingError(
            f"{what} is a {type(module).__name__}, which is for training: pass "
            f"{encoder if isinstance(module, VGAE) else 'model.encoder'}, with task='embedding', or with "
            "head='dot' to score pairs as its decoder does"
        )
    return module


def _inside(module: Any) -> Any:
    """The module inside a wrapper of torch or PyG; None if it is not a wrapper."""
    if type(module).__name__ == "OptimizedModule" and hasattr(module, "_orig_mod"):  # torch.compile
        return module._orig_mod
    wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel, torch.optim.swa_utils.AveragedModel)
    return module.module if isinstance(module, wrappers) else None


def _not_a_module(given: Any, what: str) -> str:
    if isinstance(given, dict) and given and all(isinstance(value, Tensor) for value in given.values()):
        return (
            f"{what} is a state dict: weights without the code that reads them. Create the module first: "
            "model = Net(...); model.load_state_dict(weights)"
        )
    if isinstance(given, dict):
        return (
            f"{what} is a dict with {', '.join(map(str, list(given)[:5]))}: a checkpoint holds weights, "
            "not code"
        )
    if isinstance(given, type):
        return f"{what} is the class {given.__name__}: pass an instance with its trained weights"
    return f"{what} must be a torch.nn.Module; got {type(given).__name__}"


#: Held by the one thread that may trace.
_ALONE = threading.Lock()


def package(
    module: nn.Module, graph: Graph, repository: Path | str, *, name: str, fanouts: Fanouts,
    task: Task | Mapping[str, Task], version: str = "1", sampling: Sampling = "uniform",
    max_degree: int | None = None, salt: int = 0,
    head: nn.Module | Mapping[str, nn.Module] | Literal["dot"] | None = None,
    target: str | tuple[str, str] | None = None, classes: Sequence[str] | Mapping[str, Sequence[str]] = (),
    arguments: Mapping[str, Role | None] | None = None, embeddings: Mapping[str, str] | None = None,
    later_nodes: LaterNodes = "refuse", relations: Sequence[str] | None = None,
    output: Output | Mapping[str, Output] = "auto", freeze: bool = False, device: Device = "cpu",
    check_nodes: int = 512, overwrite: bool = False, progress: Progress | bool | None = None,
    preprocess: Mapping[Any, Any] | None = None, edge_type: str | tuple[str, str, str] | None = None,
    exclude_seed_edges: Excluded = "none", windows: Windows | None = None,
) -> PackageReport:  # fmt: skip
    """Package a trained PyG module for serving.

    Tracing replaces functions of torch and PyG for its duration: meanwhile no other thread of the process
    may run a model. A second call in another thread waits for the first.

    Args:
        module: called with node features and edges (`x, edge_index`, or `x_dict, edge_index_dict`) and
            answers one row for each node. It is not changed; a copy in eval mode is packaged.
        graph: the graph on which it will be served; its schema becomes part of the artifact.
        repository: folder of models; the artifact is `<repository>/<name>/<version>`.
        fanouts: sampled neighbours for each layer, seed-outward; one list, or edge type -> list.
        task: how logits become probabilities and labels. Of a module (or head) that answers a dict, a
            dataclass or a tuple: the name of each output that is served -> its task. Values of a tuple are
            named output_0, output_1, …, or, if all are served, as here. Of a module that answers for
            several node types: each type -> its task; requests name the type.
        sampling: how neighbours are chosen: uniformly, the most recent ones, or by edge weight.
        max_degree: hard cap on the neighbours of one node at one layer.
        salt: key of the sampler; another salt draws other neighbours.
        head: a further module from final states to logits: of one argument (`head(h)`), of two for
            link prediction (`head(h_src, h_dst)`), or of three for scores of edges with their own columns
            (`head(h_src, h_dst, edge_attr)`); "dot" scores a pair by the dot product. A mapping has
            a head for each of several tasks, or for each of several node types.
        target: the node type that requests name, or (source, destination) types of a pair; needed only
            if there are several.
        classes: names of the output columns; of several outputs, by name of the output.
        arguments: argument name of forward -> "features", "edge_index", "edge_attr", "edge_weight",
            "edge_type", "adj_t", "batch", "data" (or None to leave an optional one out), if names are
            not the usual ones.
        embeddings: name of an `nn.Embedding` or parameter of the module -> the node type of whose nodes it
            has a row each, in the order of the graph. It leaves the weights and becomes columns of the
            artifact, which are found by the nodes' ids.
        later_nodes: what a node of a later graph gets that has no such row: "refuse" (the graph is not
            served), "zero", "mean-row" (the mean of the table's rows), or name of each table -> one of
            these or a row.
        relations: edge type keys, in the order of an `edge_type` argument's numbers, or the one edge
            type that a homogeneous model reads.
        output: whether the module answers "logits" or "probabilities"; "auto" detects it. The server
            applies the task's sigmoid or softmax to logits only. Of several outputs, by name.
        freeze: statistics of all rows, such as the mean of all nodes in PyG's `LayerNorm(mode="graph")`,
            are computed once, on this graph, and are constants: a later graph is answered with them.
        device: where stages are computed: "cuda" keeps attention in the stages, so that a GPU computes it.
            On a CPU such a package answers the same, several times slower.
        check_nodes: nodes of each type of the graph on which the package is checked.
        overwrite: replace an existing version.
        progress: whether steps are shown on stderr while they run; None shows them on a terminal and in a
            notebook. A function is called with each step instead.
        preprocess: node type or edge type -> fitted scikit-learn transformer of its columns; None if they
            are not read. Its result are the module's features or edge attributes; requests have columns.
        edge_type: of the edges whose attributes a head of three arguments reads; needed only if several
            types join the targets.
        exclude_seed_edges: edges that training hid from the pair or edge that it scored: "self", or
            "reverse" with those back. Requests that do not say otherwise are answered so.
        windows: edge type -> the time before `as_of` within which edges are read, "30d" or a number in the
            unit of the graph's times; or a list with one for each layer, seed-outward, None for any time.

    Returns: where the artifact is, what it holds and how well it agrees.

    Raises:
        PackagingError: bad arguments, or a version that exists.
        NotServable: an answer depends on more than the node's neighbourhood; the message says on what.
        NotSplittable: the model cannot be split into stages; the message says where and why.
        ParityError: what would be served differs from the module's answers.
    """
    started = time.perf_counter()
    schema = graph.schema
    tasks: dict[str, Task] = by_output(task, "task")
    outputs: dict[str, Output] = by_output(output, "output", tasks)
    for named, value, hint in (
        *(("task", value, Task) for value in tasks.values()),
        *(("output", value, Output) for value in outputs.values()),
        ("device", device, Device),
        ("sampling", sampling, Sampling),
        ("exclude_seed_edges", exclude_seed_edges, Excluded),
    ):  # fmt: skip
        artifact.check_choice(named, value, get_args(hint))
    settings.check_sampling(sampling, schema)
    class_names = by_output(classes, "classes", tasks)
    class_names = {key: settings.checked_names(value, "classes") for key, value in class_names.items()}
    relations = None if relations is None else settings.checked_names(relations, "relations")
    max_degree = None if max_degree is None else settings.checked_integer(max_degree, "max_degree", 1)
    salt = settings.checked_integer(salt, "salt")
    check_nodes = settings.checked_integer(check_nodes, "check_nodes", 1)
    if arguments is not None and not isinstance(arguments, Mapping):
        raise PackagingError(f"arguments: argument name -> what it receives; got {arguments!r}")
    module = unwrap(module, "the model")
    if isinstance(head, Mapping | nn.ModuleDict):
        head = Heads({key: unwrap(each, f"head {key!r}") for key, each in head.items()})
    elif isinstance(head, nn.Module):
        head = unwrap(head, "the head")
    elif head not in (None, "dot"):
        raise PackagingError(f"head is a module, or 'dot'; got {head!r}")
    asked = module if head is None and scores_pairs(module) else None
    if asked is not None:
        module, head = split(asked, target, embeddings)
    with shown(progress, f"packaging {name}") as step:
        made = preprocessed(graph, preprocess or {}, step)
    graph = made.graph
    whole, tables, given = graph, Tables(), module
    if embeddings:
        module = eval_copy(module)
        tables = take_out(module, embeddings, graph)
        graph = joined(graph, tables)
    rows_of_later = later_rows(tables, later_nodes)
    schema = graph.schema
    binding = bind(
        module, schema, arguments=arguments, relations=relations, left_out=graph.left_out, tables=embeddings
    )
    types = node_types_of(tasks, target, schema, head)
    targets = types or _targets(target, binding, head)
    if not {*types} <= {*binding.node_types}:
        raise PackagingError(
            f"{GRAPH_TYPE!r} is not a node type of this model; package it for graphs alone"
        )
    binding = with_seed_time(binding, module, targets, graph)
    if targets != (GRAPH_TYPE,):
        binding = replace(binding, members={})
    elif max_degree is not None:
        raise PackagingError("max_degree would leave out nodes of a graph")
    row_type = edge_type_of(head, targets, schema, edge_type)
    called = binding.called + head_call(head, targets, row_type)
    served: Any = head
    excluded = "" if exclude_seed_edges == "none" else exclude_seed_edges
    if excluded and not is_link(head):
        raise PackagingError("exclude_seed_edges: for a model of pairs or edges, with a head of both ends")
    if "" not in tasks and is_link(head):
        raise PackagingError("a model of pairs has one output: package it once for each of its tasks")
    if "" not in tasks and head is None and not types:
        module = Several(module, tuple(tasks), targets[0])
    elif "" not in tasks and not types:
        served = Several(served, tuple(tasks), targets[0])
    elif isinstance(head, Heads) and not types:
        raise PackagingError(f"head= names {', '.join(head.names)}: task={{...}} gives each its task")
    of_type = dict(zip(head.names, head.heads, strict=True)) if isinstance(head, Heads) else {}
    ends: list[tuple[tuple[str, ...], Mapping[str, Task], Any]] = [(targets, tasks, served)]
    if types:
        ends = [((name,), {name: tasks[name]}, of_type.get(name, served)) for name in types]
    jobs = [
        Job(
            model=eval_copy(module).float(),
            head=eval_copy(end).float() if isinstance(end, nn.Module) else end, binding=binding,
            graph=graph, tasks=own, targets=each, fanouts=settings.checked_fanouts(fanouts),
            progress=silent, reference=Reference(module, binding, each, end, is_link(end)),
            notes=[called, *copy_notes(given), *made.notes], edge_type=row_type, device=device,
            windows=windows or {},
        )
        for each, own, end in ends
    ]  # fmt: skip
    spec = ModelSpec(
        name=name, version=version, task=tasks.get("", "several"), num_layers=0,
        graph_schema=msgspec.json.decode(msgspec.json.encode(schema)), fanouts={},
        head=Head(targets[0], 0, exclude_seed_edges=excluded),
        sampling=sampling, max_degree=max_degree, salt=salt,
        classes=class_names.get("", ()), called=called,
        producer={name: importlib.metadata.version(name) for name in _PRODUCERS},
    )  # fmt: skip
    with (
        _ALONE,
        shown(progress, f"packaging {name}") as step,
        new_version(Path(repository), name, version, overwrite=overwrite) as place,
        torch.no_grad(),
        originals_in_eval(given, head),
    ):
        later: list[str] = []
        untouched = {}
        for job, (_, _, end) in zip(jobs, ends, strict=True):
            job.progress = step
            if freeze:
                untouched[job.targets] = _freeze(job, check_nodes)
            job.ask_module(check_nodes, outputs, class_names)
            if asked is not None:
                check_whole(asked, job.reference, job.probe, job.pairs, job.rows)
            if not tables:
                check_original(job.reference, module, end, job.probe.check, job.pairs, job.rows)
            spec, notes = with_edge_types(spec, job.reference, job.probe, job.pairs, job.rows)
            later += notes
        if "" not in tasks:
            first, *others = (Head(job.targets[0], 0, outputs=job.outputs) for job in jobs)
            oldest = artifact.HEADS_FORMAT if others else artifact.OUTPUTS_FORMAT
            spec = msgspec.structs.replace(spec, head=first, heads=tuple(others), format=oldest)
        job = jobs[0]
        try:
            written = job.write_stages(place.folder, spec, jobs[1:])
            for job in jobs:
                written = job.judge(place.folder, written)
                if freeze:
                    written = _compared(place.folder, written, job, untouched[job.targets])
        except (NotSplittable, ParityError) as reason:
            job.refuse(reason)
        if tables:
            plain = msgspec.json.decode(msgspec.json.encode(whole.schema))
            learned = write_tables(place.folder, whole, tables, rows_of_later)
            has_rows = any(each.row for each in learned.values())
            oldest = max(written.format, artifact.HEADS_FORMAT if has_rows else 1)
            written = msgspec.structs.replace(
                written, graph_schema=plain, embeddings=learned, format=oldest
            )
        spec = artifact.write_spec(place.folder, made.write(place.folder, written))
        rules = {name: each for job in jobs for name, each in job.rules.items()}
        stages = stage_figures(place.folder, spec, rules)
    shown_notes = tuple(dict.fromkeys([*(note for job in jobs for note in job.notes), *later]))
    return PackageReport(place.path, spec, stages, shown_notes, time.perf_counter() - started)


def _freeze(job: Job, check_nodes: int) -> Reference:
    """Make statistics of all rows constants, those of the whole graph; returns the module without them."""
    job.progress(FREEZE, 0.0)
    untouched, small, whole = job.reference, CheckGraph.of(job.graph, check_nodes), CheckGraph.of(job.graph)
    job.reference, frozen = with_statistics(untouched, small, whole)
    job.binding = job.reference.binding
    job.notes += frozen.notes
    job.progress(FREEZE, 1.0)
    return untouched


def _compared(folder: Path, spec: ModelSpec, job: Job, untouched: Reference) -> ModelSpec:
    """Compare with the module as it was passed, on the whole graph. Raises: ParityError: they differ."""
    frozen, untouched.parts = job.binding.frozen, job.reference.parts
    probe = Probe.of_all(job.graph)
    own = spec.by_type[job.targets[0]]
    parity = {**spec.parity, "whole_graph": job.compare(folder, own, probe, job.sides(probe), untouched)}
    named = {} if frozen is None else {name: value.tolist() for name, value in frozen.named.items()}
    return msgspec.structs.replace(spec, frozen=named, parity=parity)


def _targets(target: str | tuple[str, str] | None, binding: Binding, head: object) -> tuple[str, ...]:
    """The node types whose final states are read: one, or two different ones for links."""
    known = binding.node_types + ((GRAPH_TYPE,) if binding.members else ())
    if target is None and binding.members:
        return (GRAPH_TYPE,)
    if target is None:
        if len(known) > 1:
            what = "target=(source type, destination type)" if is_link(head) else "target=<node type>"
            raise PackagingError(f"the graph has the node types {', '.join(known)}: name one with {what}")
        return known
    if not isinstance(target, str | tuple | list):
        raise PackagingError(f"target: a node type, or a pair of them; got {target!r}")
    named = (target,) if isinstance(target, str) else tuple(dict.fromkeys(target))
    for node_type in named:
        if node_type not in known:
            raise PackagingError(
                f"target {node_type!r} is not a node type; the node types are {', '.join(known)}"
            )
    if len(named) > 1 and not is_link(head):
        raise PackagingError(
            "a pair of target types is for link models: pass head='dot' or head(h_src, h_dst)"
        )
    return named
