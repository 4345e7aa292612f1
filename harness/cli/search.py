"""`harness search`: find the best parameters of losses."""

from __future__ import annotations

from harness.cli import options
from harness.cli.display import say
from harness.cli.options import next_command, progress, read_search_configs
from harness.cli.show import print_summary

# What eval must be told again; the rest stands in the config of the search.
FOLDERS = ("runs_dir",)


def search(
    loss: options.Loss = None,
    more: options.MoreLosses = None,
    dataset: options.Dataset = None,
    protocol: options.Protocol = None,
    split: options.Split = None,
    trunk: options.Trunk = None,
    weights: options.Weights = None,
    trunk_lr: options.TrunkLr = None,
    space: options.Space = None,
    trials: options.Trials = None,
    trials_per_dimension: options.TrialsPerDimension = None,
    until_flat: options.UntilFlat = None,
    max_trials: options.MaxTrials = None,
    sampler: options.Sampler = None,
    prune: options.Prune = False,
    preset: options.Preset = None,
    seed: options.Seed = None,
    workers: options.Workers = None,
    per_gpu: options.PerGpu = None,
    device: options.Device = None,
    crops: options.Crops = None,
    micro_batch: options.MicroBatch = None,
    checkpoint_gradients: options.CheckpointGradients = None,
    data_root: options.DataRoot = None,
    allow_missing: options.AllowMissing = None,
    cache: options.Cache = None,
    cache_dir: options.CacheDir = None,
    storage: options.Storage = None,
    runs_dir: options.RunsDir = None,
    config: options.ConfigFile = None,
    set_: options.Set = None,
    verbose: options.Verbose = False,
) -> None:
    """Search the hyper-parameters of losses; repeat the command to go on, or to add trials.

    $ harness search --loss proxyanchor --dataset glyphs --trials 10
    """
    configs = read_search_configs(config, set_, locals(), [*(loss or []), *(more or [])])
    given = {key: value for key, value in locals().items() if key in FOLDERS and value is not None}
    with progress(verbose) as listener:
        from harness.searching.loop import search as run_search

        summaries = run_search(configs, listener)
    for summary in summaries:
        print_summary(summary)
    say(f"next: {next_command('eval', values=given, keys=FOLDERS)}")
