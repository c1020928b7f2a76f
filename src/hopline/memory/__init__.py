"""Memory that is carved and bounded: arenas, and the eviction order of caches."""
