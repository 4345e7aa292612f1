"""Names of scores: in records, in tables, and as people type them."""

from __future__ import annotations

# How the embeddings of the fold models are scored: side by side, or one by one.
KINDS = ("concatenated", "separated")

# What every test measures.
METRICS = ("map_at_r", "r_precision", "p_at_1")

TITLES = {"map_at_r": "MAP@R", "r_precision": "RP", "p_at_1": "P@1", "nmi": "NMI"}


def title_of(metric: str) -> str:
    """As papers write it; a name that is not known stays as it is."""
    name, at, rank = metric.rpartition("_at_")
    if name == "recall" and at:
        return f"R@{rank}"
    return TITLES.get(metric, metric)
