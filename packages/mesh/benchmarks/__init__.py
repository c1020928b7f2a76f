"""Benchmarks of the mesh watch, run from the root as `python -m packages.mesh.benchmarks`."""
