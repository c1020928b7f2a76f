"""Cost of HTTP before anything is scored: Hopline's connection against an ASGI echo on uvicorn.

    python -m benchmarks.transports [--seconds 5] [--connections 32]

Both servers run in one process each, on one core's worth of event loop, under the same wrk load; the echo
does nothing but send a body of the same size, so it is the most that any ASGI application can reach there.
Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

BODY = '{"nodes":[42]}'
ANSWER = (
    b'{"model":"sage","version":"2","graph_version":"fake-graph","outputs":{"probabilities":[[0.9,0.1]],'
    b'"label":[0]},"degraded":[]}'
)
LUA = f"""wrk.method = "POST"
wrk.body = '{BODY}'
wrk.headers["Content-Type"] = "application/json"
"""


def serve_hopline(port: int) -> None:
    import uvloop

    from hopline.config.schema import Config
    from hopline.transports.http import HttpApp
    from hopline.types import ScoreRequest
    from tests.fake_service import FakeService
    from turnserve.http1.endpoint import HttpEndpoint

    async def main() -> None:
        config = Config()
        service = FakeService(config)
        await service.start()
        answer = await service.score(ScoreRequest("sage", [42]))
        service.submit = lambda request, deliver: deliver(answer)  # type: ignore[method-assign,assignment,return-value]
        loop = asyncio.get_running_loop()
        app = HttpApp(cast(Any, service), config)
        endpoint = HttpEndpoint(app, app.refuse, max_body_bytes=config.server.max_body_bytes)
        server = await loop.create_server(endpoint, "127.0.0.1", port)
        await server.serve_forever()

    uvloop.run(main())


def serve_asgi_echo(port: int) -> None:
    import uvicorn

    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))]

    async def app(scope: dict, receive, send) -> None:  # type: ignore[no-untyped-def,type-arg]
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": ANSWER})

    uvicorn.run(app, port=port, loop="uvloop", http="httptools", log_level="error", lifespan="off")


def measure(name: str, connections: int, seconds: int) -> dict[str, float]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-m", "benchmarks.transports", "--serve", name, str(port)])
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            asyncio.run(asyncio.sleep(0.05))
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "post.lua"
            script.write_text(LUA)
            url = f"http://127.0.0.1:{port}/v1/models/sage/score"
            command = ["wrk", "-t1", f"-c{connections}", "--latency", "-s", str(script), url]
            subprocess.run([*command, "-d1s"], check=True, capture_output=True)
            before = _cpu_s(server.pid)
            text = subprocess.run(
                [*command, f"-d{seconds}s"], check=True, capture_output=True, text=True
            ).stdout
            used = _cpu_s(server.pid) - before
    finally:
        server.terminate()
        server.wait()
    return {
        "rps": float(re.search(r"Requests/sec:\s+([\d.]+)", text)[1]),  # type: ignore[index]
        "p50_ms": _milliseconds(re.search(r"50%\s+([\d.]+)(\w+)", text)),
        "p99_ms": _milliseconds(re.search(r"99%\s+([\d.]+)(\w+)", text)),
        "cpu_us": round(1e6 * used / int(re.search(r"(\d+) requests in", text)[1]), 1),  # type: ignore[index]
        "errors": "Non-2xx" in text,
    }


def _cpu_s(pid: int) -> float:
    """Processor time of a process: what tells servers apart on a machine that is busy with other things."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _milliseconds(match: re.Match[str] | None) -> float:
    assert match is not None
    return round(float(match[1]) * {"us": 0.001, "ms": 1.0, "s": 1000.0}[match[2]], 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--serve", nargs=2)
    options = parser.parse_args()
    servers = {"hopline": serve_hopline, "asgi_echo": serve_asgi_echo}
    if options.serve:
        servers[options.serve[0]](int(options.serve[1]))
        return
    if shutil.which("wrk") is None:
        sys.exit("wrk is needed")
    results: dict[str, dict[str, dict[str, float]]] = {}
    for name in servers:
        results[name] = {f"c{n}": measure(name, n, options.seconds) for n in (1, 32)}
        for load, row in results[name].items():
            print(
                f"{name:>10} {load:>4}  {row['rps']:>9.0f} req/s  p50 {row['p50_ms']} ms  "
                f"p99 {row['p99_ms']} ms  {row['cpu_us']} µs CPU"
            )
    ratio = results["hopline"]["c32"]["rps"] / results["asgi_echo"]["c32"]["rps"]
    print(json.dumps({**results, "ratio_c32_rps": round(ratio, 2)}))


if __name__ == "__main__":
    main()
