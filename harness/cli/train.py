"""`harness train`: one configuration, the four folds, no search."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.display import say, spell, spell_adjusted, spell_score
from harness.cli.options import Given, progress, takes_config

if TYPE_CHECKING:
    from harness.config import RunConfig


@takes_config("train")
def train(
    given: Given,
    folds: Annotated[
        int | None, typer.Option(min=1, help="Number of folds to train. Default: all.")
    ] = None,
    naive: Annotated[
        bool, typer.Option("--naive", help="Also score PCA of the trunk's untrained features.")
    ] = False,
    geometry: Annotated[
        bool,
        typer.Option("--geometry", help="Also measure covering radius and distance of classes."),
    ] = False,
) -> None:
    """Train one configuration on the folds, without a search and without the test classes.

    $ harness train --loss proxyanchor --set params.margin=0.2
    """
    for config in given.configs:
        _train_one(config, folds, naive, geometry)


def _train_one(config: RunConfig, count: int | None, naive: bool, geometry: bool) -> None:
    from harness.evaluation.geometry import class_geometry
    from harness.evaluation.naive import validate_naive
    from harness.training.trial import mean_score, train

    with progress(True, config) as listener:
        units, folds = train(config, count, listener, keep_weights=geometry)
    experiment, metric = units[0].experiment, units[0].experiment.protocol.metric
    say(f"{experiment.method.name} on {experiment.dataset_label}, {experiment.protocol.name}")
    say(f"  params: {spell(units[0].params)}")
    for line in sorted({line for fold in folds for line in spell_adjusted(fold.adjusted)}):
        say(f"  {line}")
    for unit, fold in zip(units, folds, strict=True):
        where = f"at step {fold.best_step} of {fold.steps}, {fold.seconds:.1f} s"
        facts = "".join(f", {fact} {value}" for fact, value in fold.hook.items())
        best = spell_score(fold.best_score)
        say(f"  fold {fold.fold + 1}: validation {metric} {best} {where}{facts}")
        if naive:
            score, size = validate_naive(experiment, fold.fold)
            say(f"    before training, PCA to {size}: {spell_score(score)}")
        if geometry:
            for part, values in class_geometry(unit).items():
                radius, distance = values["covering_radius"], values["class_distance"]
                say(f"    {part} classes: covering radius {radius:.4f}, distance {distance:.4f}")
    say(f"  mean {spell_score(mean_score(folds))}; files: {experiment.runs}")
