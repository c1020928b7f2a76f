"""Phases of `benchmarks.fleet`."""
