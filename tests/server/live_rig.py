"""A live graph for server tests: models to serve, events to send, and what a fresh build would answer."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from hopline.artifact import read_spec
from hopline.engine.answer import Answerer
from hopline.engine.model import load_model
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.server import DEFAULT_SERVICE
from hopline.types import ScoreRequest
from tests.engine import zoo
from tests.servers import RunningServer, running

OUTPUTS = ("logits", "embedding")
FANOUTS = [4, 3, 5]


class World:
    """A graph folder and a repository, and lists of everything that happened since.

    String ids, times, weights and attributes; models `plain` (nodes), `link` (pairs) and copies of `plain`.

    Args:
        history: nodes keep the rows that they had.
    """

    def __init__(self, root: Path, copies: tuple[str, ...] = (), *, history: bool = False) -> None:
        from tests.packaged import package

        self.graph, self.history = zoo.homogeneous(1), history
        #: Of the rows of a node, the last one is that of its latest time.
        self.past: dict[str, dict[int, np.ndarray]] = {}
        if history:
            part = self.graph.nodes["node"]
            self.past = {f"n{at}": {-1: np.array(part.features[at])} for at in range(part.num_nodes)}
            nodes = {"node": self._table([*self.past.items()])}
            self.graph = Graph.from_tables(nodes, {("node", "to", "node"): _edge_table(self.graph)})
        self.graph = self.graph.save(root / "graph")
        self.repository = root / "models"
        zoo.torch.manual_seed(7)
        plain, link = zoo.Plain().eval(), zoo.Encoder().eval()
        package(plain, self.graph, self.repository, name="plain", version="1", fanouts=FANOUTS,
                task="multiclass", check_nodes=20)  # fmt: skip
        for name in copies:
            self._copy(name)
        package(link, self.graph, self.repository, name="link", version="1", fanouts=[4, 3],
                task="binary", head="dot", check_nodes=20)  # fmt: skip
        #: Names of rows; "" of removed nodes, which nothing but their row is left of.
        self.rows = [f"n{i}" for i in range(self.graph.num_nodes)]
        self.gone: list[str] = []
        edges, part = self.graph.edges[zoo.EDGE], self.graph.nodes["node"]
        self.nodes = {f"n{i}": np.array(part.features[i]) for i in range(part.num_nodes)}
        dst = np.repeat(np.arange(part.num_nodes), np.diff(edges.indptr))
        assert edges.time is not None
        assert edges.weight is not None
        assert edges.attr is not None
        columns = (edges.indices, dst, edges.time, edges.weight, edges.attr)
        self.edges: list[tuple[Any, ...]] = [
            (f"n{s}", f"n{d}", int(t), float(w), a) for s, d, t, w, a in zip(*columns, strict=True)
        ]
        self.rng = np.random.default_rng(3)
        self.num_events = 0

    @staticmethod
    def _table(rows: list[tuple[str, dict[int, np.ndarray]]]) -> NodeTable:
        flat = [(name, time_, each) for name, own in rows for time_, each in own.items()]
        names, times, values = zip(*flat, strict=True)
        return NodeTable(np.stack(values), ids=list(names), history=list(times))

    def _copy(self, name: str) -> None:
        """The same model under another name."""
        folder = self.repository / name / "1"
        shutil.copytree(self.repository / "plain" / "1", folder)
        spec = json.loads((folder / "model.json").read_text())
        (folder / "model.json").write_text(json.dumps(spec | {"name": name}))

    def add_version(self, name: str, version: str) -> None:
        """The same artifact as another version."""
        folder = self.repository / name / version
        shutil.copytree(self.repository / name / "1", folder)
        spec = json.loads((folder / "model.json").read_text())
        (folder / "model.json").write_text(json.dumps(spec | {"version": version}))

    def tabulate(self, model: str, table: Path) -> None:
        """Write a precomputed file of all answers, and have the model served with it."""
        from hopline.commands.batch import batch

        batch(model=model, to=str(table), graph=self.graph.path, repository=str(self.repository), threads=1)
        (self.repository / model / "serving.toml").write_text(f'precomputed_file = "{table}"\n')

    def events(self, count: int) -> list[dict[str, Any]]:
        """Draw events of all kinds, and let them happen here."""
        found = []
        for _ in range(count):
            self.num_events += 1
            found.append({"id": f"e{self.num_events}"} | self._event())
        return found

    def _event(self) -> dict[str, Any]:
        rng, names = self.rng, list(self.nodes)
        kind, (src, dst) = rng.integers(9), (str(name) for name in rng.choice(names, 2))
        if kind < 4:
            time_, weight, attr = int(rng.integers(120)), 0.5 + int(rng.integers(8)) / 4, row(rng, 2)
            self.edges.append((src, dst, time_, weight, attr))
            return {"op": "add_edge", "src": src, "dst": dst, "time": time_, "weight": weight,
                    "attr": attr.tolist()}  # fmt: skip
        if kind < 6:
            src, dst = self.edges[rng.integers(len(self.edges))][:2]
            self.edges = [each for each in self.edges if each[:2] != (src, dst)]
            return {"op": "remove_edge", "src": src, "dst": dst}
        if kind == 6 and src not in self.rows[:30]:  # which tests ask for
            self.removed(src)
            return {"op": "remove_node", "node": src}
        features = row(rng, 6)
        name, op = (f"new{self.num_events}", "add_node") if kind == 7 else (src, "set_features")
        if kind == 7:
            name = self.gone.pop() if self.gone and rng.integers(2) else name
            self.rows.append(name)
        event = {"op": op, "node": name, "features": features.tolist()}
        if self.history:
            event["time"] = time_ = int(rng.integers(1, 130)) if op == "set_features" else 0
            own = self.past.setdefault(name, {})
            own[time_] = features
            features = own[max(own)]
        self.nodes[name] = features
        return event

    def removed(self, name: str) -> None:
        """Let the removal of a node happen here."""
        del self.nodes[name]
        self.past.pop(name, None)
        self.edges = [each for each in self.edges if name not in each[:2]]
        self.rows[self.rows.index(name)] = ""
        self.gone.append(name)

    def fresh(self) -> Graph:
        """A graph of what there is now, built from nothing; removed nodes are rows that nobody names."""
        src, dst, times, weights, attrs = zip(*self.edges, strict=True)
        if self.history:
            first = [-1] * 120 + [0] * len(self.rows)
            empty = [{time_: np.zeros(6, np.float32)} for time_ in first]
            rows = [
                (name or f"row {at}", self.past.get(name, empty[at])) for at, name in enumerate(self.rows)
            ]
            edges = EdgeTable(
                (src, dst), np.array(attrs, np.float32), np.array(times), np.array(weights, np.float32)
            )
            return Graph.from_tables({"node": self._table(rows)}, {("node", "to", "node"): edges})
        features = [self.nodes.get(name, np.zeros(6, np.float32)) for name in self.rows]
        return Graph.from_edges(
            [src, dst], np.stack(features), ids=[name or f"row {at}" for at, name in enumerate(self.rows)],
            edge_time=np.array(times), edge_weight=np.array(weights, np.float32),
            edge_attr=np.array(attrs, np.float32),
        )  # fmt: skip

    def wanted(self, model: str, **asked: Any) -> dict[str, np.ndarray]:
        """What a server on `fresh` answers."""
        folder = self.repository / model / "1"
        spec = read_spec(folder)
        names = ("probabilities",) if "pairs" in asked else OUTPUTS
        answerer = Answerer(load_model(folder, spec, self.fresh()), names, 1000)
        (result,) = answerer.answer([ScoreRequest(model, outputs=names, **asked)])
        if isinstance(result, Exception):
            raise result
        return result.outputs

    def settings(self) -> dict[str, Any]:
        """For `serving`."""
        return {"graph__path": self.graph.path, "models__repository": self.repository}


def _edge_table(graph: Graph) -> EdgeTable:
    """The edges of a graph of one type, whose ids are n0, n1, …."""
    edges = graph.edges[zoo.EDGE]
    dst = np.repeat(np.arange(len(edges.indptr) - 1), np.diff(edges.indptr))
    ends = [[f"n{at}" for at in end] for end in (edges.indices, dst)]
    return EdgeTable((ends[0], ends[1]), edges.attr, edges.time, edges.weight)


def row(rng: np.random.Generator, dim: int) -> np.ndarray:
    return rng.standard_normal(dim).astype(np.float32)


class Worker:
    """A connection to one worker process."""

    def __init__(self, http: httpx.Client, name: str) -> None:
        self.http, self.name = http, name

    def send(self, events: Any, **options: Any) -> httpx.Response:
        """Events, as JSON unless `content` is given."""
        body = {"json": events} if events is not None else {}
        return self.http.post("/v1/graph/events", **body, **options)

    def applied(self, events: Any, **options: Any) -> dict[str, Any]:
        """The answer to events of which none is refused."""
        answer = self.send(events, **options)
        assert answer.status_code == 200, answer.text
        assert answer.json()["refused"] == []
        return answer.json()

    def score(self, model: str, **asked: Any) -> dict[str, Any]:
        """An answer, its outputs as arrays."""
        asked.setdefault("outputs", ["probabilities"] if "pairs" in asked else list(OUTPUTS))
        answer = self.http.post(f"/v1/models/{model}/score", json=asked)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        found["outputs"] = {name: np.array(rows, np.float32) for name, rows in found["outputs"].items()}
        return found

    def graph(self) -> dict[str, Any]:
        """What the graph is said to be."""
        return self.http.get("/v1/graph").json()

    def close(self) -> None:
        self.http.close()


class Live:
    """A server of a live graph.

    Attributes:
        workers: connections, one to each worker.
        log: folder of its prediction log, if it has one.
    """

    log: Path

    def __init__(self, server: RunningServer, num_workers: int, headers: dict[str, str]) -> None:
        self.server = server
        self.workers: list[Worker] = []
        self._num_workers = num_workers
        self._headers = headers
        self.connect()

    def connect(self) -> None:
        """Find every worker anew: each begins its own request ids in its own way."""
        self.close()
        found: dict[str, Worker] = {}

        def all_found() -> bool:
            http = httpx.Client(base_url=self.server.url, timeout=60, headers=self._headers)
            with contextlib.suppress(httpx.TransportError):
                name = http.get("/healthz").headers["x-request-id"].partition("-")[0]
                if name not in found:
                    found[name] = Worker(http, name)
                    return len(found) == self._num_workers
            http.close()
            return False

        until(all_found, pause=0.01)
        self.workers = list(found.values())

    @property
    def pid(self) -> int:
        return self.server.process.pid

    @property
    def writer(self) -> int:
        """Process id of the writer."""
        return next(pid for pid in children(self.pid) if "live.process" in command(pid))

    @property
    def worker_pids(self) -> list[int]:
        return [pid for pid in children(self.pid) if "worker_main" in command(pid)]

    def close(self) -> None:
        for worker in self.workers:
            worker.close()


@contextlib.contextmanager
def serving(*, workers: int = 1, headers: dict[str, str] | None = None, **settings: Any) -> Iterator[Live]:
    """A server with a live graph, as `hopline serve --live` makes it."""
    small = {"live__spare_nodes": 5_000, "live__spare_edges": 50_000, "state_cache__memory_bytes": 2**22}
    given = {"live__enabled": True, "server__workers": workers, "server__grpc_port": -1, **small}
    with running(DEFAULT_SERVICE, **(given | settings)) as server:
        live = Live(server, workers, headers or {})
        try:
            yield live
        finally:
            live.close()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def until(condition: Callable[[], object], seconds: float = 60, pause: float = 0.05) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(pause)


def same(found: dict[str, Any], wanted: dict[str, np.ndarray]) -> None:
    """Bit for bit."""
    assert found["outputs"].keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_array_equal(found["outputs"][name], values)
