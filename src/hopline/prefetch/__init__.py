"""The prefetcher: a process that fetches feature rows into the workers' shared memory."""
