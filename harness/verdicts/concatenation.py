"""Does what methods gain by concatenating their fold models order the rows?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from harness.judgement.selection import selection_in
from harness.judgement.stats import rank_correlation
from harness.metrics.names import EMBEDDINGS


def concatenation_in_words(dataset: str, frame: pd.DataFrame) -> str:
    """How far apart methods are, concatenated and as single models; empty of too few methods.

    Models that differ more gain more from one another, whether or not they are better: an order
    that only the concatenated ones have may be one of that.
    """
    found = selection_in(frame)
    if found is None:
        return ""
    whole, single = (found.test[embedding] for embedding in EMBEDDINGS)
    gains = np.subtract(whole, single)
    least, most = (
        f"{100 * gains[place]:.2f} ({found.methods[place]})"
        for place in (gains.argmin(), gains.argmax())
    )
    correlation = rank_correlation(whole, single)
    orders = "" if correlation is None else f" (rank correlation {correlation:.2f})"
    return (
        f"The methods on {dataset} span {100 * np.ptp(whole):.2f} points of MAP@R concatenated and "
        f"{100 * np.ptp(single):.2f} as single models{orders}; concatenation adds from {least} to "
        f"{most}."
    )
