"""Names of scores: in records, in tables, and as people type them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.errors import unknown

# How the embeddings of the fold models are scored: side by side, or one by one.
KINDS = ("concatenated", "separated")

# What every test measures.
METRICS = ("map_at_r", "r_precision", "p_at_1")

# What is measured on demand, beside recall_at_K.
MORE = {
    "nmi": "normalised mutual information with k-means clusters",
    "covering_radius": "mean radius of few samples that cover their class",
    "class_distance": "mean distance of samples of different classes",
}
# These are lengths, not parts of a whole.
LENGTHS = ("covering_radius", "class_distance")

TITLES = {
    **{"map_at_r": "MAP@R", "r_precision": "RP", "p_at_1": "P@1", "nmi": "NMI"},
    **{name: name.replace("_", " ") for name in LENGTHS},
}


def title_of(metric: str) -> str:
    """As papers write it; a name that is not known stays as it is."""
    name, at, rank = metric.rpartition("_at_")
    if name == "recall" and at:
        return f"R@{rank}"
    return TITLES.get(metric, metric)


def is_metric(text: str) -> bool:
    """Whether people mean a metric on demand by it."""
    return text in MORE or re.fullmatch(r"recall@[1-9]\d*(,[1-9]\d*)*", text) is not None


def parse_metrics(texts: Sequence[str]) -> tuple[str, ...]:
    """`recall@1,2 nmi` -> recall_at_1, recall_at_2, nmi; each once."""
    names: list[str] = []
    for text in texts:
        if not is_metric(text):
            raise unknown("metric on demand", text, [*MORE, "recall@1,2,4,8"])
        ranks = text.removeprefix("recall@").split(",") if text.startswith("recall@") else []
        names.extend([f"recall_at_{rank}" for rank in ranks] or [text])
    return tuple(dict.fromkeys(names))
