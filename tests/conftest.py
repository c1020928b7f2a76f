"""Shared fixtures. Threads are pinned: two test cores, and bit-equality is for one thread count."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
