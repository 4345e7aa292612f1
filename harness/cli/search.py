"""`harness search`: find the best parameters of losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.cli.options import (
    ConfigFile,
    DataRoot,
    Dataset,
    Device,
    Loss,
    MoreLosses,
    Preset,
    Protocol,
    RunsDir,
    Sampler,
    Seed,
    Set,
    Storage,
    Trials,
    Trunk,
    Verbose,
    Workers,
    progress,
    read_configs,
    read_values,
)
from harness.cli.wording import short, spell

if TYPE_CHECKING:
    from harness.study import SearchSummary


def search(
    loss: Loss = None,
    more: MoreLosses = None,
    dataset: Dataset = None,
    protocol: Protocol = None,
    trunk: Trunk = None,
    trials: Trials = None,
    sampler: Sampler = None,
    preset: Preset = None,
    seed: Seed = None,
    workers: Workers = None,
    device: Device = None,
    data_root: DataRoot = None,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    config: ConfigFile = None,
    set_: Set = None,
    verbose: Verbose = False,
) -> None:
    """Search the hyper-parameters of losses; repeat the command to go on, or to add trials.

    harness search --loss proxyanchor --dataset glyphs --trials 10
    """
    values = read_values(config, set_, locals())
    from harness.study import search as run_search

    configs = read_configs(values, [*(loss or []), *(more or [])])
    with progress(verbose) as listener:
        summaries = run_search(configs, listener)
    for summary in summaries:
        _print_summary(summary)


def _print_summary(summary: SearchSummary) -> None:
    folds = " ".join(f"{score:.4f}" for score in summary.fold_scores)
    print(f"{summary.method}: {summary.trials} trials, {summary.failed} failed")
    print(f"  best validation map@r {summary.best_score:.4f} (trial {summary.best_trial + 1})")
    print(f"  folds: {folds}")
    print(f"  params: {spell(summary.best_params)}")
    for name, end in summary.on_bound.items():
        value = short(summary.best_params[name])
        print(f"  note: {name}={value} lies on the {end} end of its range; consider a wider one")
    for reason in sorted(set(summary.reasons)):
        print(f"  failed {summary.reasons.count(reason)} times: {reason}")
    print("  next: harness eval")
