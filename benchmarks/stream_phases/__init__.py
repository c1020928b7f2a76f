"""Phases of `benchmarks.stream`."""
