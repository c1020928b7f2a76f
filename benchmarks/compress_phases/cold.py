"""Cold start: from exec to the last byte of the first answer, of a server and of a function.

Each figure is of fresh processes with everything on warm disk: byte code and kernels are compiled (as
`pip install` and `hopline warm` leave them), files are in the page cache. The server is `hopline serve`
with a graph and a two-layer model; a client asks for one node as soon as the port takes a connection,
looking every millisecond. The function is a process that imports `hopline_serverless`, maps a table and
answers one Lambda event; it has answered when the answer's last byte has come through a pipe.

In the same run, in turns, the lower limits of any such server are measured: an interpreter that does
nothing, one that imports NumPy, and one that imports NumPy and ONNX Runtime. Wall-clock seconds say little
on a busy machine, so each figure also has its processor seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.server_process import free_port

MODEL = "risk"
_NUM_NODES, _NUM_EDGES, _NUM_FEATURES, _NUM_HIDDEN = 20_000, 200_000, 64, 64
_POLL_S = 0.001
_LONGEST_S = 120.0

_FUNCTION = """
import sys
from hopline_serverless import handler
event = {"requestContext": {"http": {"method": "POST"}}, "rawPath": "/v1/models/risk/score",
         "body": '{"nodes": [42]}'}
answer = handler(event)
assert answer["statusCode"] == 200, answer
sys.stdout.write(answer["body"])
sys.stdout.flush()
"""

_MAKE = """
import sys
import torch
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv
import hopline

folder, n, e, d, hidden = sys.argv[1], *map(int, sys.argv[2:])
torch.manual_seed(0)
graph = hopline.Graph.from_pyg(Data(x=torch.randn(n, d), edge_index=torch.randint(0, n, (2, e))))
graph.save(f"{folder}/graph")


class Risk(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = SAGEConv(d, hidden), SAGEConv(hidden, hidden)
        self.out = torch.nn.Linear(hidden, 2)

    def forward(self, x, edge_index):
        h = self.first(x, edge_index).relu()
        return self.out(self.second(h, edge_index).relu())


hopline.package(Risk(), graph, f"{folder}/models", name="risk", fanouts=[10, 5], task="multiclass")
"""

#: Seconds on the wall and of the processor.
Took = tuple[float, float]


def measure(quick: bool) -> dict[str, Any]:
    """Start everything in turns, 7 times (quick) or 15.

    Returns: `cold_start_s` and `function_cold_start_s`, medians; `detail`: of each kind `wall_s`, `cpu_s`
        and `min_wall_s`, and the ratio of the server to the imports that it cannot do without.
    """
    with tempfile.TemporaryDirectory(prefix="hopline-cold-") as name:
        folder = Path(name)
        environment = _environment(folder)
        _make(folder, environment)
        starts: dict[str, Callable[[], Took]] = {
            "server": lambda: _server(folder, environment),
            "function": lambda: _process(["-c", _FUNCTION], environment),
            "floor_numpy_onnxruntime": lambda: _process(["-c", "import numpy, onnxruntime"], environment),
            "floor_numpy": lambda: _process(["-c", "import numpy"], environment),
            "floor_python": lambda: _process(["-c", "pass"], environment),
        }
        for start in starts.values():  # fills the page cache and compiles what is not compiled yet
            start()
            start()
        took: dict[str, list[Took]] = {name: [] for name in starts}
        for _ in range(7 if quick else 15):
            for name, start in starts.items():
                took[name].append(start())
    detail: dict[str, Any] = {
        name: {
            "wall_s": round(median(each[0] for each in runs), 4),
            "cpu_s": round(median(each[1] for each in runs), 4),
            "min_wall_s": round(min(each[0] for each in runs), 4),
        }
        for name, runs in took.items()
    }
    server, floor = detail["server"], detail["floor_numpy_onnxruntime"]
    detail["server_over_floor_cpu"] = round(server["cpu_s"] / floor["cpu_s"], 3)
    detail["load_average"] = os.getloadavg()[0]
    return {
        "cold_start_s": server["wall_s"],
        "function_cold_start_s": detail["function"]["wall_s"],
        "detail": detail,
    }


def _environment(folder: Path) -> dict[str, str]:
    """That of a machine where Hopline is installed: byte code is kept."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return own | {
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
        "HOPLINE__MODELS__REPOSITORY": str(folder / "models"),
        "HOPLINE__PRECOMPUTED__FILE": "",
    }


def _make(folder: Path, environment: dict[str, str]) -> None:
    sizes = map(str, (_NUM_NODES, _NUM_EDGES, _NUM_FEATURES, _NUM_HIDDEN))
    _run([sys.executable, "-c", _MAKE, str(folder), *sizes], environment)
    table = folder / "risk.precomputed"
    words = [sys.executable, "-m", "hopline.cli", "batch", "--model", MODEL, "--json"]
    words += ["--graph", str(folder / "graph"), "--repository", str(folder / "models")]
    _run([*words, "--to", f"precomputed:{table}", "--outputs", "logits,state"], environment)
    environment["HOPLINE__PRECOMPUTED__FILE"] = str(table)


def _run(words: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words[:6])} … failed:\n{done.stderr[-2000:]}")


def _process(arguments: list[str], environment: dict[str, str]) -> Took:
    """A process that says something, which ends the time, or that says nothing and ends."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    while os.read(process.stdout.fileno(), 65536):
        seconds = time.perf_counter() - began
        break
    else:
        seconds = time.perf_counter() - began
    process.stdout.close()
    if process.wait():
        raise RuntimeError(f"{arguments} ended with {process.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, cpu


def _server(folder: Path, environment: dict[str, str]) -> Took:
    port, body = free_port(), b'{"nodes":[42]}'
    head = f"POST /v1/models/{MODEL}/score HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    words = [sys.executable, "-m", "hopline.cli", "serve", "--graph", str(folder / "graph")]
    words += ["--repository", str(folder / "models"), "--port", str(port), "--grpc-port", "0"]
    own = {name: value for name, value in environment.items() if name != "HOPLINE__PRECOMPUTED__FILE"}
    began = time.perf_counter()
    with open(os.devnull, "w") as nowhere:
        process = subprocess.Popen(words, env=own, stdout=nowhere, stderr=nowhere)
    try:
        with _connected(port, process) as connection:
            connection.sendall(head.encode() + body)
            answer = _whole(connection)
        seconds = time.perf_counter() - began
        cpu = _cpu_of(process.pid)
    finally:
        process.terminate()
        process.wait()
    status = answer.split(b" ", 2)[1]
    if status != b"200":
        raise RuntimeError(f"the server answered {answer[:300]!r}")
    json.loads(answer.partition(b"\r\n\r\n")[2])
    return seconds, cpu


def _connected(port: int, process: subprocess.Popen[bytes]) -> socket.socket:
    end = time.monotonic() + _LONGEST_S
    while process.poll() is None and time.monotonic() < end:
        connection = socket.socket()
        with contextlib.suppress(ConnectionRefusedError):
            connection.connect(("127.0.0.1", port))
            return connection
        connection.close()
        time.sleep(_POLL_S)
    raise RuntimeError("the server did not open its port")


def _whole(connection: socket.socket) -> bytes:
    """The answer up to its last byte."""
    answer = b""
    while True:
        head, end, body = answer.partition(b"\r\n\r\n")
        lengths = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        if end and lengths and len(body) >= int(lengths[0]):
            return answer
        more = connection.recv(65536)
        if not more:
            raise RuntimeError(f"the server closed after {answer[:300]!r}")
        answer += more


def _cpu_of(pid: int) -> float:
    """Processor seconds of all threads so far."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(path.read_text().split()[0]) for path in tasks) / 1e9


if __name__ == "__main__":
    print(json.dumps(measure("--quick" in sys.argv)))
