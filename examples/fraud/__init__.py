"""Fraud scores: trees with their preprocessing, trees on GNN embeddings, rules behind both, rollouts."""
