"""Names of scores: in records, in tables, and as people type them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.errors import unknown

# How the embeddings of the fold models are scored: side by side, or one by one.
EMBEDDINGS = ("concatenated", "separated")

# What every test measures, and what may choose a checkpoint.
METRICS = ("map_at_r", "r_precision", "p_at_1")

# Those of which a record holds the mean of every class. With 11,317 classes, as on SOP, these two
# take 0.3 MB; all of them at full precision would take 2 MB.
PER_CLASS = ("map_at_r", "p_at_1")

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

RECALL = re.compile(r"recall_at_([1-9][0-9]{0,8})")


def recall_rank(metric: str) -> int | None:
    """The K of recall_at_K; None for another metric."""
    found = RECALL.fullmatch(metric)
    return int(found[1]) if found else None


def title_of(metric: str) -> str:
    """As papers write it; a name that is not known stays as it is."""
    rank = recall_rank(metric)
    return f"R@{rank}" if rank else TITLES.get(metric, metric)


def check_selection_metric(name: str) -> None:
    """Refuse a metric that no validation measures."""
    if name not in METRICS:
        raise unknown("metric to select by", name, METRICS)


def check_metrics(names: Sequence[str]) -> None:
    """Refuse a name that is none of a metric on demand."""
    for name in names:
        if name not in MORE and recall_rank(name) is None:
            raise unknown("metric on demand", name, [*MORE, "recall_at_2"])


def is_metric(text: str) -> bool:
    """Whether people mean a metric on demand by it."""
    return text in MORE or re.fullmatch(r"recall@[1-9]\d{0,8}(,[1-9]\d{0,8})*", text) is not None


def parse_metrics(texts: Sequence[str]) -> tuple[str, ...]:
    """`recall@1,2 nmi` -> recall_at_1, recall_at_2, nmi; each once."""
    names: list[str] = []
    for text in texts:
        if not is_metric(text):
            raise unknown("metric on demand", text, [*MORE, "recall@1,2,4,8"])
        ranks = text.removeprefix("recall@").split(",") if text.startswith("recall@") else []
        names.extend([f"recall_at_{rank}" for rank in ranks] or [text])
    return tuple(dict.fromkeys(names))
