"""Part 7: cost. Score against time and memory, and who is on the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.report.table import Table

# Column of the leaderboard -> what it is called, and how it is spelt.
PRICES = {
    "ms_per_step": ("time per step, ms", "{:.2f}"),
    "convergence_seconds": ("time to converge, s", "{:.1f}"),
    "peak_memory_mib": ("peak memory, MiB", "{:.0f}"),
}


@dataclass(frozen=True)
class Priced:
    """A method, its score and what it took.

    Attributes:
        prices: in the order of PRICES.
        front: for each of them, whether no other method is both better and cheaper.
    """

    method: str
    score: float
    prices: list[float]
    front: list[bool]

    @property
    def texts(self) -> list[str]:
        formats = [spelling for _, spelling in PRICES.values()]
        return [f.format(price) for f, price in zip(formats, self.prices, strict=True)]


def costs(table: Table) -> list[Priced]:
    """Every trained method, best first."""
    rows = table.frame[table.frame["rank"].notna()].dropna(subset=list(PRICES))
    scores = (100 * rows["map_at_r_concatenated"]).tolist()
    columns = [rows[name].astype(float).tolist() for name in PRICES]
    fronts = [on_front(scores, prices) for prices in columns]
    return [
        Priced(
            str(method),
            round(score, 3),
            [float(f"{prices[i]:.4g}") for prices in columns],
            [front[i] for front in fronts],
        )
        for i, (method, score) in enumerate(zip(rows["method"], scores, strict=True))
    ]


def on_front(scores: Sequence[float], prices: Sequence[float]) -> list[bool]:
    """Which points no other one dominates: at least as good, at most as dear, one of both more."""
    points = list(zip(scores, prices, strict=True))
    return [
        not any(s >= score and p <= price and (s > score or p < price) for s, p in points)
        for score, price in points
    ]


def devices(table: Table) -> list[str]:
    """What the methods were trained on: prices of several devices do not compare."""
    named = {fold["device"] for method in table.trained for _, fold in table.folds(method)}
    return sorted(named)
