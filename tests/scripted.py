"""A model that follows commands in requests: it doubles a column, or crashes, hangs, leaks or is slow.

For tests and benchmarks of isolation, in a server's own process or, through `open_scripted`, in a separate
one. `ScoreRequest(name, columns={"x": [1.0]})` is answered with `{"y": [2.0]}`; `attributes` may contain

    do        "crash" kills the process · "exit" exits it in order · "hang" blocks for ever ·
              "fail" raises · "refuse" answers a BadRequest · "huge" allocates 64 GiB
    leak      bytes that are never freed
    spin_ms   CPU time to spend, holding the GIL
    degraded  the fallback that the answer names
"""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from hopline.answering.computer import Computer
from hopline.answering.queued import QueuedVersion
from hopline.errors import ArtifactError, BadRequest, HoplineError
from hopline.scheduling.work import Work
from hopline.types import ModelInfo, ScoreRequest, ScoreResult, TensorInfo

if TYPE_CHECKING:
    from hopline.isolated.main import ModelOrders

FACTORY = "tests.scripted:open_scripted"


class ScriptedComputer(Computer):
    """A computer that follows commands in requests; see the module. Arguments as for `Computer`.

    Attributes:
        always: attributes of requests without attributes.
        seen: first value of each request, in the order of computation.
    """

    def __init__(self, *args: Any, always: dict[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.always = always or {}
        self.seen: list[Any] = []
        self._kept: list[Any] = []

    def num_seeds(self, request: ScoreRequest) -> int:
        """See `Computer.num_seeds`."""
        if not request.columns:
            raise BadRequest("the request has no columns")
        return len(request.columns["x"])

    def run(self, batch: list[Work]) -> list[ScoreResult | HoplineError | None]:
        """See `Computer.run`."""
        return [self._answer(work.request) for work in batch]

    def _answer(self, request: ScoreRequest) -> ScoreResult | HoplineError:
        script = {**self.always, **(request.attributes or {})}
        assert request.columns is not None
        x = np.asarray(request.columns["x"])
        self.seen.append(x[0])
        _do(str(script.get("do", "")))
        if script.get("leak"):
            self._kept.append(np.ones(int(script["leak"]), np.uint8))
        end = time.thread_time() + float(script.get("spin_ms", 0.0)) / 1e3
        while time.thread_time() < end:
            pass
        if script.get("do") == "refuse":
            return BadRequest("refused, as asked")
        outputs: dict[str, Any] = {"y": np.array([{"v": 1}, None]) if script.get("objects") else 2 * x}
        degraded = (str(script["degraded"]),) if "degraded" in script else ()
        return ScoreResult(self.name, self.version, self.graph_version, outputs, degraded=degraded)

    def info(self, versions: tuple[str, ...]) -> ModelInfo:
        """See `Computer.info`."""
        tensors = (TensorInfo("x", "FP64", (-1,)),), (TensorInfo("y", "FP64", (-1,)),)
        return ModelInfo(
            self.name,
            versions,
            self.version,
            "READY",
            "",
            "tabular",
            "none",
            *tensors,
            ("y",),
            "",
            {"pi": 3},
        )

    def warm_up(self) -> None:
        """Nothing to do."""


def open_scripted(orders: ModelOrders) -> QueuedVersion:
    """A model factory; `arguments`:

    fail_if: a file; while it exists, opening fails. exit_if: as fail_if, but the process exits.
    threaded: compute on a thread, never on the loop.
    always: as for `ScriptedComputer`.
    """
    arguments = orders.arguments
    if os.path.exists(arguments.get("fail_if", "")):
        raise ArtifactError("opening fails: fail_if exists")
    if os.path.exists(arguments.get("exit_if", "")):
        os._exit(7)
    config = orders.config
    if arguments.get("threaded"):
        config = config.replace(compute__inline_cost_us=0.0)
    executor: Executor = ThreadPoolExecutor(1)
    return QueuedVersion(
        ScriptedComputer(orders.name, orders.version, always=arguments.get("always")),
        config,
        orders.metrics.model(orders.name, orders.version),
        executor,
        orders.recorders,
        limits=orders.limits,
    )


def _do(what: str) -> None:
    if what == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif what == "exit":
        os._exit(3)
    elif what == "hang":
        while True:
            time.sleep(1)
    elif what == "fail":
        raise ZeroDivisionError("a bug")
    elif what == "huge":
        np.ones(64 * 2**30, np.uint8)
