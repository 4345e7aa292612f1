"""`harness train`: one configuration, the four folds, no search."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import options
from harness.cli.display import say, spell, spell_adjusted
from harness.cli.options import progress, read_configs, read_values

if TYPE_CHECKING:
    from harness.config import RunConfig


def train(
    loss: options.Loss = None,
    more: options.MoreLosses = None,
    dataset: options.Dataset = None,
    protocol: options.Protocol = None,
    split: options.Split = None,
    trunk: options.Trunk = None,
    weights: options.Weights = None,
    trunk_lr: options.TrunkLr = None,
    preset: options.Preset = None,
    seed: options.Seed = None,
    device: options.Device = None,
    crops: options.Crops = None,
    micro_batch: options.MicroBatch = None,
    checkpoint_gradients: options.CheckpointGradients = None,
    data_root: options.DataRoot = None,
    allow_missing: options.AllowMissing = None,
    cache: options.Cache = None,
    cache_dir: options.CacheDir = None,
    runs_dir: options.RunsDir = None,
    config: options.ConfigFile = None,
    set_: options.Set = None,
    folds: Annotated[
        int | None, typer.Option(min=1, help="Only so many of the folds. Default: all.")
    ] = None,
    naive: Annotated[
        bool, typer.Option("--naive", help="Beside it, PCA of the trunk before training.")
    ] = False,
    geometry: Annotated[
        bool, typer.Option("--geometry", help="Covering radius and distance of the classes.")
    ] = False,
) -> None:
    """Train one configuration on the four folds, without a search and without the test classes.

    $ harness train --loss proxyanchor --set params.margin=0.2
    """
    values = read_values(config, set_, locals())
    for one in read_configs(values, [*(loss or []), *(more or [])]):
        _train_one(one, folds, naive, geometry)


def _train_one(config: RunConfig, count: int | None, naive: bool, geometry: bool) -> None:
    from harness.evaluation.geometry import class_geometry
    from harness.evaluation.naive import validate_naive
    from harness.training.trial import mean_score, train

    with progress(verbose=True) as listener:
        units, folds = train(config, count, listener, keep_weights=geometry)
    experiment, metric = units[0].experiment, units[0].experiment.protocol.metric
    say(f"{experiment.method.name} on {experiment.dataset_label}, {experiment.protocol.name}")
    say(f"  params: {spell(units[0].params)}")
    for line in sorted({line for fold in folds for line in spell_adjusted(fold.adjusted)}):
        say(f"  {line}")
    for unit, fold in zip(units, folds, strict=True):
        where = f"at step {fold.best_step} of {fold.steps}, {fold.seconds:.1f} s"
        facts = "".join(f", {fact} {value}" for fact, value in fold.hook.items())
        say(f"  fold {fold.fold + 1}: validation {metric} {fold.best_score:.4f} {where}{facts}")
        if naive:
            score, size = validate_naive(experiment, fold.fold)
            say(f"    before training, PCA to {size}: {score:.4f}")
        if geometry:
            for part, values in class_geometry(unit).items():
                radius, distance = values["covering_radius"], values["class_distance"]
                say(f"    {part} classes: covering radius {radius:.4f}, distance {distance:.4f}")
    say(f"  mean {mean_score(folds):.4f}; files: {experiment.runs}")
