"""A model whose requests say how it behaves: it doubles a column, or crashes, hangs, leaks or dawdles.

For tests and benchmarks of isolation, in a server's own process or, through `open_scripted`, in one of its
own. `ScoreRequest(name, columns={"x": [1.0]})` is answered with `{"y": [2.0]}`; `attributes` may say

    do        "crash" ends the process · "exit" ends it in order · "hang" blocks for ever ·
              "fail" raises · "refuse" answers a BadRequest · "huge" allocates 64 GiB
    leak      bytes that are kept for ever
    spin_ms   processor time to spend, holding the interpreter
"""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from hopline.errors import ArtifactError, BadRequest, HoplineError
from hopline.rollout.computer import Computer
from hopline.rollout.queued import QueuedVersion
from hopline.scheduling.work import Work
from hopline.types import ModelInfo, ScoreRequest, ScoreResult, TensorInfo

if TYPE_CHECKING:
    from hopline.rollout.process_main import Orders

FACTORY = "hopline.testing.scripted:open_scripted"


class ScriptedComputer(Computer):
    """See the module; arguments as for `Computer`.

    Attributes:
        always: attributes of requests that say nothing themselves.
        seen: first value of each request, in the order in which they were computed.
    """

    def __init__(self, *args: Any, always: dict[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.always = always or {}
        self.seen: list[Any] = []
        self._kept: list[Any] = []

    def num_seeds(self, request: ScoreRequest) -> int:
        """As `Computer.num_seeds`."""
        if not request.columns:
            raise BadRequest("the request has no columns")
        return len(request.columns["x"])

    def run(self, batch: list[Work]) -> list[ScoreResult | HoplineError | None]:
        """As `Computer.run`."""
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
        return ScoreResult(self.name, self.version, self.graph_version, outputs)

    def info(self, versions: tuple[str, ...]) -> ModelInfo:
        """As `Computer.info`."""
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
        """Nothing is cold."""


def open_scripted(orders: Orders) -> QueuedVersion:
    """A factory; `arguments`:

    fail_if: a file; while it is there, opening fails. exit_if: the same, and the process ends.
    threaded: compute on a thread, never on the loop.
    always: as for `ScriptedComputer`.
    """
    arguments = orders.arguments
    if os.path.exists(arguments.get("fail_if", "")):
        raise ArtifactError("told not to open")
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
