"""`harness search`: find the best parameters of losses."""

from __future__ import annotations

from harness.cli.options import (
    AllowMissing,
    Cache,
    CacheDir,
    ConfigFile,
    DataRoot,
    Dataset,
    Device,
    Loss,
    MoreLosses,
    Preset,
    Protocol,
    Prune,
    RunsDir,
    Sampler,
    Seed,
    Set,
    Storage,
    Trials,
    Trunk,
    TrunkLr,
    Verbose,
    Weights,
    Workers,
    progress,
    read_search_configs,
)
from harness.cli.show import print_summary


def search(
    loss: Loss = None,
    more: MoreLosses = None,
    dataset: Dataset = None,
    protocol: Protocol = None,
    trunk: Trunk = None,
    weights: Weights = None,
    trunk_lr: TrunkLr = None,
    trials: Trials = None,
    sampler: Sampler = None,
    prune: Prune = False,
    preset: Preset = None,
    seed: Seed = None,
    workers: Workers = None,
    device: Device = None,
    data_root: DataRoot = None,
    allow_missing: AllowMissing = None,
    cache: Cache = None,
    cache_dir: CacheDir = None,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    config: ConfigFile = None,
    set_: Set = None,
    verbose: Verbose = False,
) -> None:
    """Search the hyper-parameters of losses; repeat the command to go on, or to add trials.

    $ harness search --loss proxyanchor --dataset glyphs --trials 10
    """
    configs = read_search_configs(config, set_, locals(), [*(loss or []), *(more or [])])
    from harness.searching.study import search as run_search

    with progress(verbose) as listener:
        summaries = run_search(configs, listener)
    for summary in summaries:
        print_summary(summary)
    print("next: harness eval")
