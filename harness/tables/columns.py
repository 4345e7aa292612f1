"""The columns of a table and what each holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from harness.judgement.stats import LEVEL
from harness.metrics.names import EMBEDDINGS, LENGTHS, METRICS, MORE, recall_rank, title_of

# What `indistinguishable` may say of a row.
BEST, SAME, WORSE, UNKNOWN = "best", "yes", "no", "too few reproductions"


def leads_are_claimed(frame: pd.DataFrame) -> bool:
    """Whether enough runs are shared to call a row the best: else nobody is."""
    return not (frame["indistinguishable"] == UNKNOWN).any()


# Column -> what it holds, before and behind the scores; the order of the columns, too.
BEFORE = {
    "rank": "by concatenated MAP@R, among the rows of kind `reproduction`",
    "method": "name of --loss, or of a naive baseline",
    "kind": (
        "`reproduction`: four fold models; `single`: one model of their size together, trained on "
        "all trainval classes; `naive`: PCA of a network's features or of pixels"
    ),
    "indistinguishable": (
        f"from the best row: `{SAME}` or `{WORSE}` by a paired t-test of concatenated MAP@R over "
        f"shared reproductions, Holm-corrected, at {LEVEL}; or `{UNKNOWN}` to say"
    ),
}
# Columns that tables and sweeps share: what training cost, under what, made by what.
COST = {
    "best_step": "steps to the best checkpoint, mean over models",
    "ms_per_step": "training time per step, mean over models",
    "convergence_seconds": "training time to the best checkpoint, mean over models",
    "train_seconds": "training time of one model, mean",
    "peak_memory_mib": "largest, of a GPU or of the process on a CPU",
    "device": "what it was trained on",
}
MEASURED_UNDER = {
    "protocol": "name of the protocol",
    "dataset": "name of the data set",
    "trunk": "name of the trunk",
}
MADE_BY = {
    "commit": "of the code, with + if it had been changed; empty for an installed package",
    "versions": "of Python and the libraries, as JSON",
    "command": "that wrote the last record",
}

BEHIND = {
    "dim_concatenated": "size of the concatenated embedding, or of the single model's",
    "dim_separated": "size of one model's embedding",
    "reproductions": "n of the means and intervals; the run that the search chose is not in it",
    "incomplete": "fewer trials or reproductions than the protocol asks for",
    "validation_score": "mean over folds of the best validation score, in the search",
    "validation_metric": "what that is a score of",
    "validation_sd": "standard deviation of that score over the folds",
    "dimensions": "parameters that were searched",
    "trials": "trials of the search that count",
    "trials_failed": "those among them that failed",
    "trials_pruned": "those among them that were stopped early",
    "not_flat": (
        "whether the last fifth of the trials brought a better one, by more than one standard "
        "error of the differences on the same folds"
    ),
    "search_scores": (
        "concatenated MAP@R of each search of the method, the row's own first, as JSON; empty list "
        "if there is no other one, with another seed"
    ),
    "params": "best parameters, as JSON",
    "on_bound": "parameters whose best value lies on an end of its range, as JSON",
    "almost_base": "the base that it trains almost as, at its best parameters; empty for others",
    "at_step_limit": "share of the models that ended at the step limit and not by patience",
    "at_first_validation": "share of the models that were best when they were first validated",
    "instances": "how many proxy problems CCP went through, mean over models; empty for others",
    **COST,
    "test_openings": "how often the test classes were opened for this method",
    "queries": "test queries, with those dropped",
    "queries_dropped": "test queries without another image of their class, left out of all scores",
    "missing_images": "images of the data set that were missing or broken and were left out",
    **MEASURED_UNDER,
    "weights": "hash of the trunk's pretrained weights; empty without any",
    "split": "hash of the class split",
    "data_fingerprint": "hash of the trainval images",
    "test_fingerprint": "hash of the test images",
    **MADE_BY,
}


# Behind all others, where trials are not scored by single models.
SELECTION = {"selection": "scheme by which the search scored its trials: a protocol field"}


def columns_of(
    metrics: Sequence[str], of_a_paper: bool = False, scored_together: bool = False
) -> dict[str, str]:
    """Every column of a table with these metrics, and what it holds.

    Args:
        of_a_paper: whether the protocol selects as some paper does, and not by validation alone.
        scored_together: whether searches score several models of a trial together.
    """
    scores = {}
    for embedding in EMBEDDINGS:
        for metric in metrics:
            name = f"{title_of(metric)} on the test classes, {embedding}"
            more = f" ({MORE[metric]})" if metric in MORE else ""
            unit = "" if metric in LENGTHS else ", 0 to 1"
            scores[f"{metric}_{embedding}"] = f"{name}: mean over reproductions{unit}{more}"
            scores[f"{metric}_{embedding}_ci95"] = f"{name}: half the width of its 95 % t-interval"
    if of_a_paper:
        for metric in metrics:
            title = title_of(metric)
            scores[f"{metric}_sd"] = f"{title}: standard deviation over reproductions"
            scores[f"{metric}_last"] = (
                f"{title} of the last epoch, where that shown was selected on the test classes"
            )
    return {**BEFORE, **scores, **BEHIND, **(SELECTION if scored_together else {})}


def is_of_a_paper(frame: pd.DataFrame) -> bool:
    """Whether a table has the columns of a protocol that selects as some paper does."""
    return f"{METRICS[0]}_sd" in frame


def validation_title(frame: pd.DataFrame) -> str:
    """The metric that validation scores of a table are of, as papers write it."""
    return title_of(next(iter(frame["validation_metric"]), METRICS[0]))


def metrics_in(frame: pd.DataFrame) -> list[str]:
    """The metrics of a table: those of every test, then those that were asked for."""
    suffix = "_concatenated"
    names = [name.removesuffix(suffix) for name in frame.columns if name.endswith(suffix)]
    return [name for name in names if name != "dim"]


# Whole numbers that some rows lack.
COUNTS = ("rank", "dim_separated", "dimensions", "trials", "trials_failed", "trials_pruned")


def in_order(metrics: Iterable[str]) -> list[str]:
    """Those of every test, then those on demand: recalls first, by rank."""
    return [*METRICS, *sorted(set(metrics) - set(METRICS), key=_place)]


def _place(metric: str) -> tuple[bool, int, str]:
    rank = recall_rank(metric)
    return (rank is None, rank or 0, metric)
