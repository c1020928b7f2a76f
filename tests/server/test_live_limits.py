"""A live graph's limits: who may change it, how much room is in memory and on the disk; node types."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from hopline.artifact import read_spec
from hopline.engine.answer import Answerer
from hopline.engine.model import load_model
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.ingress.clients_edit import add_key
from hopline.ingress.clients_file import Grant, KeyEntry
from hopline.ingress.keys import new_key
from hopline.transports.proto import message
from hopline.types import ScoreRequest
from tests.engine import zoo
from tests.server.live_rig import Live, Worker, serving


class Disk:
    """A small file system where this process may mount one; else files of a writer may not grow."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
        self.mounted = os.geteuid() == 0 and not subprocess.call(mount, stderr=subprocess.DEVNULL)

    @contextlib.contextmanager
    def full(self, writer: int) -> Iterator[None]:
        """No room, for a while."""
        if not self.mounted:
            before = resource.prlimit(writer, resource.RLIMIT_FSIZE)
            resource.prlimit(writer, resource.RLIMIT_FSIZE, (1, before[1]))
            yield
            resource.prlimit(writer, resource.RLIMIT_FSIZE, before)
            return
        filler = self.folder / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        yield
        filler.unlink()

    def close(self) -> None:
        if self.mounted:
            subprocess.check_call(["umount", "-l", str(self.folder)])


class Shop:
    """Users and items: a graph, a model, and the edges and features that it has now."""

    def __init__(self, root: Path) -> None:
        from tests.packaged import package

        self.graph = zoo.heterogeneous().save(root / "graph")
        zoo.torch.manual_seed(7)
        self.folder = package(
            zoo.Hetero().eval(), self.graph, root / "models", name="shop", version="1", fanouts=[4, 3],
            task="multiclass", target="user", check_nodes=20,
        ).path  # fmt: skip
        self.repository = root / "models"
        self.features = {name: list(np.array(part.features)) for name, part in self.graph.nodes.items()}
        self.edges: dict[tuple[str, str, str], list[tuple[int, int]]] = {}
        for part in self.graph.edges.values():
            dst = np.repeat(np.arange(len(part.indptr) - 1), np.diff(part.indptr))
            key = (part.src, part.relation, part.dst)
            self.edges[key] = list(zip(part.indices.tolist(), dst.tolist(), strict=True))

    def wanted(self, nodes: list[int]) -> np.ndarray:
        """Logits on a graph that is built from what there is now."""
        graph = Graph.from_tables(
            {name: NodeTable(np.stack(rows)) for name, rows in self.features.items()},
            {key: EdgeTable(np.array(pairs).T) for key, pairs in self.edges.items()},
        )
        answerer = Answerer(load_model(self.folder, read_spec(self.folder), graph), ("logits",), 1000)
        (result,) = answerer.answer([ScoreRequest("shop", nodes=nodes, outputs=("logits",))])
        return result.outputs["logits"]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop(tmp_path_factory.mktemp("shop"))


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    made = Disk(tmp_path_factory.mktemp("small") / "disk")
    yield made
    made.close()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Keys by what they permit, and the file that has them."""
    file = tmp_path_factory.mktemp("auth") / "clients.toml"
    found = {"file": str(file)}
    for name in ("admin", "score"):
        key = new_key()
        add_key(file, name, KeyEntry(key.id, key.sha256), Grant(("*",), admin=name == "admin"))
        found[name] = key.text
    return found


@pytest.fixture(scope="module")
def live(shop: Shop, disk: Disk, keys: dict[str, str]) -> Iterator[Live]:
    settings: dict[str, Any] = {"graph__path": shop.graph.path, "models__repository": shop.repository}
    settings |= {"live__folder": disk.folder / "live", "live__spare_nodes": 2, "server__grpc_port": 0}
    headers = {"x-api-key": keys["admin"]}
    with serving(headers=headers, auth__clients_file=keys["file"], **settings) as started:
        yield started


def agrees(shop: Shop, worker: Worker) -> None:
    nodes = list(range(len(shop.features["user"])))
    found = worker.score("shop", nodes=nodes, outputs=["logits"])
    np.testing.assert_array_equal(found["outputs"]["logits"], shop.wanted(nodes))


@pytest.mark.release
def test_only_who_may_administer_changes_the_graph(live: Live, keys: dict[str, str]) -> None:
    event = {"op": "add_edge", "edge_type": "user__knows__user", "src": 1, "dst": 2}
    url = f"{live.server.url}/v1/graph/events"
    assert httpx.post(url, json=[event]).status_code == 401
    answer = httpx.post(url, json=[event], headers={"x-api-key": keys["score"]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "permission_denied")
    assert "admin" in answer.text
    node = f"{live.server.url}/v1/graph/nodes/user/1"
    assert httpx.delete(node).status_code == 401
    answer = httpx.delete(node, headers={"x-api-key": keys["score"]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "permission_denied")
    assert live.workers[0].graph()["sequence"] == 0


def test_no_callers_arrow_body_waits_for_the_import_of_its_reader(live: Live) -> None:
    """It would hold the loop: the worker has imported pyarrow before it is ready."""
    worker = live.worker_pids[0] if live.worker_pids else live.pid
    assert "libarrow" in Path(f"/proc/{worker}/maps").read_text()


def test_edges_of_several_types_change_what_they_feed(shop: Shop, live: Live) -> None:
    worker = live.workers[0]
    for (src, relation, dst), pairs in shop.edges.items():
        gone = pairs[0]
        key = f"{src}__{relation}__{dst}"
        events = [
            {"op": "add_edge", "edge_type": key, "src": 3, "dst": 5},
            {"op": "remove_edge", "edge_type": key, "src": gone[0], "dst": gone[1]},
        ]
        worker.applied(events)
        shop.edges[src, relation, dst] = [each for each in [*pairs, (3, 5)] if each != gone]
        agrees(shop, worker)
    values = [0.25] * 7
    worker.applied([{"op": "set_features", "node_type": "item", "node": 5, "features": values}])
    shop.features["item"][5] = np.array(values, np.float32)
    agrees(shop, worker)
    (refused,) = worker.send([{"op": "add_edge", "src": 3, "dst": 5}]).json()["refused"]
    assert refused["code"] == "unknown_type"
    assert "user__buys__item" in refused["reason"]


def test_integer_ids_of_paths_have_one_spelling(live: Live) -> None:
    before = live.workers[0].graph()["sequence"]
    for name, status in (("007", 400), ("+7", 400), ("1e3", 400), ("seven", 400), (str(2**70), 400),
                         ("-7", 404), ("9999999", 404)):  # fmt: skip
        answer = live.workers[0].http.delete(f"/v1/graph/nodes/user/{name}")
        assert answer.status_code == status, answer.text
    assert live.workers[0].graph()["sequence"] == before


def test_nodes_beyond_the_room_are_refused_with_the_setting(shop: Shop, live: Live) -> None:
    worker = live.workers[0]
    new = [
        {"op": "add_node", "node_type": "user", "node": 1000 + i, "features": [float(i)] * 5}
        for i in range(4)
    ]
    told = worker.send(new).json()
    assert told["applied"] == 2
    assert [(each["index"], each["code"]) for each in told["refused"]] == [(2, "full"), (3, "full")]
    assert "live.spare_nodes are used up; restart the server with more" in told["refused"][0]["reason"]
    edges = [
        {"op": "add_edge", "edge_type": "user__knows__user", "src": 1, "dst": 1000 + i} for i in range(2)
    ]
    worker.applied(edges)
    assert worker.graph()["nodes"] == {"user": 82, "item": 60}
    assert worker.score("shop", nodes=[1000, 1001])["outputs"]


def test_a_full_disk_refuses_events_and_costs_no_answers(live: Live, disk: Disk) -> None:
    worker = live.workers[0]

    def batch(number: int) -> list[dict[str, Any]]:
        row = [number] * 5
        return [
            {
                "id": f"{number}/{i}",
                "op": "set_features",
                "node_type": "user",
                "node": i % 80,
                "features": row,
            }
            for i in range(4000)
        ]

    with disk.full(live.writer):
        number, answer = 0, worker.send(batch(0))
        while answer.status_code == 200:  # into what the log had written ahead
            number += 1
            answer = worker.send(batch(number))
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "log_full")
        assert int(answer.headers["retry-after"]) >= 1
        assert str(disk.folder / "live") in answer.text
        assert "the change was not made" in answer.text
        before = worker.graph()
        for _ in range(3):
            assert worker.send(batch(number)).status_code == 503
        assert worker.score("shop", nodes=[1, 2])["graph_version"] == before["graph_version"]
        assert worker.graph()["sequence"] == before["sequence"]
    told = worker.applied(batch(number))
    assert (told["applied"], told["sequence"]) == (4000, before["sequence"] + 1)


def test_answers_name_the_version_and_the_age_in_every_protocol(live: Live, keys: dict[str, str]) -> None:
    worker = live.workers[0]
    version = worker.graph()["graph_version"]
    tensor = {"name": "node_ids", "datatype": "INT64", "shape": [1], "data": [1]}
    parameters = worker.http.post("/v2/models/shop/infer", json={"inputs": [tensor]}).json()["parameters"]
    assert parameters["graph_version"] == version
    assert 0 <= int(parameters["graph_age_ms"]) < 10_000
    request = message("inference.ModelInferRequest")(model_name="shop")
    request.inputs.add(name="node_ids", datatype="INT64", shape=[1]).contents.int64_contents.append(1)
    with grpc.insecure_channel(live.server.grpc) as channel:
        infer = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            message("inference.ModelInferRequest").SerializeToString,
            message("inference.ModelInferResponse").FromString,
        )
        found = infer(request, metadata=(("x-api-key", keys["admin"]),)).parameters
    assert found["graph_version"].string_param == version
    assert 0 <= int(found["graph_age_ms"].string_param) < 10_000
