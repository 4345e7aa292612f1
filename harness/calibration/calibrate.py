"""Runs copies of one loss, a weakened one and one without labels, and judges them like any rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

from scipy.stats import t as student

from harness.config import RunConfig
from harness.errors import HarnessError
from harness.evaluation.reproductions import evaluate
from harness.judgement.judge import judge_samples, read_samples
from harness.judgement.judged import Beats, JudgedPair, JudgedTable
from harness.judgement.samples import Sample
from harness.judgement.statistic import LEVEL
from harness.records.layout import find_tables
from harness.searching.loop import search
from harness.system.files import write_json, write_text
from harness.system.progress import Listener, ignore

# Searches of a copy have the seeds from its own first one on.
SEEDS_APART = 1000
WEAK_SHARE = 0.5  # of the labels, of the weakened loss

LOSS_FILE = """\
# Written by harness calibrate.
from harness.calibration.label_noise import with_label_noise

METHODS = (with_label_noise({loss!r}, share={share}, name={name!r}),)
"""


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
        config: the loss, where and how to search it; its folders are not used.
        copies: rows of the same loss that differ in their seeds alone.
        folder: for everything that is written; a finished part is not repeated.
    """

    config: RunConfig
    copies: int
    folder: Path


@dataclass(frozen=True)
class Calibration:
    """What the judgement made of known answers; scores and differences are shares of 1.

    Attributes:
        copy_scores: of each copy, by concatenated MAP@R.
        copy_pairs: pairs of copies; `called_different` of them were separated, which is false
            each time, and `raw_different` would have been without Holm's correction.
        weakened_pairs: copies compared with the weakened loss; it was called worse than
            `weakened_found` of them.
        weakened_by: mean difference of the copies to the weakened loss.
        shuffled_beats_no_training: what is claimed of a loss without labels.
        smallest_alone: median over pairs of copies of the smallest difference that would be
            significant in a test by itself, and `smallest_in_table` as one of all of these pairs.
    """

    loss: str
    table: str
    searches: int
    trials: int
    reproductions: int
    copy_scores: tuple[float, ...]
    copy_pairs: int
    called_different: int
    raw_different: int
    weakened_pairs: int
    weakened_found: int
    weakened_by: float
    shuffled_beats_no_training: str
    smallest_alone: float | None
    smallest_in_table: float | None


def calibrate(plan: Plan, listener: Listener = ignore) -> Calibration:
    """Search and test every row of known answers, then judge them; finished work is kept."""
    if plan.copies < 2:
        raise HarnessError(f"--copies {plan.copies}: a comparison needs at least 2 copies")
    if not plan.config.loss:
        raise HarnessError("which loss? Give --loss NAME; `harness list losses` shows them")
    rows = dict(_rows(plan))
    for name, config in rows.items():
        search([config], listener)
        done = evaluate([config.loss], _values(config), listener)
        if done.problems:
            raise HarnessError("\n  ".join([f"{name} could not be evaluated:", *done.problems]))
    table = judge_samples(_samples(rows))
    found = _read_off(plan, table)
    write_json(plan.folder / "calibration.json", asdict(found))
    write_text(plan.folder / "calibration.md", "\n".join([*describe(found), ""]))
    return found


def _rows(plan: Plan) -> Iterator[tuple[str, RunConfig]]:
    """Name of a row -> its config, with folders of its own."""
    for number in range(plan.copies):
        yield _copy(number), _placed(plan, _copy(number), plan.config.loss, number)
    for name, share in (("weakened", WEAK_SHARE), ("shuffled", 1.0)):
        file = plan.folder / f"{name}.py"
        source = LOSS_FILE.format(loss=str(plan.config.loss), share=share, name=name)
        if not file.exists() or file.read_text() != source:
            write_text(file, source)
        yield name, _placed(plan, name, str(file.absolute()), plan.copies)


def _copy(number: int) -> str:
    return f"copy {number + 1}"


def _placed(plan: Plan, name: str, loss: str, number: int) -> RunConfig:
    place = plan.folder / name.replace(" ", "-")
    seed = plan.config.seed + SEEDS_APART * number
    folders = {"runs_dir": str(place / "runs"), "results_dir": str(place / "results")}
    return plan.config.updated({"loss": loss, "seed": seed, **folders})


def _values(config: RunConfig) -> dict[str, Any]:
    """What an evaluation must be told again: the folders; all else is in the saved config."""
    keys = ("runs_dir", "results_dir", "reproductions", "workers", "device")
    return {key: getattr(config, key) for key in keys}


def _samples(rows: Mapping[str, RunConfig]) -> list[Sample]:
    """The rows under the names of the plan; those without training, which all have, once."""
    found: dict[str, Sample] = {}
    for name, config in rows.items():
        (table,) = find_tables(Path(config.results_dir))
        for sample in read_samples(table, None, []):
            label = name if sample.trained else sample.name
            found.setdefault(label, Sample(label, False, sample.searches))
    return list(found.values())


def _read_off(plan: Plan, table: JudgedTable) -> Calibration:
    copies = [_copy(number) for number in range(plan.copies)]
    pairs = [_pair(table, one, other) for one, other in combinations(copies, 2)]
    weakened = [_pair(table, name, "weakened") for name in copies]
    beats = table.by_name["shuffled"].beats_no_training
    row = table.by_name[copies[0]]
    return Calibration(
        loss=plan.config.loss,
        table=f"{table.protocol}/{table.dataset}-{table.trunk}",
        searches=row.searches,
        trials=row.trials or 0,
        reproductions=row.reproductions,
        copy_scores=tuple(table.by_name[name].score.mean for name in copies),
        copy_pairs=len(pairs),
        called_different=sum(pair.separated for pair in pairs),
        raw_different=sum((pair.estimate.p or 1.0) < LEVEL for pair in pairs),
        weakened_pairs=len(weakened),
        weakened_found=sum(pair.separated and _ahead(pair) != "weakened" for pair in weakened),
        weakened_by=sum(
            table.by_name[name].score.mean - table.by_name["weakened"].score.mean for name in copies
        )
        / len(copies),
        shuffled_beats_no_training=(beats or Beats.NOT_DECIDED).value,
        smallest_alone=_smallest(pairs, tests=1),
        smallest_in_table=_smallest(pairs, tests=len(pairs)),
    )


def _pair(table: JudgedTable, one: str, other: str) -> JudgedPair:
    found = table.pair(one, other)
    assert found is not None, (one, other)
    return found


def _ahead(pair: JudgedPair) -> str:
    return pair.method if pair.estimate.difference > 0 else pair.rival


def _smallest(pairs: list[JudgedPair], tests: int) -> float | None:
    """Median of the differences from which on Holm's first step calls a pair different."""
    widths = [
        float(student.ppf(1 - LEVEL / 2 / tests, pair.estimate.freedom)) * pair.estimate.error
        for pair in pairs
        if pair.estimate.error is not None and pair.estimate.freedom is not None
    ]
    return median(widths) if widths else None


def describe(found: Calibration) -> list[str]:
    """The result in plain sentences."""
    low, high = 100 * min(found.copy_scores), 100 * max(found.copy_scores)
    lines = [
        f"# Calibration of {found.table} with {found.loss}",
        "",
        f"Each row: {found.searches} searches of {found.trials} trials, {found.reproductions} "
        "reproductions in all. All scores are concatenated MAP@R in percent.",
        "",
        f"- Copies of one loss: {len(found.copy_scores)} rows score {low:.2f} to {high:.2f}. "
        f"{found.called_different} of {found.copy_pairs} pairs were called different, which is "
        f"false each time; {found.raw_different} without Holm's correction.",
        f"- A weakened loss ({WEAK_SHARE:.0%} of the labels of each batch permuted) scores "
        f"{100 * found.weakened_by:.2f} points less on average. It was called worse than "
        f"{found.weakened_found} of {found.weakened_pairs} copies.",
        "- A loss without labels (all labels of each batch permuted): better than no training? "
        f"{found.shuffled_beats_no_training.capitalize()}.",
    ]
    if found.smallest_alone is not None and found.smallest_in_table is not None:
        lines.append(
            f"- The smallest difference that this budget can show is about "
            f"{100 * found.smallest_alone:.2f} points for a single planned pair, and "
            f"{100 * found.smallest_in_table:.2f} points among {found.copy_pairs} pairs."
        )
    return lines
