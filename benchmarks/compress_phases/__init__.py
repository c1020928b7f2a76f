"""Phases of `benchmarks.compress`."""
