"""FastAPI on uvicorn (uvloop, httptools), one worker: what most teams write by hand.

FastAPI has no batching. The handler is `async` and computes on the event loop:
against a thread pool (`def`), measured under the same background load, 2.3 and
3.0 ms p50 with one connection, 457 and 292 req/s with 32; only p99 with 32 is
worse, 671 and 177 ms. Two torch threads cost it far more (130 req/s).
"""

from __future__ import annotations

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from benchmarks.peers.served import Scores, arguments, load


class Query(BaseModel):
    """One node to score."""

    node: int


class Answer(BaseModel):
    """The node's outputs. A response model is serialised in Rust, by FastAPI's advice."""

    output: list[float]


def build(scorer: Scores) -> FastAPI:
    """The application around one scorer."""
    app = FastAPI()

    @app.post("/score")
    async def score(query: Query) -> Answer:
        return Answer(output=scorer.score([query.node])[0].tolist())

    return app


def serve(app: FastAPI, port: int) -> None:
    """Serve on loopback until SIGTERM, with the fastest loop and parser that uvicorn has."""
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=port,
        loop="uvloop",
        http="httptools",
        log_level="warning",
        access_log=False,
    )


def main() -> None:
    """Serve on loopback until SIGTERM."""
    args = arguments("FastAPI + PyG").parse_args()
    serve(build(load(args.workload, args.threads)), args.port)


if __name__ == "__main__":
    main()
