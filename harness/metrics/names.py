"""Names of scores: in records, in tables, and as people type them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.util import find_spec

from harness.errors import HarnessError, unknown

# How the embeddings of the fold models are scored: side by side, or one by one.
EMBEDDINGS = ("concatenated", "separated")

# What every test measures, and what may choose a checkpoint.
METRICS = ("map_at_r", "r_precision", "p_at_1")

# Those of which a record holds the mean of every class. With 11,317 classes, as on SOP, these two
# take 0.3 MB; all of them at full precision would take 2 MB.
PER_CLASS = ("map_at_r", "p_at_1")

# What is measured on demand, beside recall_at_K and p_at_K.
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
PRECISION = re.compile(r"p_at_([1-9][0-9]{0,8})")

# As people type the metrics that have a rank, or several: recall@1,2,4,8.
TYPED = re.compile(r"(recall|p)@([1-9]\d{0,8}(?:,[1-9]\d{0,8})*)")


def recall_rank(metric: str) -> int | None:
    """The K of recall_at_K; None for another metric."""
    found = RECALL.fullmatch(metric)
    return int(found[1]) if found else None


def precision_rank(metric: str) -> int | None:
    """The K of p_at_K; None for another metric."""
    found = PRECISION.fullmatch(metric)
    return int(found[1]) if found else None


def title_of(metric: str) -> str:
    """As papers write it; a name that is not known stays as it is."""
    if rank := recall_rank(metric):
        return f"R@{rank}"
    if rank := precision_rank(metric):
        return f"P@{rank}"
    return TITLES.get(metric, metric)


def is_on_demand(metric: str) -> bool:
    """Whether a metric can be measured in addition to those of every test."""
    ranked = recall_rank(metric) or precision_rank(metric)
    return metric in MORE or (bool(ranked) and metric not in METRICS)


def check_selection_metric(name: str) -> None:
    """Refuse a metric that no validation measures."""
    if name not in METRICS:
        raise unknown("metric to select by", name, METRICS)


def check_metrics(names: Sequence[str]) -> None:
    """Refuse a name that is none of a metric on demand."""
    for name in names:
        if not is_on_demand(name):
            raise unknown("metric on demand", name, [*MORE, "recall_at_2", "p_at_2"])


def is_metric(text: str) -> bool:
    """Whether people mean a metric on demand by it."""
    return text in MORE or bool(_names_typed(text))


def parse_metrics(texts: Sequence[str]) -> tuple[str, ...]:
    """`recall@1,2 p@2 nmi` -> recall_at_1, recall_at_2, p_at_2, nmi; each once."""
    names: list[str] = []
    for text in texts:
        if not is_metric(text):
            raise unknown("metric on demand", text, [*MORE, "recall@1,2,4,8", "p@2"])
        names.extend(_names_typed(text) or [text])
    if "nmi" in names and find_spec("faiss") is None:
        raise HarnessError("nmi needs faiss, which is not installed: pip install faiss-cpu")
    return tuple(dict.fromkeys(names))


def _names_typed(text: str) -> list[str]:
    """The metrics that a text with ranks stands for; none if every test measures one of them."""
    found = TYPED.fullmatch(text)
    names = [f"{found[1]}_at_{rank}" for rank in found[2].split(",")] if found else []
    return names if all(map(is_on_demand, names)) else []
