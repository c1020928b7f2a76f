"""The prefetcher: a separate process that fetches feature rows into the shared memory of the workers."""
