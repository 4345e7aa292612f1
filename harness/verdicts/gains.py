"""How much is left of what the papers gained: their differences beside ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from harness.judgement.questions import PRINTED_AS
from harness.records.published import CLASSIC, METHODS, SCORES, read
from harness.verdicts.verdict import METRIC, Answer, Outcome


@dataclass(frozen=True)
class Gain:
    """What a paper gained by a method, and what it gains here; in percent.

    Attributes:
        metric: MAP@R where a source prints it for both methods, else P@1.
        source: where both values stand.
        tested: whether enough reproductions stand behind `ours`.
    """

    method: str
    rival: str
    dataset: str
    metric: str
    published: float
    ours: float
    source: str
    tested: bool


def gains(answers: Iterable[Answer], folder: Path) -> list[Gain]:
    """Of every pair that a paper prints side by side, on the same data set.

    Args:
        folder: of the published numbers.
    """
    methods = read(folder / METHODS)
    losses = dict(zip(methods["method"], methods["loss"], strict=True))
    return [gain for answer in answers for gain in _gains(answer, folder, losses)]


def _gains(answer: Answer, folder: Path, losses: dict[str, str]) -> list[Gain]:
    reality_check, classic = read(folder / SCORES), read(folder / CLASSIC)
    concatenated = reality_check[reality_check["embedding"] == "concatenated"]
    # One model of half the classes has no MAP@R; its Recall@1 is P@1.
    for rows, printed, metric, same in (
        (concatenated, METRIC, METRIC, ["source", "protocol_variant", "dim"]),
        (classic, "recall_at_1", "p_at_1", ["source", "trunk", "dim"]),
    ):
        wanted = rows[(rows["dataset"] == answer.table.dataset) & (rows["metric"] == printed)]
        wanted = wanted[wanted["note"] == ""]  # not what others measured, nor what cannot be
        found = _printed_together(wanted.assign(loss=wanted["method"].map(losses)), answer, same)
        if found:
            scores = [answer.table.score(name, metric) for name in (answer.method, answer.rival)]
            ours = 100 * (scores[0] - scores[1])
            names = (answer.method, answer.rival, answer.table.dataset, metric)
            tested = answer.outcome is not Outcome.UNTESTED
            return [Gain(*names, published, ours, source, tested) for source, published in found]
    return []


def _printed_together(
    rows: pd.DataFrame, answer: Answer, same: Sequence[str]
) -> list[tuple[str, float]]:
    """Source and difference, wherever both methods stand under the same conditions."""
    found = []
    for _, group in rows.groupby(list(same), sort=False):
        # Of a loss that is printed several times, as under other settings, the first.
        first = group.drop_duplicates("loss")
        values = dict(zip(first["loss"], first["value"], strict=True))
        rival = PRINTED_AS.get(answer.rival, answer.rival)
        if answer.method in values and rival in values:
            difference = float(values[answer.method]) - float(values[rival])
            found.append((str(group["source"].iloc[0]), difference))
    return found
