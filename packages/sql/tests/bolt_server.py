"""A real server of Bolt and Cypher on a free port: ArcadeDB, whose wheel has its own Java.

    python packages/sql/tests/bolt_server.py FOLDER PORT PASSWORD

serves until its standard input ends.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator

PASSWORD = "p@ss:word"


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextlib.contextmanager
def bolt(*statements: str) -> Iterator[str]:
    """A running server with a database `shop`; its address, without a password."""
    import neo4j

    with tempfile.TemporaryDirectory(prefix="bolt-") as folder:
        port = _free_port()
        command = [sys.executable, "-P", __file__, folder, str(port), PASSWORD]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(command, text=True, cwd=folder, **pipes) as server:
            assert any(line == "serving\n" for line in server.stdout), "it has not started"
            address = f"127.0.0.1:{port}"
            with neo4j.GraphDatabase.driver(f"bolt://{address}", auth=("root", PASSWORD)) as driver:
                for statement in statements:
                    driver.execute_query(statement, database_="shop")
            try:
                yield f"bolt://root@{address}/shop"
            finally:
                server.stdin.close()


def _serve(folder: str, port: str, password: str) -> None:
    from arcadedb_embedded import create_server

    config = {"http_port": _free_port(), "bolt_port": int(port)}
    config["server_plugins"] = "Bolt:com.arcadedb.bolt.BoltProtocolPlugin"
    server = create_server(root_path=folder, root_password=password, config=config)
    server.start()
    server.create_database("shop")
    print("\nserving", flush=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.stdin.read()
    os._exit(0)  # it would wait for its clients


if __name__ == "__main__":
    _serve(*sys.argv[1:])
