"""The phases of benchmarks/mesh.py."""
