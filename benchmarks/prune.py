"""What --prune saves and what it costs, on searches that were run without it.

python -m benchmarks.prune             # searches glyphs first: about five minutes on two cores
python -m benchmarks.prune RUNS_DIR    # replays the searches that are there
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from optuna.trial import TrialState

import harness
from harness.searching.found import find_searches
from harness.searching.pruning import is_hopeless
from harness.searching.trials import index_of

# Short folds: what counts here is how scores differ between folds, not how high they are.
PROTOCOL = "mlrc+max_steps=100+validate_every=50"
LOSSES = ("proxyanchor", "contrastive", "margin")
TRIALS = 20


@dataclass(frozen=True)
class Replay:
    """What would have happened with pruning.

    Attributes:
        folds: trained without pruning; saved: those that it would have left out.
        cost: score of the best trial, less that of the best one that would have been left.
    """

    trials: int
    pruned: int
    folds: int
    saved: int
    cost: float


def replay(scores: Sequence[Sequence[float]]) -> Replay:
    """Go through the fold scores of complete trials in their order, and stop the hopeless."""
    complete: list[Sequence[float]] = []
    pruned = saved = 0
    for folds in scores:
        done = next((k for k in range(1, len(folds)) if is_hopeless(folds[:k], complete)), None)
        if done is None:
            complete.append(folds)
        else:
            pruned += 1
            saved += len(folds) - done
    best, kept = (max(float(np.mean(folds)) for folds in some) for some in (scores, complete))
    return Replay(len(scores), pruned, sum(map(len, scores)), saved, best - kept)


def print_row(name: str, found: Replay) -> None:
    print(
        f"{name:<60}{found.trials:>8}{found.pruned:>8}{found.saved:>7} of {found.folds:<4}"
        f"{found.saved / found.folds:>6.0%}{found.cost:>12.4f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="?", help="a run directory with searches")
    parser.add_argument("--trials", type=int, default=TRIALS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        runs = options.runs or made
        if not options.runs:
            for loss in LOSSES:
                harness.search(loss, protocol=PROTOCOL, trials=options.trials, runs_dir=made)
        print(f"{'':<60}{'trials':>8}{'pruned':>8}{'folds saved':>16}{'':>4}{'score lost':>14}")
        for search in find_searches([], {"runs_dir": runs}):
            with search.study() as study:
                trials = sorted(study.get_trials(deepcopy=False), key=index_of)
            whole = [t.user_attrs["folds"] for t in trials if t.state == TrialState.COMPLETE]
            if whole:
                print_row(search.name, replay(whole))


if __name__ == "__main__":
    main()
