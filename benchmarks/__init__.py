"""Benchmarks: each measures against a peer in the same run and ends with one JSON line."""

from benchmarks.needs import check

check()
