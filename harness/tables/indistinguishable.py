"""The CSV column `indistinguishable`: a paired t-test of each row against the best one.

The column is older than the judgement and keeps its meaning for programs that read it. It ignores
search noise and the test classes, so nothing else uses it: every word, colour and group that people
see comes from `harness.judgement`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from harness.judgement.statistic import LEVEL, MIN_PAIRS, holm
from harness.records.rows import Row, run_of
from harness.tables.mean_scores import ROUNDING

# What the column may say of a row.
BEST, SAME, WORSE, UNKNOWN = "best", "yes", "no", "too few reproductions"

EXPLANATION = (
    f"from the best row: `{SAME}` or `{WORSE}` by a paired t-test of concatenated MAP@R over "
    f"shared reproductions, Holm-corrected, at {LEVEL}; or `{UNKNOWN}` to say"
)


def compare_with_best(rows: Sequence[Row]) -> list[str]:
    """The cell of each row."""
    if not rows:
        return []
    scores = [{run_of(r): r.scores["concatenated"]["map_at_r"] for r in row} for row in rows]
    best = int(np.argmax([np.mean(list(values.values())) for values in scores]))
    tested = {}
    for i, values in enumerate(scores):
        shared = sorted(values.keys() & scores[best].keys())
        if i != best and len(shared) >= MIN_PAIRS:
            tested[i] = _p_value([scores[best][run] - values[run] for run in shared])
    corrected = zip(tested, holm(list(tested.values())), strict=True)
    said = {i: WORSE if p_value < LEVEL else SAME for i, p_value in corrected}
    return [BEST if i == best else said.get(i, UNKNOWN) for i in range(len(rows))]


def _p_value(differences: Sequence[float]) -> float:
    """Two-sided, of a true difference of zero."""
    if np.ptp(differences) < ROUNDING:
        # Runs without any spread are copies of one another: either all equal, or all apart.
        return float(abs(np.mean(differences)) < ROUNDING)
    return float(stats.ttest_1samp(differences, 0).pvalue)
