"""The prefetcher's side of the socket: fetches the rows of workers' messages into the L1 feature cache.

One event loop serves all workers, so rows that several workers miss at the same time are fetched once. A
message is answered when its rows are in the L1 feature cache or the worker's timeout is over; later rows
still reach the cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hopline.errors import HoplineError
from hopline.features.answer import Reason
from hopline.features.l1_rows import FetchResult, L1Rows
from hopline.features.metrics import FeatureMetrics
from hopline.process.listeners import listen_at
from hopline.process.wire import Refusal, WireError
from hopline.types import IdArray
from hopline_stores.prefetch import wire
from hopline_stores.prefetch.neighborhood import Neighborhood

log = logging.getLogger("hopline.prefetch")

#: Limit of unanswered messages of one worker: four times what a worker sends.
_MAX_UNANSWERED = 256
#: Share of a worker's timeout for fetching; the remaining time is for the response.
_SHARE = 0.9


@dataclass(slots=True)
class PrefetchCounts:
    """Statistics since the last report.

    Attributes:
        messages, problems: answered messages, and those answered only with a problem.
        seeds, rows, calls: requested seeds; fetched rows; calls to stores for them.
        lacking: rows that were not available.
        seconds, longest_s: time from a message to its response, in total and at most.
    """

    messages: int = 0
    problems: int = 0
    seeds: int = 0
    rows: int = 0
    calls: int = 0
    lacking: int = 0
    seconds: float = 0.0
    longest_s: float = 0.0


class FetchCounts(FeatureMetrics):
    """Metrics of fetching that also count rows and calls of all stores since the start."""

    num_rows = 0
    num_calls = 0

    def called(self, store: str, tier: str, outcome: str, seconds: float) -> None:
        """See `ClientMetrics.called`."""
        super().called(store, tier, outcome, seconds)
        self.num_calls += 1

    def rows(self, tier: str, result: str, count: int) -> None:
        """See `ClientMetrics.rows`."""
        super().rows(tier, result, count)
        if result == Reason.FOUND.label:
            self.num_rows += count


class PrefetchServer:
    """Serves the workers' connections; see the module docstring.

    Args:
        l1_rows: node type, or `L1Rows.key` -> its rows in the shared L1 feature cache.
        neighborhoods: (model, version) -> the rows that its seeds read.
        identity: the workers must have the same.
        num_nodes: the same names -> limit of their ids.
        fetch_counts: counts fetched rows and calls.

    Attributes:
        counts: statistics; set a new one to reset them.
        num_workers: number of connected workers.
    """

    def __init__(
        self,
        l1_rows: Mapping[str, L1Rows],
        neighborhoods: Mapping[tuple[str, str], Neighborhood],
        identity: wire.Identity,
        num_nodes: Mapping[str, int],
        fetch_counts: FetchCounts,
    ) -> None:
        self.counts = PrefetchCounts()
        self._l1_rows = l1_rows
        self._neighborhoods = neighborhoods
        self._identity = identity
        self._num_nodes = num_nodes
        self._fetch_counts = fetch_counts
        self._sent_rows = self._sent_calls = 0
        self._listener: asyncio.Server | None = None
        self._path: Path | None = None
        self._talks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._answers: set[asyncio.Task[None]] = set()

    @property
    def num_workers(self) -> int:
        """Number of connected workers."""
        return len(self._talks)

    async def listen(self, path: Path) -> None:
        """Accept connections of workers.

        Raises:
            ConfigError: the path cannot be a socket, or another prefetcher listens there.
        """
        self._listener = await listen_at(path, self._talk, "features.prefetcher", "prefetcher")
        self._path = path

    async def drain(self, timeout_s: float) -> None:
        """Stop reading messages, and answer those that were read, within a time limit."""
        if self._listener is not None:
            self._listener.close()
        for talk in list(self._talks):
            talk.cancel()  # stops reading; pending answers still use the writer
        if self._answers:
            await asyncio.wait(self._answers, timeout=timeout_s)
        if self._talks:
            await asyncio.wait(self._talks, timeout=1.0)
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one worker until it disconnects."""
        talk = asyncio.current_task()
        assert talk is not None
        unanswered: set[asyncio.Task[None]] = set()
        try:
            async with asyncio.timeout(5):
                refusal = self._refusal(await wire.receive(reader, wire.from_worker))
            if refusal:
                log.warning("a worker was refused: %s", refusal)
                writer.write(wire.frame(Refusal(refusal)))
                return
            writer.write(wire.frame(wire.Welcome()))
            self._talks[talk] = writer
            while True:
                message = await wire.receive(reader, wire.from_worker)
                if isinstance(message, wire.Ping):
                    writer.write(wire.frame(wire.Pong()))
                elif isinstance(message, wire.FetchRequest) and len(unanswered) < _MAX_UNANSWERED:
                    answer = asyncio.ensure_future(self._answer(message, writer))
                    for tasks in (unanswered, self._answers):
                        tasks.add(answer)
                        answer.add_done_callback(tasks.discard)
                else:
                    raise WireError(f"{len(unanswered)} messages unanswered, or a second hello")
        except (EOFError, OSError, TimeoutError):
            pass  # the worker is gone; its pending fetches are completed
        except WireError as error:
            log.error("closed the connection of a worker: %s", error)
        except asyncio.CancelledError:  # the drain
            if unanswered:
                await asyncio.wait(unanswered)
        finally:
            self._talks.pop(talk, None)
            writer.close()

    def _refusal(self, message: wire.FromWorker) -> str:
        """Return why a worker is refused; "" if it is accepted."""
        if not isinstance(message, wire.Hello):
            raise WireError("the first message is not a Hello")
        if refusal := wire.WIRE.refusal(message.protocol, "it", "the prefetcher"):
            return refusal
        if message.identity.graph != self._identity.graph:
            return f"its graph is {message.identity.graph}, but the prefetcher's is {self._identity.graph}"
        if message.identity.file != self._identity.file:
            return "its rows are not in the prefetcher's file: features.shared_file differs"
        return ""

    async def _answer(self, request: wire.FetchRequest, writer: asyncio.StreamWriter) -> None:
        began = time.perf_counter()
        try:
            done = await self._fetch(request)
        except WireError as error:
            done = wire.Done(request.number, problem=str(error))
        except Exception as error:  # the boundary: the worker waits for an answer
            log.exception("a message could not be answered")
            done = wire.Done(request.number, problem=f"{type(error).__name__}: {error}")
        counts = self.counts
        took = time.perf_counter() - began
        counts.messages += 1
        counts.problems += bool(done.problem)
        counts.seconds += took
        counts.longest_s = max(counts.longest_s, took)
        if not writer.is_closing():
            fetch_counts = self._fetch_counts
            done.num_rows, self._sent_rows = fetch_counts.num_rows - self._sent_rows, fetch_counts.num_rows
            done.num_calls, self._sent_calls = (
                fetch_counts.num_calls - self._sent_calls,
                fetch_counts.num_calls,
            )
            counts.rows += done.num_rows
            counts.calls += done.num_calls
            writer.write(wire.frame(done))

    async def _fetch(self, request: wire.FetchRequest) -> wire.Done:
        """Fetch the rows of a message into the L1 feature cache."""
        done = wire.Done(request.number)
        lacking: dict[str, list[IdArray]] = {}
        for seeds in request.seeds:
            problem = self._resolve(seeds, lacking)
            if problem:
                done.problem = problem
                return done
        for node_type, data in request.rows.items():
            if node_type not in self._l1_rows:
                raise WireError(f"{node_type!r} has no rows in a store")
            ids = self._ids(node_type, data)
            lacking.setdefault(node_type, []).append(ids[self._l1_rows[node_type].probe(ids)])
        wanted = {
            node_type: parts[0] if len(parts) == 1 else np.unique(np.concatenate(parts))
            for node_type, parts in lacking.items()
            if any(part.shape[0] for part in parts)
        }
        timeout_s = request.patience_s * _SHARE
        found = await asyncio.gather(
            *(self._l1_rows[node_type].fetch(ids, timeout_s) for node_type, ids in wanted.items())
        )
        reasons: set[str] = set()
        for (node_type, ids), fetched in zip(wanted.items(), found, strict=True):
            if fetched.why:
                gone = self._gone(node_type, ids, fetched)
                if gone.shape[0]:
                    reasons |= set(fetched.why)
                    self.counts.lacking += gone.shape[0]
                    done.lacking = {**done.lacking, node_type: wire.pack(gone)}
        done.reason = " or ".join(sorted(reasons))
        return done

    def _resolve(self, seeds: wire.Seeds, lacking: dict[str, list[IdArray]]) -> str:
        """Add the missing rows of seeds; return why they are unknown, "" on success."""
        neighborhood = self._neighborhoods.get((seeds.model, seeds.version))
        if neighborhood is None:
            return f"the prefetcher has no model {seeds.model}/{seeds.version}"
        wanted = {node_type: self._ids(node_type, data) for node_type, data in seeds.ids.items()}
        if not neighborhood.seed_types.issuperset(wanted):
            raise WireError(f"{seeds.model} has no seeds of node type {', '.join(wanted)}")
        self.counts.seeds += sum(ids.shape[0] for ids in wanted.values())
        try:
            found = neighborhood.lacking(wanted, seeds.as_of)
        except HoplineError as error:
            return str(error)
        for node_type, ids in found.items():
            lacking.setdefault(node_type, []).append(ids)
        return ""

    def _ids(self, node_type: str, data: bytes) -> IdArray:
        if node_type not in self._num_nodes:
            raise WireError(f"no node type {node_type!r}")
        return wire.unpack(data, self._num_nodes[node_type])

    def _gone(self, node_type: str, ids: IdArray, fetched: FetchResult) -> IdArray:
        """Return the ids that were not fetched and that no other process has fetched."""
        left = np.setdiff1d(ids, fetched.ids, assume_unique=True)
        gone: IdArray = left[self._l1_rows[node_type].probe(left)]
        return gone
