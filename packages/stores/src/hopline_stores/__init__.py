"""Stores outside of the host: features, edges of a graph, the state of a fleet, and published results.

    redis/         url.py, resp.py (the protocol), connection.py, server.py and cluster.py; on top of them
                   features.py (rows), graph.py with graph_*.py (edges), state.py (a fleet)
    dynamodb.py, feast.py, pyg.py    feature stores over client libraries, with foreign.py: their threads,
                   and which of their errors are worth a retry
    parquet.py     a feature store of files; columns.py: forms of values in stores of texts
    published.py   batch results in a store, one generation after another; sink.py writes them
    parquet_sink.py    batch results in files
    snapshots/     graphs are published at addresses: `hopline snapshot`

Hopline finds them by the schemes of URLs.
"""

from pathlib import Path

__version__ = "0.1.0"

#: What `hopline warm` compiles kernels for.
SIGNATURES = Path(__file__).with_name("signatures.txt")
