"""Feature rows outside the graph: stores, the caches in front of them, and the client that reads both.

For authors of a store:

    base.py        the interface: `FeatureStore`, `FeatureGroup`, `FetchedRows`
    registry.py    schemes of URLs, built in and from other packages (entry points)
    rows.py, ids.py    rows in an array, found by id

The stores: memory.py; Parquet, Redis, DynamoDB, Feast and PyG are in `packages/stores`, which also has
`hopline_stores.foreign`: threads for client libraries, as they block, and which of their errors are worth a
retry. `hopline_stores.testing.feature_stores` has the conformance suite that each store passes.

Above the stores, and independent of them:

    l1_rows.py     what the engine reads: first the L1 feature cache (l1.py, claims.py, shared_file.py)
    client.py      fetches rows in time, for all callers of a process (flight.py, inflight.py, answer.py)
    tier.py        one store with its breaker and retries (breaker.py, retry.py, window.py, overdue.py);
                   copies of rows in L2
    skew.py        compares a store's rows with those that the model was trained on
    metrics.py     what the client counts
"""
