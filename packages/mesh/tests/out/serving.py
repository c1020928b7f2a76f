"""The ports of a watch in a thread of their own, with a board that tests publish to."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hopline_mesh.out.board import Board
from hopline_mesh.out.serve import Outputs
from hopline_mesh.settings import ServeSettings


@dataclass
class Served:
    """Attributes:
    board: only to be touched through `do`.
    """

    board: Board
    outputs: Outputs
    loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        return self.outputs.url

    def do(self, work: Callable[[], Any]) -> Any:
        """Call something on the event loop of the ports."""

        async def call() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(10)

    def publish(self, *arguments: Any) -> None:
        self.do(lambda: self.board.publish(*arguments))


@contextlib.contextmanager
def serving(board: Board | None = None, page_url: str = "", **settings: Any) -> Iterator[Served]:
    """Started on free ports; `settings` are of `ServeSettings`."""
    board = board or Board()
    outputs = Outputs(board, ServeSettings(**{"http_port": 0, "grpc_port": 0, **settings}), page_url)
    started, failed = threading.Event(), []
    loops: list[asyncio.AbstractEventLoop] = []
    ending: list[asyncio.Event] = []

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        ending.append(asyncio.Event())
        try:
            await outputs.start()
        except BaseException as error:
            failed.append(error)
            return
        finally:
            started.set()
        await ending[0].wait()
        await outputs.stop()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    started.wait(20)
    try:
        if failed:
            raise failed[0]
        yield Served(board, outputs, loops[0])
    finally:
        if not failed:
            loops[0].call_soon_threadsafe(ending[0].set)
        thread.join(20)
