"""The callers of benchmarks/generate.py: plain sockets, so that the client takes little of the machine."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Streamed:
    """Result of one stream.

    Attributes:
        tokens: as the usage says.
        first_s, first_at: seconds to the first text, and when it came.
    """

    tokens: int = 0
    first_s: float = 0.0
    first_at: float = 0.0


class Client:
    """Calls one server on loopback."""

    def __init__(self, port: int, model: str, scored: str) -> None:
        self._port = port
        self._model = model
        self._scored = scored

    async def _post(self, path: str, body: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=4096)
        data = json.dumps(body).encode()
        writer.write(
            f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            f"content-length: {len(data)}\r\n\r\n".encode()
            + data
        )
        return reader, writer

    async def stream(self, prompt: str, tokens: int, bytes_per_s: int = 0) -> Streamed:
        """Read a chat's stream to its end; hangs up when cancelled."""
        began = time.perf_counter()
        reader, writer = await self._post(
            "/v1/chat/completions",
            {
                "model": self._model,
                "messages": [{"role": "user", "content": prompt}],
                "max_tokens": tokens,
                "temperature": 0,
                "ignore_eos": True,
                "timeout_ms": 240_000,
                "stream": True,
                "stream_options": {"include_usage": True},
            },
        )
        found = Streamed()
        try:
            while bytes_per_s:
                await reader.readexactly(bytes_per_s)
                await asyncio.sleep(1.0)
            while line := await reader.readline():
                if line.startswith(b"HTTP/1.1 ") and b" 200 " not in line:
                    raise RuntimeError(line.decode() + (await reader.read(2000)).decode())
                if not line.startswith(b"data: "):
                    continue
                if not found.first_at:
                    found.first_at = time.perf_counter()
                    found.first_s = found.first_at - began
                if b'"usage":' in line:
                    found.tokens = json.loads(line[6:])["usage"]["completion_tokens"]
                if line.startswith(b"data: [DONE]"):
                    return found
            raise RuntimeError("the stream was cut off")
        finally:
            writer.transport.abort()

    async def scores(self, seconds: float, num_nodes: int) -> list[float]:
        """Milliseconds of scores of single nodes, one at a time with pauses, over one connection."""
        found = []
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        end = time.perf_counter() + seconds
        chance = random.Random(0)
        while time.perf_counter() < end:
            data = b'{"nodes":[%d]}' % chance.randrange(num_nodes)
            began = time.perf_counter()
            writer.write(
                b"POST /v1/models/%b/score HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b"
                % (self._scored.encode(), len(data), data)
            )
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            assert length is not None
            await reader.readexactly(int(length[1]))
            found.append((time.perf_counter() - began) * 1e3)
            assert head.startswith(b"HTTP/1.1 200"), head
            await asyncio.sleep(0.002)
        writer.close()
        return found

    async def metric(self, name: str, model: str, kind: str = "") -> float:
        """A sample of the metrics; 0 where it is absent."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        text = (await reader.read(-1)).decode()
        writer.close()
        labels = rf'model="{model}"[^}}]*' + (rf'kind="{kind}"' if kind else "")
        found = re.search(rf"^{name}{{{labels}}} (\S+)", text, re.MULTILINE)
        return float(found[1]) if found else 0.0


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that so many percent do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
