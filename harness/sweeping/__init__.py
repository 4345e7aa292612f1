"""Sweeps: points of a grid, each trained on its folds, together one table."""
