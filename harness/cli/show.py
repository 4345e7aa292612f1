"""`harness show`: what a search has found so far."""

from __future__ import annotations

import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from harness.cli.display import say, short, spell, spell_score, spell_seconds
from harness.cli.leaderboard import print_selection
from harness.cli.options import Given, takes_config
from harness.errors import HarnessError

if TYPE_CHECKING:
    from harness.records.records import SelectionFacts
    from harness.searching.found import FoundSearch
    from harness.searching.summary import SearchSummary

BARS = "▁▂▃▄▅▆▇█"


@takes_config("show")
def show(given: Given) -> None:
    """Show the best hyper-parameters, their importance and the progress of searches.

    Works while a search runs. If methods have been evaluated, also shows how well validation
    scores predict test scores.

    $ harness show proxyanchor --dataset glyphs
    """
    from harness.searching.summary import summarize

    problems: list[str] = []
    found = asked_for(given, problems)
    for one in found:
        try:  # the others may have more to show
            with one.study() as study:
                say(f"{one.folder}")
                try:
                    print_summary(summarize(study))
                except HarnessError as error:  # as long as no trial is complete
                    say(f"  {error}")
        except HarnessError as error:
            problems.append(f"{one.folder}: {error}")
    for one in {one.table: one for one in found}.values():
        try:
            _print_selection(given.results, one)
        except HarnessError as error:
            problems.append(f"{one.table}: {error}")
    if problems:
        raise HarnessError("\n  ".join(["not everything could be shown:", *problems]))


def _print_selection(results: Path, one: FoundSearch) -> None:
    """How well validation predicts the test, of all methods in the table of a search."""
    from harness.records.layout import RECORDS
    from harness.searching.shared_records import SharedRecords
    from harness.tables.leaderboard import build, selection_remark

    with TemporaryDirectory() as copies:  # to show is not to change the folder of results
        folder = results / one.table
        if one.config.storage and not (folder / RECORDS).exists():
            folder = Path(copies) / one.table
            storage = one.storage(reads_only=True)
            SharedRecords(storage, one.place.runs, Path(copies)).fetch_table(folder)
        if not (folder / RECORDS).exists():
            return
        board = build(folder)
    if remark := selection_remark(board.frame, board.shape):
        say(f"{results / one.table}: {remark}")
        print_selection(board.frame)


def asked_for(given: Given, problems: list[str] | None = None) -> list[FoundSearch]:
    """The searches that a command names, or all of them; an error if there are none.

    Args:
        problems: receives the problems of searches that cannot be read, which are left out.
    """
    from harness.searching.found import find_searches

    found = list(find_searches(given.losses, given.values, problems))
    if not found and not problems:
        names = " ".join(given.losses) or "NAME"
        raise HarnessError(
            f"no such search here; start it with harness search --loss {names}, or give --runs-dir"
        )
    return found


def print_summary(summary: SearchSummary) -> None:
    seed = f" (seed {summary.seed})" if summary.seed else ""
    say(f"{summary.method}{seed}: {_counts(summary)}")
    metric = summary.metric.replace("_at_", "@")
    best = spell_score(summary.best_score)
    say(f"  best validation {metric} {best} (trial {summary.best_trial + 1})")
    scores = " ".join(spell_score(score) for score in summary.fold_scores)
    parts = "folds" if summary.selection is None else "quarters, by partition"
    say(f"  {parts}: {scores}, standard deviation {spell_score(summary.fold_spread)}")
    if summary.selection is not None and summary.selection["finalists"]:
        say(f"  finalists: {_finalists(summary.selection)}")
    say(f"  params: {spell(summary.best_params)}")
    for name, end in summary.on_bound.items():
        value = short(summary.best_params[name])
        say(f"  note: {name}={value} lies on the {end} end of its range; consider a wider one")
    if summary.almost_base:
        say(f"  note: with these values it trains almost as {summary.almost_base}, its base, does")
    if summary.importance:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in summary.importance.items())
        say(f"  importance: {shares}")
    say(f"  best so far: {_curve(summary)}")
    if not summary.flat:
        say("  note: it still rose at the end; more trials, or --until-flat, may find better")
    say(f"  time: {_times([s for s in summary.trial_seconds if s is not None])}")
    for reason in sorted(set(summary.reasons)):
        say(f"  failed {summary.reasons.count(reason)} times: {reason}")


def _finalists(selection: SelectionFacts) -> str:
    """The mean over partitions of each finalist, and how far luck can move it."""
    pairs = zip(selection["finalists"], selection["partition_scores"], strict=True)
    means = [
        f"trial {trial + 1} {spell_score(statistics.mean(scores))} ({len(scores)} partitions)"
        for trial, scores in pairs
    ]
    noise = selection["partition_noise"]
    known = "" if noise is None else f"; noise of a score between partitions {spell_score(noise)}"
    return ", ".join(means) + known


def _counts(summary: SearchSummary) -> str:
    dimensions = f"{summary.dimensions} parameters searched"
    parts = [f"{summary.trials} trials", f"{summary.failed} failed", dimensions]
    if summary.pruned:
        parts.append(f"{summary.pruned} pruned")
    if summary.repeated:
        parts.append(f"{summary.repeated} repeated")
    return ", ".join(parts)


def _curve(summary: SearchSummary) -> str:
    """A bar per trial, as high as the best up to then, and the steps with their trials."""
    scores = dict(summary.curve)
    first, last = summary.curve[0][1], summary.curve[-1][1]
    best, bars = first, ""
    for trial in range(summary.curve[0][0], summary.trials):
        best = scores.get(trial, best)
        share = (best - first) / (last - first) if last > first else 1.0
        bars += BARS[round(share * (len(BARS) - 1))]
    steps = ", ".join(f"{spell_score(score)} ({trial + 1})" for trial, score in summary.curve[-4:])
    return f"{bars} {steps}"


def _times(seconds: list[float]) -> str:
    middle = spell_seconds(statistics.median(seconds))
    ends = f"{spell_seconds(min(seconds))} to {spell_seconds(max(seconds))}"
    return f"{middle} per trial ({ends}), {spell_seconds(sum(seconds))} in all"
