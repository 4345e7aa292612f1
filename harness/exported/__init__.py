"""Trained models in folders that can be taken away, and what can be done with such a folder."""
