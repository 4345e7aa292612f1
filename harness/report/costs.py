"""Part 7: cost. Score against time and memory, and who is on the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.records.records import rounded
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
        prices: in the order of `prices_of`.
        texts: they as they are read.
        front: for each of them, whether no other method is both better and cheaper.
    """

    method: str
    score: float
    prices: list[float]
    texts: list[str]
    front: list[bool]


def prices_of(table: Table) -> dict[str, tuple[str, str]]:
    """Those of PRICES that the records of a table can tell.

    Memory on a CPU is that of a process, which has trained many models: `harness cost` measures it.
    """
    on_card = any(device != "cpu" for device in devices(table))
    return {name: told for name, told in PRICES.items() if on_card or name != "peak_memory_mib"}


def costs(table: Table) -> list[Priced]:
    """Every trained method, best first."""
    asked = prices_of(table)
    rows = table.frame[table.frame["rank"].notna()].dropna(subset=list(asked))
    scores = (100 * rows["map_at_r_concatenated"]).tolist()
    columns = [rows[name].astype(float).tolist() for name in asked]
    formats = [spelling for _, spelling in asked.values()]
    fronts = [on_front(scores, prices) for prices in columns]
    return [
        Priced(
            str(method),
            rounded(score),
            [float(f"{prices[i]:.4g}") for prices in columns],
            [f.format(prices[i]) for f, prices in zip(formats, columns, strict=True)],
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
