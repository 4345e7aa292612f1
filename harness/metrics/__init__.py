"""Scores of embeddings: exact neighbours, retrieval, clusters, geometry."""
