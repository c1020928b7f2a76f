"""Feature rows outside the graph: stores, the caches in front of them, and the client that reads both.

For authors of a store:

    base.py        the interface: `FeatureStore`, `FeatureGroup`, `FetchedRows`
    published.py   `PublishingStore`: a store in which batch runs can publish their results
    registry.py    schemes of URLs, built in and from other packages (entry points)
    rows.py, ids.py    rows in an array, found by id
    foreign.py     for client libraries: threads, as they block, and which of their errors are worth a retry

The stores: memory.py, parquet.py, redis.py (with resp.py and redis_*.py), dynamodb.py, feast.py, pyg.py.
`hopline.testing.feature_stores` has the conformance suite that each of them passes.

Above the stores, and independent of them:

    l1_rows.py     what the engine reads: first the L1 feature cache (l1.py, claims.py, shared_file.py)
    client.py      fetches rows in time, for all callers of a process (flight.py, inflight.py, answer.py)
    tier.py        one store with its breaker and retries (breaker.py, retry.py, window.py, overdue.py);
                   copies of rows in L2
    skew.py        compares a store's rows with those that the model was trained on
    metrics.py     what the client counts
"""
