"""Training tables of what the engine reads and computes: rows, ego-graphs, embeddings and scores."""

__version__ = "0.1.0"
