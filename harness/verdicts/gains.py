"""How much is left of what the papers gained: their differences beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from harness.judgement.judged import EMBEDDING, METRIC, JudgedPair, JudgedTable
from harness.records.published import CLASSIC, METHODS, SCORES, read

# Bases that the papers print under the name of a loss that differs from them in a detail.
PRINTED_AS = {
    "ms-ball": "ms",
    "triplet-ball": "triplet",
    "triplet-semihard": "triplet",
    "margin-dw": "margin",
}

ABOUT_GAINS = (
    "Networks, training and protocols differ from the papers'. The table shows what is left under "
    "equal conditions for all methods. A paper's gain may also come from its pooling, "
    "normalisation, batches or head."
)


@dataclass(frozen=True)
class Gain:
    """What a paper gained by a method, and what it gains here, in points.

    Attributes:
        metric: MAP@R where a source prints it for both methods, else P@1.
        source: where both values are printed.
        tested: whether `ours` was tested.
    """

    method: str
    rival: str
    metric: str
    published: float
    ours: float
    source: str
    tested: bool

    @property
    def share(self) -> float | None:
        """Share of the published gain; None without a test or a gain."""
        return self.ours / self.published if self.tested and self.published > 0 else None


def gains(table: JudgedTable, folder: Path) -> list[Gain]:
    """Every declared pair that a paper prints side by side, on the same data set.

    Args:
        folder: of the published numbers.
    """
    methods = read(folder / METHODS)
    losses = dict(zip(methods["method"], methods["loss"], strict=True))
    pairs = [p for p in table.pairs if p.relation and table.by_name[p.rival].trained]
    return [gain for pair in pairs for gain in _gains(table, pair, folder, losses)]


def _gains(
    table: JudgedTable, pair: JudgedPair, folder: Path, losses: dict[str, str]
) -> list[Gain]:
    method, rival = (table.by_name[name].method for name in (pair.method, pair.rival))
    reality_check, classic = read(folder / SCORES), read(folder / CLASSIC)
    concatenated = reality_check[reality_check["embedding"] == EMBEDDING]
    # One model of half the classes has no MAP@R; its Recall@1 is P@1.
    for rows, printed, metric, same in (
        (concatenated, METRIC, METRIC, ["source", "protocol_variant", "dim"]),
        (classic, "recall_at_1", "p_at_1", ["source", "trunk", "dim"]),
    ):
        wanted = rows[(rows["dataset"] == table.dataset) & (rows["metric"] == printed)]
        wanted = wanted[wanted["note"] == ""]  # not what others measured, nor what cannot be
        wanted = wanted.assign(loss=wanted["method"].map(losses))
        if found := _printed_together(wanted, method, PRINTED_AS.get(rival, rival), same):
            ours = 100 * pair.estimates[EMBEDDING][metric].difference
            tested = pair.holm_p is not None
            names = (pair.method, pair.rival, metric)
            return [Gain(*names, published, ours, source, tested) for source, published in found]
    return []


def _printed_together(
    rows: pd.DataFrame, method: str, rival: str, same: Sequence[str]
) -> list[tuple[str, float]]:
    """Source and difference, wherever both methods are printed under the same conditions."""
    found = []
    for _, group in rows.groupby(list(same), sort=False):
        # Of a loss that is printed several times, such as under other settings, the first.
        first = group.drop_duplicates("loss")
        values = dict(zip(first["loss"], first["value"], strict=True))
        if method in values and rival in values:
            difference = float(values[method]) - float(values[rival])
            found.append((str(group["source"].iloc[0]), difference))
    return found
