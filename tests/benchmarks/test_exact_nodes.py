"""Answers that every server must give: PyG on whole graphs judges them, and a wrong server is refused."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
import torch

from benchmarks import exact_nodes, model_workload
from benchmarks.hopline_server import request
from benchmarks.model_workload import Facts
from benchmarks.server_process import ServerFailed, free_port


@pytest.fixture(scope="module", params=["gatv2", "hetero"])
def folder(request, tmp_path_factory):
    """A small workload with its exact nodes."""
    folder = tmp_path_factory.mktemp(request.param)
    model_workload.write(request.param, 1000, folder)
    exact_nodes.build(folder)
    return folder


def whole_graph(folder, facts):
    """All features, and all edges int64 [2, E], by type."""
    x = {name: torch.from_numpy(np.load(folder / facts.features_file(name))) for name in facts.num_nodes}
    pairs = {}
    for number, edge in enumerate(facts.edge_types):
        indptr, sources = (np.load(folder / name) for name in facts.list_files(number))
        ends = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        pairs[edge] = torch.from_numpy(np.stack([sources, ends]))
    return x, pairs


@torch.inference_mode()
def test_rows_are_those_of_the_module_on_the_whole_graph(folder):
    facts = Facts.read(folder)
    x, pairs = whole_graph(folder, facts)
    module = exact_nodes.module_of(folder, facts)
    out = module(x, pairs) if len(x) > 1 else module(x["node"], pairs[facts.edge_types[0]])
    nodes, rows = exact_nodes.ensure(folder)
    assert np.abs(out[nodes].numpy() - rows).max() < 1e-5
    assert len(nodes) == 32


def test_no_list_on_the_way_is_longer_than_its_fanout(folder):
    facts = Facts.read(folder)
    _, pairs = whole_graph(folder, facts)
    nodes, _ = exact_nodes.ensure(folder)
    longest = 0
    for node in nodes:
        at = {facts.target: {int(node)}}
        for fanout in facts.fanouts:
            nearer, at = at, {}
            for (source, relation, target), edges in pairs.items():
                for v in nearer.get(target, ()):
                    found = edges[0][edges[1] == v].tolist()
                    assert len(found) <= fanout, (node, relation)
                    longest = max(longest, len(found))
                    at.setdefault(source, set()).update(found)
    assert longest >= 3


def test_timed_requests_name_none_of_the_nodes_apart(folder):
    facts = Facts.read(folder)
    assert facts.num_ids < facts.num_nodes[facts.target]


def test_a_server_that_is_gone_has_failed():
    expected = np.arange(3), np.zeros((3, 5), np.float32)
    with pytest.raises(ServerFailed, match="Connection refused"):
        exact_nodes.compare(free_port(), request("sage"), expected, 2)


@pytest.mark.parametrize(
    ("error", "status", "said"), [(0, 200, ""), (0.01, 200, "differs"), (0, 503, "status 503")]
)
def test_a_server_with_another_answer_is_refused(error, status, said):
    expected = np.arange(3), np.random.default_rng(1).standard_normal((3, 5)).astype(np.float32)

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self):
            (node,) = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["nodes"]
            row = expected[1][node] + (error if node == 2 else 0)
            body = json.dumps({"output": row.tolist()}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words):
            """No line for each request."""

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            if said:
                with pytest.raises(ServerFailed, match=said):
                    exact_nodes.compare(server.server_port, request("sage"), expected, 2)
            else:
                exact_nodes.compare(server.server_port, request("sage"), expected, 2)
        finally:
            server.shutdown()
