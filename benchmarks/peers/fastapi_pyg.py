"""FastAPI on uvicorn (uvloop, httptools), one worker: what most teams write by hand.

The handler is `async` and computes on the event loop: on one worker a thread
pool (`def`) only adds hand-overs of the interpreter lock, measured slower at
both loads. FastAPI has no batching.
"""

from __future__ import annotations

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from benchmarks.peers.pyg_model import Scorer, arguments


class Query(BaseModel):
    """One node to score."""

    node: int


class Answer(BaseModel):
    """The node's 64 outputs. A response model is serialised in Rust, by FastAPI's advice."""

    output: list[float]


def build(scorer: Scorer) -> FastAPI:
    """The application around one scorer."""
    app = FastAPI()

    @app.post("/score")
    async def score(query: Query) -> Answer:
        return Answer(output=scorer.score([query.node])[0].tolist())

    return app


def main() -> None:
    """Serve on loopback until SIGTERM."""
    args = arguments("FastAPI + PyG").parse_args()
    uvicorn.run(
        build(Scorer(args.workload, args.threads)),
        host="127.0.0.1",
        port=args.port,
        loop="uvloop",
        http="httptools",
        log_level="warning",
        access_log=False,
    )


if __name__ == "__main__":
    main()
