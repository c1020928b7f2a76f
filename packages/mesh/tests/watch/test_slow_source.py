"""A Prometheus that was too slow for a while can be asked again afterwards."""

import asyncio
import contextlib
import gc
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from hopline_mesh.collect import CollectOptions, Collector, Prometheus, queries_for

_EMPTY = json.dumps({"status": "success", "data": {"resultType": "vector", "result": []}}).encode()


class Slow(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    delay_s = 0.0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        time.sleep(self.server.delay_s)
        self.send_response(200)
        self.send_header("content-length", str(len(_EMPTY)))
        self.end_headers()
        self.wfile.write(_EMPTY)

    def log_message(self, *given):
        pass


@pytest.fixture
def server():
    one = Slow(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield one
    one.shutdown()
    thread.join()
    one.server_close()


# A question that is cancelled while its connection closes leaves the socket to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_questions_that_were_given_up_take_no_connection_with_them(server):
    options = CollectOptions(deadline_s=0.1)
    async with Prometheus(f"http://127.0.0.1:{server.server_address[1]}") as client:
        collector = Collector(client, queries_for("istio"), options=options)
        # From well too slow to just too slow, so that questions are given up in all of their phases.
        for number in range(32):
            server.delay_s = 0.12 * (number % 8) / 7
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(collector.collect(1000.0 + number), 0.1 + 0.0005 * (number // 8))
        server.delay_s = 0.0
        options = CollectOptions(deadline_s=5.0)
        collector = Collector(client, queries_for("istio"), options=options)
        snapshot = await collector.collect(2000.0)
    assert not [gap for gap in snapshot.gaps if "did not answer" in gap.reason]
    del collector, client
    gc.collect()
