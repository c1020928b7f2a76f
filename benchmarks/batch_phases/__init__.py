"""Phases of `benchmarks.batch`."""
