"""A service without graph and models, whose answers are arithmetic on the ids.

For tests and benchmarks of transports and clients, also in a separate server process
(`hopline.serve.run(config, service="tests.fake_service:FakeService")`).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hopline.config.schema import Config
from hopline.errors import (
    BadRequest,
    DeadlineExceeded,
    HoplineError,
    ModelNotFound,
    ModelNotReady,
    NodeNotFound,
    Overloaded,
    RequestTooLarge,
    Unavailable,
)
from hopline.observe.metrics import Metrics
from hopline.scheduling.token_rate import TokenRates
from hopline.types import (
    AnyArray,
    Deliver,
    ExternalId,
    ModelInfo,
    ScoreRequest,
    ScoreResult,
    TensorInfo,
    Ticket,
)

#: Integer ids from 0 to this, and string ids "n0", "n1", …, exist.
NUM_NODES = 1_000_000
GRAPH_VERSION = "fake-graph"

_OUTPUTS = (
    TensorInfo("probabilities", "FP32", (-1, 2)),
    TensorInfo("label", "INT64", (-1,)),
    TensorInfo("logits", "FP32", (-1, 2)),
    TensorInfo("embedding", "FP32", (-1, 4)),
)
_NODE_EXTRAS = (
    TensorInfo("as_of", "INT64", (1,), optional=True),
    TensorInfo("features", "FP32", (-1, 3), optional=True),
    TensorInfo("neighbors", "INT64", (-1,), optional=True),
    TensorInfo("neighbor_counts", "INT64", (-1,), optional=True),
)


_COLUMNS = (TensorInfo("amount", "FP64", (-1,)), TensorInfo("category", "BYTES", (-1,)))


def _info(name: str, kind: Any, id_kind: Any, state: str = "READY", reason: str = "") -> ModelInfo:
    ids = "INT64" if id_kind == "int" else "BYTES"
    if kind == "link":
        inputs: tuple[TensorInfo, ...] = (
            TensorInfo("src_ids", ids, (-1,)),
            TensorInfo("dst_ids", ids, (-1,)),
        )
    elif kind == "tabular":
        inputs = _COLUMNS
    else:
        inputs = (TensorInfo("node_ids", ids, (-1,)), *_NODE_EXTRAS)
    outputs = ("probabilities", "label")
    return ModelInfo(
        name, ("1", "2"), "2", state, reason, kind, id_kind, inputs, _OUTPUTS, outputs, GRAPH_VERSION
    )


class FakeService:
    """A fake service with these models, versions 1 and 2.

    sage     integer ids; the label is id mod 2, the embedding's first column is the id
    people   string ids "n7", on a graph that is 5 s old; otherwise like sage
    link     pairs of integer ids; the label is whether u < v
    table    rows of `amount` and `category`; a row's number, in place of sage's id, is its amount plus the
             length of its category, plus 10 for each letter of the request's key, 100 for priority high or
             200 for low, and 1000 for each attribute
    slow     like sage, after `as_of` milliseconds
    broken   fails with an unexpected exception
    busy     refuses with Overloaded
    loading  refuses with ModelNotReady

    Attributes:
        num_cancelled: requests withdrawn while waiting.
        num_waiting: requests waiting now.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.metrics = Metrics(config.worker.metrics_dir or None, config.worker.index)
        self.token_rates = TokenRates()
        self.graph_updates = self.drift = None
        self.log_id = ""
        self.num_cancelled = 0
        self.num_waiting = 0
        self._draining = False
        self._started = False
        self._models = {
            "sage": _info("sage", "node", "int"),
            "people": _info("people", "node", "string"),
            "link": _info("link", "link", "int"),
            "table": _info("table", "tabular", "none"),
            "slow": _info("slow", "node", "int"),
            "broken": _info("broken", "node", "int"),
            "busy": _info("busy", "node", "int"),
            "loading": _info("loading", "node", "int", "LOADING", "its weights are being read"),
        }

    async def start(self) -> None:
        """Become ready."""
        self._started = True
        self.metrics.queue_requests("slow", "2").set_function(lambda: float(self.num_waiting))

    async def close(self) -> None:
        """Nothing to release."""
        self._started = False

    def begin_drain(self) -> None:
        """Refuse new requests."""
        self._draining = True

    async def drain(self, timeout_s: float) -> bool:
        """Wait for pending requests; return True if all were answered in time."""
        end = time.monotonic() + timeout_s
        while self.num_waiting and time.monotonic() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        return not self.num_waiting

    def check_version(self, request: ScoreRequest) -> None:
        """Every request: the graph does not change."""

    def reject_early(self, model: str) -> None:
        """Refuses nothing unread."""

    def is_pressed(self) -> bool:
        """Never."""
        return False

    @contextlib.contextmanager
    def preflight(self) -> Iterator[list[ScoreRequest]]:
        """No requests to preflight with."""
        yield []

    async def load(self, name: str, **parameters: Any) -> None:
        """Refused."""
        raise BadRequest("this server does not load models on request")

    async def unload(self, name: str, version: str | None = None) -> None:
        """Refused."""
        raise BadRequest("this server does not unload models on request")

    async def begin_rollout(self, wanted: Any) -> Any:
        """Refused."""
        raise BadRequest("this server does not roll models out")

    async def decide_rollout(self, name: str, verb: str, why: str = "") -> Any:
        """Refused."""
        raise BadRequest("this server does not roll models out")

    def describe_rollout(self, name: str) -> dict[str, Any]:
        """No rollouts."""
        info = self.describe(name)
        none: dict[str, Any] = {"previous": None, "units": [], "rollout": None, "past": []}
        return {"model": name, "serving": info.version, **none}

    def live(self) -> bool:
        """Always."""
        return True

    def ready(self) -> bool:
        """True if the service is between start and drain."""
        return self._started and not self._draining

    def model_names(self) -> tuple[str, ...]:
        """The names of all models."""
        return tuple(self._models)

    def describe(self, name: str, version: str | None = None) -> ModelInfo:
        """The interface of one version."""
        info = self._models.get(name)
        if info is None:
            raise ModelNotFound(f"no model {name!r}", self._models)
        if version is not None and version not in info.versions:
            raise ModelNotFound(f"model {name!r} has no version {version!r}; there are 1, 2")
        return info if version is None else dataclasses.replace(info, version=version)

    def unavailable(self) -> dict[str, str]:
        """None."""
        return {}

    def differing(self) -> dict[str, str]:
        """One version of the model that loads for ever."""
        return {"loading/1": "this worker has graph g; worker b has graph h"}

    def index(self) -> list[dict[str, str]]:
        """The index: both versions of each model."""
        return [
            {"name": name, "version": version, "state": info.state, "reason": info.reason}
            for name, info in self._models.items()
            for version in info.versions
        ]

    def statistics(self, name: str) -> list[dict[str, Any]]:
        """One row, all numbers 7."""
        duration = {"count": 7, "ns": 7000}
        return [
            {
                "name": name,
                "version": self.describe(name).version,
                "last_inference": 7,
                "inference_count": 7,
                "execution_count": 7,
                "inference_stats": {"success": duration, "fail": duration, "queue": duration},
            }
        ]

    def submit(self, request: ScoreRequest, deliver: Deliver) -> Ticket:
        """Submit a request; deliver before returning unless it waits."""
        if request.model != "slow":
            deliver(self._answer(request))
            return _Answered()

        def done(task: asyncio.Task[ScoreResult]) -> None:
            if not task.cancelled():
                deliver(task.exception() or task.result())

        task = asyncio.get_running_loop().create_task(self.score(request))
        task.add_done_callback(done)
        return task

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Answer a request, after the wait of model `slow`."""
        if request.model == "slow" and not self._draining:
            await self._wait(request)
        return self._answer(request)

    async def _wait(self, request: ScoreRequest) -> None:
        wait_s = request.as_of / 1000 if isinstance(request.as_of, int) else 0.0
        self.num_waiting += 1
        try:
            if request.deadline is not None and time.monotonic() + wait_s > request.deadline:
                await asyncio.sleep(max(0.0, request.deadline - time.monotonic()))
                raise DeadlineExceeded("the deadline passed while the request waited")
            await asyncio.sleep(wait_s)
        except asyncio.CancelledError:
            self.num_cancelled += 1
            self.metrics.model("slow", request.version or "2").outcome("cancelled")
            raise
        finally:
            self.num_waiting -= 1

    def _answer(self, request: ScoreRequest) -> ScoreResult:
        metrics = self.metrics.model(request.model, request.version or "2")
        try:
            result = self._checked_answer(request)
        except HoplineError as error:
            metrics.outcome(error.code)
            raise
        metrics.outcome("ok")
        return result

    def _checked_answer(self, request: ScoreRequest) -> ScoreResult:
        info = self.describe(request.model, request.version)
        if self._draining and request.model != "slow":
            raise Unavailable("the server is shutting down", retry_after_s=2.0)
        if request.deadline is not None and time.monotonic() >= request.deadline:
            raise DeadlineExceeded("the deadline passed before the request was read")
        if request.model == "broken":
            raise RuntimeError("secret detail of the broken model")
        if request.model == "busy":
            raise Overloaded("the queue is full", retry_after_s=0.05)
        if info.state != "READY":
            raise ModelNotReady(f"model {info.name!r} is not ready: {info.reason}")
        values, missing = self._values(request, info)
        outputs = request.outputs or info.default_outputs
        known = {tensor.name for tensor in info.outputs}
        for name in outputs:
            if name not in known:
                raise BadRequest(
                    f"output {name!r} is unknown; model {info.name!r} has {', '.join(sorted(known))}"
                )
        arrays = {name: _array(name, values) for name in outputs}
        return ScoreResult(
            info.name,
            info.version,
            GRAPH_VERSION,
            arrays,
            missing if missing.any() else None,
            (),
            {"queue": 0.01},
            graph_through_ms=int(time.time() * 1e3) - 5_000 if request.model == "people" else 0,
        )

    def _values(self, request: ScoreRequest, info: ModelInfo) -> tuple[AnyArray, AnyArray]:
        """One number per requested item, and which ids are unknown."""
        if info.kind == "tabular":
            values = _row_numbers(request)
            return values, values < 0
        if request.columns is not None:
            named = next(iter(request.columns), "rows")
            raise BadRequest(f"unexpected input {named!r}: model {info.name!r} takes no columns")
        if info.kind == "link":
            if request.pairs is None or len(request.pairs[0]) == 0:
                raise BadRequest("model 'link' takes pairs of node ids, at least one")
            src, dst = (_numbers(ids, info) for ids in request.pairs)
            unknown = (src < 0) | (dst < 0)
            values = np.where(src < dst, 1, 0)
            ids: Sequence[Any] = list(zip(*map(_as_list, request.pairs), strict=True))
        else:
            if request.pairs is not None:
                raise BadRequest(f"model {info.name!r} takes nodes, not pairs")
            ids = _as_list(request.nodes)
            known = _numbers(ids, info)
            inline = np.array([self._inline_value(node) for node in request.inline], dtype=np.int64)
            values = np.concatenate([known, inline])
            unknown = values < 0
        if len(values) == 0:
            raise BadRequest("the request names no nodes; at least one is needed")
        if len(values) > self.config.limits.max_nodes_per_request:
            raise RequestTooLarge(
                f"{len(values)} nodes; at most {self.config.limits.max_nodes_per_request}"
            )
        if unknown.any() and request.on_missing == "error":
            missing: list[ExternalId] = []
            for index in np.flatnonzero(unknown).tolist():
                missing.extend(ids[index] if isinstance(ids[index], tuple) else [ids[index]])
            raise NodeNotFound(f"{len(missing)} unknown node ids: {missing[:5]}", missing)
        return values, unknown

    def _inline_value(self, node: Any) -> int:
        """The number of an inline node: the sum of its neighbours' ids."""
        features = np.asarray(node.features, dtype=np.float32)
        if features.shape != (3,) or not np.isfinite(features).all():
            raise BadRequest(f"inline features must be 3 finite numbers, not shape {features.shape}")
        return sum(len(ids) for ids in node.neighbors.values())


class _Answered:
    def cancel(self) -> None:
        """Nothing: the request has been answered."""


def _row_numbers(request: ScoreRequest) -> AnyArray:
    columns = request.columns or {}
    for name in ("amount", "category"):
        if name not in columns:
            raise BadRequest(f"column 'amount' or 'category' is missing: {name!r}")
    amounts = np.asarray(columns["amount"])
    if amounts.dtype.kind not in "fiu":
        raise BadRequest("column 'amount' holds what is not a number")
    if any(not isinstance(text, str) for text in columns["category"]):
        raise BadRequest("column 'category' holds what is not a string")
    if len(amounts) != len(columns["category"]):
        raise BadRequest("columns 'amount' and 'category' differ in length")
    extra = 10 * len(request.key) + {"high": 100, "normal": 0, "low": 200}[request.priority]
    extra += 1000 * len(request.attributes or ())
    lengths = [len(text) for text in columns["category"]]
    return amounts.astype(np.int64) + np.array(lengths, dtype=np.int64) + extra


def _as_list(ids: Any) -> list[Any]:
    return ids.tolist() if isinstance(ids, np.ndarray) else list(ids)


def _number_of(name: str) -> int:
    """The number of a node with a string id, -1 if it is unknown. Any length: ids come from callers."""
    digits = name[1:]
    if name[:1] != "n" or not digits.isdecimal() or len(digits) >= len(str(NUM_NODES)):
        return -1
    return int(digits)


def _numbers(ids: Any, info: ModelInfo) -> AnyArray:
    """The number of each external id, -1 if it is unknown."""
    if info.id_kind == "string":
        if any(not isinstance(item, str) for item in ids):
            raise BadRequest(f"model {info.name!r} has string ids")
        return np.array([_number_of(item) for item in ids], dtype=np.int64)
    try:
        array = np.asarray(ids)
        if len(array) and array.dtype.kind not in "iu":
            raise BadRequest(f"model {info.name!r} has integer ids")
        numbers = array.astype(np.int64)
    except (OverflowError, ValueError):
        raise BadRequest(f"model {info.name!r} has integer ids of 64 bits") from None
    return np.where((numbers >= 0) & (numbers < NUM_NODES), numbers, -1)


def _array(name: str, values: AnyArray) -> AnyArray:
    """An output of the model: label is the parity, probabilities 0.1 and 0.9, logits twice the label."""
    label = values % 2
    if name == "label":
        return label.astype(np.int64)
    if name == "probabilities":
        return np.stack([0.9 - 0.8 * label, 0.1 + 0.8 * label], axis=1).astype(np.float32)
    if name == "logits":
        return np.stack([-2.0 * label, 2.0 * label], axis=1).astype(np.float32)
    return np.stack([values, values / 2, values / 3, values * 0], axis=1).astype(np.float32)
