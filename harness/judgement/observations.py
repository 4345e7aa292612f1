"""What may order the rows of a table besides their methods, in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.judgement.judged import EMBEDDING, METRIC
from harness.judgement.ranks import rank_correlation
from harness.judgement.samples import Sample

MIN_ROWS = 5  # the order of fewer says little


def observe(samples: Sequence[Sample]) -> tuple[str, ...]:
    """Sentences about concatenation, and about every number that all searches chose."""
    searched = [sample for sample in samples if sample.searched]
    if len(searched) < MIN_ROWS:
        return ()
    return (_concatenation(searched), *_shared_settings(searched))


def _concatenation(samples: Sequence[Sample]) -> str:
    """Models that differ more gain more from concatenation, whether or not they are better."""
    whole, single = (
        np.array([sample.mean(embedding, METRIC) for sample in samples])
        for embedding in (EMBEDDING, "separated")
    )
    if np.isnan(single).any():
        return ""
    gains = whole - single
    least, most = (
        f"{100 * gains[place]:.2f} ({samples[place].name})"
        for place in (gains.argmin(), gains.argmax())
    )
    correlation = rank_correlation(whole.tolist(), single.tolist())
    orders = "" if correlation is None else f" (rank correlation {correlation:.2f})"
    return (
        f"The searched methods span {100 * np.ptp(whole):.2f} points of MAP@R with concatenated "
        f"embeddings and {100 * np.ptp(single):.2f} with single models{orders}. Concatenation adds "
        f"{least} to {most} points."
    )


def _shared_settings(samples: Sequence[Sample]) -> list[str]:
    """Where such a setting orders the rows, a difference between them may be due to it."""
    ranges = [sample.newest.search.get("ranges", {}) for sample in samples]
    scores = [sample.mean(EMBEDDING, METRIC) for sample in samples]
    said = []
    for name in ranges[0]:
        values = [sample.newest.params.get(name) for sample in samples]
        numbers = [float(value) for value in values if isinstance(value, int | float)]
        if len(numbers) < len(samples) or not all("low" in r.get(name, {}) for r in ranges):
            continue
        correlation = rank_correlation(numbers, scores)
        if correlation is not None:
            said.append(
                f"All {len(samples)} searches chose {name}: the best values range from "
                f"{min(numbers):.2g} to {max(numbers):.2g}, with a rank correlation of "
                f"{correlation:.2f} with test MAP@R."
            )
    return said
