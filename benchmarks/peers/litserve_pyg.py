"""LitServe with its dynamic batching, one API worker and one model worker.

`batch_timeout` 0, its default, takes what waits in the queue; 2, 5 and 20 ms gave
no more on a busy machine. Its worker then spins on the queue while it is empty,
so one connection is measured without batching. `fast_queue`, its ZeroMQ
transport, was slower at both loads. Try again on a quiet machine: benchmarks/tune.py.
"""

from __future__ import annotations

from pathlib import Path

import litserve
import numpy as np
import numpy.typing as npt

from benchmarks.peers.served import arguments, load


class NodeAPI(litserve.LitAPI):
    """The documented life of a batched request: decode, batch, predict, unbatch, encode."""

    def __init__(self, workload: Path, threads: int, max_batch_size: int, timeout_s: float) -> None:
        super().__init__(max_batch_size=max_batch_size, batch_timeout=timeout_s)
        self.workload = workload
        self.num_threads = threads
        self.batched = max_batch_size > 1

    def setup(self, device: str) -> None:
        """Load in the model worker."""
        self.scorer = load(self.workload, self.num_threads)

    def decode_request(self, request: dict[str, int]) -> int:
        """JSON to a node id."""
        return request["node"]

    def batch(self, inputs: list[int]) -> list[int]:
        """Node ids need no stacking."""
        return inputs

    def predict(self, x: list[int] | int) -> npt.NDArray[np.float32]:
        """Score a batch, or one node where batching is off."""
        return self.scorer.score(x) if isinstance(x, list) else self.scorer.score([x])[0]

    def unbatch(self, output: npt.NDArray[np.float32]) -> list[npt.NDArray[np.float32]]:
        """One row per request."""
        return list(output)

    def encode_response(self, output: npt.NDArray[np.float32]) -> dict[str, list[float]]:
        """A row to JSON."""
        return {"output": output.tolist()}


def main() -> None:
    """Serve on loopback until SIGTERM."""
    parser = arguments("LitServe + PyG")
    parser.add_argument("--max-batch-size", type=int, default=32)
    parser.add_argument("--batch-timeout-ms", type=float, default=0.0)
    parser.add_argument("--fast-queue", action="store_true")
    args = parser.parse_args()
    api = NodeAPI(args.workload, args.threads, args.max_batch_size, args.batch_timeout_ms / 1e3)
    server = litserve.LitServer(api, accelerator="cpu", fast_queue=args.fast_queue)
    server.run(
        host="127.0.0.1", port=args.port, num_api_servers=1, log_level="warning", generate_client_file=False
    )


if __name__ == "__main__":
    main()
