"""The phases of benchmarks/lifecycle.py."""
