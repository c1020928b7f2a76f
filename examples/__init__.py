"""Complete programs on real data; run them as `python -m examples.<name>`."""
