"""A real Alertmanager for tests (Debian's package `prometheus-alertmanager`), and who it notifies."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from packages.mesh.tests.answering import answering, free_port

_CONFIG = """
route:
  receiver: hook
  group_by: [alertname, incident]
  group_wait: {group_wait}
  group_interval: {group_interval}
  repeat_interval: 1h
receivers:
  - name: hook
    webhook_configs:
      - url: {url}
        send_resolved: true
"""


class Webhooks:
    """A receiver of notifications.

    Attributes:
        url: that Alertmanager posts to.
        bodies: what came, in order.
    """

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self._came = threading.Condition()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with receiver._came:
                    receiver.bodies.append(body)
                    receiver._came.notify_all()
                self.send_response(200)
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def alerts(self) -> list[tuple[str, dict[str, str]]]:
        """(status, labels) of every alert of every notification."""
        with self._came:
            return [(alert["status"], alert["labels"]) for body in self.bodies for alert in body["alerts"]]

    def wait_for(self, count: int, timeout_s: float = 15.0) -> list[tuple[str, dict[str, str]]]:
        """Until so many alerts were notified of."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.alerts()) >= count, timeout_s), self.bodies
        return self.alerts()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextlib.contextmanager
def webhooks() -> Iterator[Webhooks]:
    receiver = Webhooks()
    try:
        yield receiver
    finally:
        receiver.close()


@contextlib.contextmanager
def alertmanager(
    folder: Path,
    webhook_url: str,
    *,
    port: int = 0,
    group_wait: str = "100ms",
    group_interval: str = "300ms",
) -> Iterator[str]:
    """Its URL; notifies the webhook. With the same folder and port it is the same one, restarted."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "alertmanager.yml"
    config.write_text(_CONFIG.format(url=webhook_url, group_wait=group_wait, group_interval=group_interval))
    port = port or free_port()
    command = [
        "prometheus-alertmanager",
        f"--config.file={config}",
        f"--storage.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]
    with answering(command, port, "/-/ready", folder / "log") as url:
        yield url
