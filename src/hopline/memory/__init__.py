"""Bounded memory: arenas, and the eviction order of caches."""
