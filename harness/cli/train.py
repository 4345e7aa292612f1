"""`harness train`: one configuration, the four folds, no search."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.display import spell
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
    RunsDir,
    Seed,
    Set,
    Trunk,
    TrunkLr,
    Weights,
    progress,
    read_configs,
    read_values,
)
from harness.errors import HarnessError

if TYPE_CHECKING:
    from harness.config import RunConfig


def train(
    loss: Loss = None,
    more: MoreLosses = None,
    dataset: Dataset = None,
    protocol: Protocol = None,
    trunk: Trunk = None,
    weights: Weights = None,
    trunk_lr: TrunkLr = None,
    preset: Preset = None,
    seed: Seed = None,
    device: Device = None,
    data_root: DataRoot = None,
    allow_missing: AllowMissing = None,
    cache: Cache = None,
    cache_dir: CacheDir = None,
    runs_dir: RunsDir = None,
    config: ConfigFile = None,
    set_: Set = None,
    folds: Annotated[
        int | None, typer.Option(min=1, help="Only so many of the folds. Default: all.")
    ] = None,
    naive: Annotated[
        bool, typer.Option("--naive", help="Beside it, PCA of the trunk before training.")
    ] = False,
    geometry: Annotated[
        bool, typer.Option("--geometry", help="Covering radius and distance of training classes.")
    ] = False,
) -> None:
    """Train one configuration on the four folds, without a search and without the test classes.

    $ harness train --loss proxyanchor --set params.margin=0.2
    """
    values = read_values(config, set_, locals())
    for one in read_configs(values, [*(loss or []), *(more or [])]):
        _train_one(one, folds, naive, geometry)


def _train_one(config: RunConfig, count: int | None, naive: bool, geometry: bool) -> None:
    from harness.evaluation.naive import validate_naive
    from harness.experiment import build_experiment
    from harness.model.build import check_trunk
    from harness.system.device import choose_device
    from harness.system.progress import Event
    from harness.training.trainer import Progress, TrainingFailed
    from harness.training.trial import mean_score, run_trial, training_geometry

    experiment = build_experiment(config)
    check_trunk(experiment)
    params, metric = experiment.published_params, experiment.protocol.metric
    name, most = experiment.method.name, experiment.protocol.max_steps
    choose_device(config.device)
    with progress(verbose=True) as listener:
        experiment.open_part("trainval", listener)

        def validated(fold: int, progress: Progress) -> None:
            event = Event("validation", name, units=1, fold=fold, max_steps=most)
            listener(replace(event, step=progress.step, score=progress.best_score))

        try:
            folds = run_trial(
                experiment,
                params,
                validated,
                enough=lambda done: len(done) == count,
                keep_weights=geometry,
            )
        except TrainingFailed as failure:
            raise HarnessError(f"training failed: {failure}") from None
    print(f"{name} on {experiment.dataset_label}, {experiment.protocol.name}")
    print(f"  params: {spell(params)}")
    for fold in folds:
        where = f"at step {fold.best_step} of {fold.steps}, {fold.seconds:.1f} s"
        facts = "".join(f", {fact} {value}" for fact, value in fold.hook.items())
        print(f"  fold {fold.fold}: validation {metric} {fold.best_score:.4f} {where}{facts}")
        if naive:
            score, size = validate_naive(experiment, fold.fold)
            print(f"    before training, PCA to {size}: {score:.4f}")
        if geometry:
            radius, distance = training_geometry(experiment, params, fold.fold)
            print(f"    training classes: covering radius {radius:.4f}, distance {distance:.4f}")
    print(f"  mean {mean_score(folds):.4f}; files: {experiment.runs}")
