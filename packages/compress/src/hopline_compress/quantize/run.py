"""`hopline quantize`: check, calibrate, search, measure, write.

Nothing appears in the repository before the gate is passed.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from hopline.artifact import ModelSpec, read_spec, write_spec
from hopline.engine.answer import Answerer
from hopline.engine.model import Model
from hopline.engine.request_ids import not_found
from hopline.engine.schema import check_schema
from hopline.engine.tasks import default_outputs
from hopline.errors import BadRequest, HoplineError, PackagingError
from hopline.graph import Graph
from hopline.packaging.folder import check_place
from hopline.packaging.folder import new_version as version_folder
from hopline.runtimes.onnx import CHUNK_ROWS, session
from hopline.runtimes.processor import adds_in_16_bits, has_vnni
from hopline.types import ExternalIds, IdArray, ScoreRequest
from hopline_compress.labels import read_labels
from hopline_compress.quantize.forms import Form, Forms
from hopline_compress.quantize.judge import Figures, Judge
from hopline_compress.quantize.nodes import degrees, draw, judged
from hopline_compress.quantize.operators import File
from hopline_compress.quantize.record import Feeds, record
from hopline_compress.quantize.report import Latency, LayerReport, QuantizeReport
from hopline_compress.quantize.search import Search

#: Rows of a call of the model, and nodes of a request.
_SIZES = (1, 1024)
#: Measurements of the larger size; of the smaller one 20 times as many.
_REPEATS = 15


def _latency_of_files(
    folders: tuple[Path, Path], files: Iterable[File], calls: dict[str, list[Feeds]]
) -> tuple[Latency, ...]:
    """Measure all files of both forms in order, on recorded rows; larger calls in the engine's chunks.

    Files with rows of edges get as many recorded calls as together have the number of rows.
    """
    found = []
    for rows in _SIZES:
        runs: list[list[Callable[[], object]]] = [[], []]
        for file in files:
            fed = _calls_of(calls.get(file.name, []), rows)
            for side, folder in enumerate(folders):
                run = session(folder / file.path)._sess.run
                runs[side] += [_bound(run, file.output, feeds) for feeds in fed]
        medians = _medians([_all(side) for side in runs], _REPEATS if rows > 1 else 20 * _REPEATS)
        found.append(Latency(rows, *medians))
    return tuple(found)


def _latency_of_requests(
    folders: tuple[Path, Path], spec: ModelSpec, graph: Graph, nodes: IdArray
) -> tuple[Latency, ...]:
    """Measure whole requests: ids looked up, neighbours sampled, features gathered, all levels computed."""
    outputs = default_outputs(spec)
    sides = [Answerer(Model(folder, spec, graph), outputs, 0) for folder in folders]
    found = []
    for size in _SIZES:
        requests = [_request(spec, graph, rows) for rows in _shares(nodes, size)]
        count = _REPEATS if size > 1 else 20 * _REPEATS
        medians = _medians([_sender(side, requests) for side in sides], count)
        found.append(Latency(min(size, nodes.shape[0]), *medians))
    return tuple(found)


def _sender(side: Answerer, requests: list[ScoreRequest]) -> Callable[[], object]:
    following = itertools.cycle(requests)

    def send() -> None:
        (outcome,) = side.answer([next(following)])
        if isinstance(outcome, HoplineError):
            raise outcome

    return send


def _request(spec: ModelSpec, graph: Graph, rows: IdArray) -> ScoreRequest:
    head = spec.head
    nodes = graph.nodes[head.node_type].ids.external(rows)
    if head.kind == "node":
        return ScoreRequest(spec.name, nodes=_listed(nodes))
    other = graph.nodes[head.dst_node_type or head.node_type]
    partners = other.ids.external(rows[::-1] % other.num_nodes)
    return ScoreRequest(spec.name, pairs=(_listed(nodes), _listed(partners)))


def _listed(ids: object) -> list[int] | list[str]:
    return ids.tolist() if isinstance(ids, np.ndarray) else ids  # type: ignore[return-value]


def _shares(nodes: IdArray, size: int) -> list[IdArray]:
    """At most 64 disjoint shares of `size` nodes; a single smaller one if there are fewer nodes."""
    count = max(1, min(64, nodes.shape[0] // size))
    return [nodes[k * size : (k + 1) * size] for k in range(count)]


def _calls_of(calls: list[Feeds], rows: int) -> list[Feeds]:
    """Feeds with `rows` rows in total, none with more than the engine's chunk."""
    if not calls:
        return []
    if "nodes_0" in calls[0]:
        found: list[Feeds] = []
        left = rows
        while left > 0:
            feeds = calls[len(found) % len(calls)]
            found.append(feeds)
            left -= feeds["nodes_0"].shape[0]
        return found
    whole = {name: np.concatenate([feeds[name] for feeds in calls]) for name in calls[0]}
    have = next(iter(whole.values())).shape[0]
    chosen = np.arange(rows) % have
    parts = [chosen[a : a + CHUNK_ROWS] for a in range(0, rows, CHUNK_ROWS)]
    return [{name: np.ascontiguousarray(v[part]) for name, v in whole.items()} for part in parts]


def _bound(run: Callable[..., object], output: str, feeds: Feeds) -> Callable[[], object]:
    return lambda: run([output], feeds, None)


def _all(runs: list[Callable[[], object]]) -> Callable[[], object]:
    def call() -> None:
        for run in runs:
            run()

    return call


def _medians(sides: list[Callable[[], object]], repeats: int) -> list[float]:
    """Median microseconds of each, taken in turns: processor time of this thread, not of other load."""
    taken: list[list[float]] = [[] for _ in sides]
    for side in sides:
        side()
    for _ in range(repeats):
        for side, times in zip(sides, taken, strict=True):
            began = time.thread_time()
            side()
            times.append(time.thread_time() - began)
    return [1e6 * float(np.median(times)) for times in taken]


Target = Literal["int8", "float16", "bfloat16"]

#: Forms to choose from, the fastest first.
_FORMS: dict[Target, tuple[Form, ...]] = {
    "int8": ("range", "equalised"),
    "float16": ("float16",),
    "bfloat16": ("bfloat16",),
}


@dataclass(frozen=True, slots=True)
class QuantizeOptions:
    """Options of a quantisation.

    Attributes:
        to: how weights are stored.
        calibration: nodes to calibrate on; drawn, unless `nodes` names them.
        nodes: external ids.
        eval_nodes: how many nodes to evaluate on.
        labels: file of true labels, see `labels.read_labels`.
        max_drop: points that may be lost, over all nodes and in each bucket of degree.
        exclude: layers (or files: all layers of them) that stay in float32.
        fallback_dtype: how layers that lose too much accuracy are stored.
        weight_bits: of int8 weights: 8, or 7, which is exact on every processor; None = 8 where this
            processor's sums of 8 bits are exact, else 7.
        overwrite: replace an existing version.
        seed: of all draws.
    """

    to: Target = "int8"
    calibration: int = 512
    nodes: ExternalIds | None = None
    eval_nodes: int = 4096
    labels: Path | None = None
    max_drop: float = 0.5
    exclude: tuple[str, ...] = ()
    fallback_dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    weight_bits: Literal[7, 8] | None = None
    overwrite: bool = False
    seed: int = 0


def quantize(
    folder: Path,
    graph: Graph,
    repository: Path,
    options: QuantizeOptions,
    *,
    name: str = "",
    new_version: str = "",
    advance: Callable[[str, int, int], None] = lambda label, done, total: None,
) -> QuantizeReport:
    """Write a narrow form of a packaged model as a new version.

    Args:
        folder: `<repository>/<model>/<version>` of the original.
        graph: of the schema that it was packaged for; used for calibration and evaluation.
        repository: where the new version goes, as `<name>/<new_version>`.
        name, new_version: "" means the original's name, and its version with `-<to>` added.
        advance: called with (step, done, in all).

    Raises:
        PackagingError: the model cannot be quantised (a tabular model, one that is
            quantised already, or one without large enough layers), or the version exists.
        SchemaMismatch: the graph has another schema; each difference is named.
        NodeNotFound, BadRequest: calibration nodes or labels that do not fit.
        ParityError: the loss is beyond `max_drop`; nothing is written.
    """
    began = time.perf_counter()
    rng = np.random.default_rng(options.seed)
    spec = _graph_model(folder)
    check_schema(spec, graph)
    name, new_version = name or spec.name, new_version or f"{spec.version}-{options.to}"
    path = check_place(repository, name, new_version, overwrite=options.overwrite)
    if path.exists() and path.samefile(folder):
        raise PackagingError(f"{path} is the original itself; pass --new-version or --name")
    weight_bits = options.weight_bits or (7 if adds_in_16_bits() else 8)
    reported_bits = weight_bits if options.to == "int8" else None
    forms = Forms(folder, spec, weight_bits)
    excluded = _excluded(forms, options.exclude)
    labels = None if options.labels is None else _labels(options.labels, spec, graph)
    seeds = _seeds(spec, graph, options, rng)
    forms.calls = record(
        Model(folder, spec, graph), seeds, lambda done, total: advance("calibrate", done, total)
    )
    judge = _judge(folder, spec, graph, seeds[spec.head.node_type], labels, options, rng)
    with tempfile.TemporaryDirectory(prefix="hopline-quantize-") as work:
        search = Search(
            forms,
            judge,
            _FORMS[options.to],
            options.max_drop,
            Path(work),
            lambda done, total: advance("try layers", done, total),
        )
        chosen, figures = search.run(excluded)
        if options.fallback_dtype != "float32":
            chosen, figures = search.add(chosen, options.fallback_dtype, figures)
        final = forms.write(Path(work) / "chosen", chosen)
        before, after = forms.num_bytes(folder), forms.num_bytes(final)
        if after >= before:
            raise PackagingError(
                f"{spec.name}/{spec.version} would not become smaller: {before} bytes now, {after} after; "
                "its layers are small: serve it unchanged"
            )
        layers = search.reports(chosen)
        nodes = judge.judged.nodes
        model_us, request_us = _latencies((folder, final), spec, forms, graph, nodes, advance)
        with version_folder(repository, name, new_version, overwrite=options.overwrite) as place:
            shutil.copytree(final, place.folder, dirs_exist_ok=True)
            _write(folder, place.folder, spec, name, new_version, options, reported_bits, layers, figures)
    return QuantizeReport(
        model=spec.name,
        version=spec.version,
        name=name,
        new_version=new_version,
        path=str(path),
        to=options.to,
        bytes_before=before,
        bytes_after=after,
        max_drop=options.max_drop,
        figures=figures,
        layers=layers,
        latency_model=model_us,
        latency_request=request_us,
        calibration_nodes=sum(ids.shape[0] for ids in seeds.values()),
        judged_nodes=judge.judged.nodes.shape[0],
        labels=labels is not None,
        weight_bits=reported_bits,
        vnni=has_vnni(),
        seconds=time.perf_counter() - began,
    )


def _graph_model(folder: Path) -> ModelSpec:
    spec = read_spec(folder)
    spec.check_plain_features("quantisation")
    if spec.task == "several":
        raise PackagingError(
            f"{spec.name}/{spec.version} has several outputs, and what rounding costs is measured of one: "
            "quantise a package of each, task={name: task}"
        )
    if "quantized" in spec.parity:
        raise PackagingError(
            f"{spec.name}/{spec.version} is quantised already; quantise the float32 version instead"
        )
    return spec


def _excluded(forms: Forms, words: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        names = [layer.name for layer in forms.layers if word in (layer.name, layer.file)]
        if not names:
            known = ", ".join(layer.name for layer in forms.layers) or "none"
            raise BadRequest(f"--exclude {word!r}: no such layer; the layers are: {known}")
        found |= dict.fromkeys(names, "excluded by --exclude")
    return found


def _seeds(
    spec: ModelSpec, graph: Graph, options: QuantizeOptions, rng: np.random.Generator
) -> dict[str, IdArray]:
    head = spec.head
    types = dict.fromkeys((head.node_type, head.dst_node_type or head.node_type))
    found: dict[str, IdArray] = {}
    for node_type in types:
        nodes = graph.nodes[node_type]
        if not nodes.num_nodes:
            raise BadRequest(f"calibration data: the graph has no nodes of type {node_type!r}")
        if options.nodes is not None and node_type == head.node_type:
            ids = nodes.ids.lookup(options.nodes)
            if (ids < 0).any():
                raise not_found(graph.version, options.nodes, ids)
            found[node_type] = rng.permutation(np.unique(ids))
        else:
            found[node_type] = draw(degrees(graph, node_type), options.calibration, rng)
    return found


def _labels(path: Path, spec: ModelSpec, graph: Graph) -> IdArray:
    if spec.task not in ("multiclass", "binary") or spec.head.kind != "node":
        raise BadRequest(
            f"--labels: {spec.name} is a model for {spec.task} of {spec.head.kind}s; labels are for "
            "multiclass and binary models of nodes, others are evaluated by how far their answers move"
        )
    num_classes = 2 if spec.task == "binary" else spec.head.output_dim
    return read_labels(path, graph.nodes[spec.head.node_type].ids, spec.classes, num_classes)


def _judge(
    folder: Path,
    spec: ModelSpec,
    graph: Graph,
    calibrated: IdArray,
    labels: IdArray | None,
    options: QuantizeOptions,
    rng: np.random.Generator,
) -> Judge:
    """Evaluate on nodes that were not used for calibration, if enough are left."""
    degree = degrees(graph, spec.head.node_type)
    allowed = np.arange(degree.shape[0]) if labels is None else np.flatnonzero(labels >= 0)
    fresh = np.setdiff1d(allowed, calibrated)
    if fresh.shape[0] >= allowed.shape[0] // 2:
        allowed = fresh
    # One node of a bucket must not weigh more than the allowed loss.
    least = int(np.ceil(100 / max(options.max_drop, 0.01)))
    chosen = judged(degree, allowed, options.eval_nodes, least, rng)
    return Judge.of(folder, spec, graph, chosen, None if labels is None else labels[chosen.nodes], rng)


def _write(
    folder: Path,
    target: Path,
    spec: ModelSpec,
    name: str,
    version: str,
    options: QuantizeOptions,
    weight_bits: int | None,
    layers: tuple[LayerReport, ...],
    figures: Figures,
) -> None:
    """Complete the folder: other files of the version, and a model.json that describes the version."""
    for entry in spec.files:
        place = target / entry
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / entry, place)
    parity: dict[str, object] = {
        # against the original, not the PyG module, whose figures are below
        "max_abs_diff": figures.overall.max_abs_diff,
        "quantized": {
            "from": f"{spec.name}/{spec.version}",
            "to": options.to,
            "max_drop": options.max_drop,
            "weight_bits": weight_bits,
            "figures": msgspec.to_builtins(figures),
            "layers": msgspec.to_builtins(layers),
        },
        "original": spec.parity,
    }
    producer = spec.producer | {"onnxruntime": importlib.metadata.version("onnxruntime")}
    write_spec(
        target, msgspec.structs.replace(spec, name=name, version=version, parity=parity, producer=producer)
    )


def _latencies(
    folders: tuple[Path, Path],
    spec: ModelSpec,
    forms: Forms,
    graph: Graph,
    nodes: IdArray,
    advance: Callable[[str, int, int], None],
) -> tuple[tuple[Latency, ...], tuple[Latency, ...]]:
    advance("measure", 0, 2)
    alone = _latency_of_files(folders, forms.files, forms.calls)
    advance("measure", 1, 2)
    requests = _latency_of_requests(folders, spec, graph, nodes)
    advance("measure", 2, 2)
    return alone, requests
