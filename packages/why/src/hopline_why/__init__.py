"""Reasons of a score: what each column and each neighbour of a node added, by scoring without them."""

__version__ = "0.1.0"
