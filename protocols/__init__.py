"""Evaluation protocols: everything that two results must share to be compared."""
