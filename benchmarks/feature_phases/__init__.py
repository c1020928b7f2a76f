"""What `benchmarks.features` measures: one file for each phase, and the processes that they need."""
