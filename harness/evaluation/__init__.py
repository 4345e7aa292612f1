"""Reproductions at the best parameters, scored on the test classes."""
