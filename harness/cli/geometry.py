"""`harness geometry`: how tight classes are and how far apart, by stage of training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli import options
from harness.cli.display import say
from harness.cli.options import progress, read_configs, read_values
from harness.cli.printed_table import print_table


def geometry(
    loss: options.Loss = None,
    more: options.MoreLosses = None,
    dataset: options.Dataset = None,
    protocol: options.Protocol = None,
    split: options.Split = None,
    trunk: options.Trunk = None,
    weights: options.Weights = None,
    preset: options.Preset = None,
    seed: options.Seed = None,
    device: options.Device = None,
    data_root: options.DataRoot = None,
    allow_missing: options.AllowMissing = None,
    cache: options.Cache = None,
    cache_dir: options.CacheDir = None,
    runs_dir: options.RunsDir = None,
    results_dir: options.ResultsDir = None,
    config: options.ConfigFile = None,
    set_: options.Set = None,
    folds: Annotated[int, typer.Option(min=1, help="So many of the folds.")] = 1,
    test: Annotated[
        bool, typer.Option("--test", help="The test classes, too, which the ledger notes.")
    ] = False,
    picture: Annotated[
        Path | None, typer.Option(help="FILE.svg, .pdf or .png: the stages of the first fold.")
    ] = None,
    of: Annotated[
        str, typer.Option(help="In the picture: training, validation or test classes.")
    ] = "validation",
    columns: Annotated[int, typer.Option(help="Width: 1 or 2 columns of a paper.")] = 2,
    serif: Annotated[bool, typer.Option("--serif", help="Letters with serifs.")] = False,
    verbose: options.Verbose = False,
) -> None:
    """MAP@R, covering radius and distance of the classes before training and after each stage.

    Stages are CCP's instances; other methods have one. Trains the published parameters, apart
    from all searches, and keeps the best weights of each stage. A picture shows embeddings of two
    dimensions as they are, of more by t-SNE, and the proxies of training classes.

    $ harness geometry --loss ccp-c2 --dataset cub --protocol ablation-ccp

    $ harness geometry --loss ccp-c2 --trunk convnet --protocol ablation-ccp+embedding_size=2
    --picture proxies.pdf --of training
    """
    values = read_values(config, set_, locals())
    if picture is not None:
        from harness.report.figures import FORMATS

        options.check_output(picture, *FORMATS, flag="--picture")
    from harness.evaluation.geometry import NOTE, measure_stages, shown

    configs = read_configs(values, [*(loss or []), *(more or [])])
    for one in configs:
        with progress(verbose) as listener:
            keep = of if picture is not None else ""
            table = measure_stages(one, folds, test, keep, listener)
        print_table(shown(table.frame), table.title)
        say(NOTE)
        say(f"files: {', '.join(map(str, table.files))}")
        if picture is not None:
            from harness.report.figures import save
            from harness.report.stage_maps import draw_stages

            # Of several losses each has its own.
            place = picture.with_stem(f"{picture.stem}-{one.loss}") if configs[1:] else picture
            save(draw_stages(table.views, columns, serif), place)
            say(f"{place}: {of} classes, stage by stage")
