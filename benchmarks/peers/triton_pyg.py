"""Triton through nvidia-pytriton: its C++ HTTP front end and dynamic batcher.

Asked in plain Open Inference Protocol JSON, as Hopline and the others are.
"""

from __future__ import annotations

import os
import signal
import sys
import sysconfig

import numpy as np
import numpy.typing as npt
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from benchmarks.peers.served import arguments, load


def main() -> None:
    """Serve on loopback until SIGTERM."""
    parser = arguments("Triton + PyG")
    parser.add_argument("--max-batch-size", type=int, default=32)
    parser.add_argument("--queue-delay-us", type=int, default=0)
    args = parser.parse_args()
    scorer = load(args.workload, args.threads)
    # Triton's Python stub loads the first libpython3.x it finds: it must be the running one.
    library_path = [str(sysconfig.get_config_var("LIBDIR")), os.environ.get("LD_LIBRARY_PATH", "")]
    os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, library_path))
    # PyTriton leaves tritonserver running on SIGTERM; as an exception it unwinds the `with`.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))

    @batch
    def infer(node_ids: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.float32]]:
        return {"output": scorer.score(node_ids[:, 0])}

    config = TritonConfig(
        http_address="127.0.0.1", http_port=args.port, allow_grpc=False, allow_metrics=False, log_verbose=0
    )
    with Triton(config=config) as triton:
        triton.bind(
            model_name="nodes",
            infer_func=infer,
            inputs=[Tensor(name="node_ids", dtype=np.int64, shape=(1,))],
            outputs=[Tensor(name="output", dtype=np.float32, shape=(scorer.num_outputs,))],
            config=ModelConfig(
                max_batch_size=args.max_batch_size,
                batcher=DynamicBatcher(max_queue_delay_microseconds=args.queue_delay_us),
            ),
            strict=False,  # the types are ours; checking each answer costs time
        )
        triton.serve()


if __name__ == "__main__":
    main()
