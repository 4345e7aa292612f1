"""Flags that commands share, and the config that they make."""

from __future__ import annotations

import shlex
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.errors import HarnessError

if TYPE_CHECKING:
    from harness.config import RunConfig

Loss = Annotated[
    list[str] | None, typer.Option("--loss", "-l", help="Name, or a Python file of yours.")
]
MoreLosses = Annotated[list[str] | None, typer.Argument(metavar="LOSS", help="More losses.")]
Dataset = Annotated[str | None, typer.Option(help="Name, or folder:PATH. Default: glyphs.")]
Protocol = Annotated[
    str | None, typer.Option(help="Name, perhaps changed: mlrc+batch_size=64. Default: mlrc.")
]
Split = Annotated[
    str | None, typer.Option(help="File of class lists: train, validation, test. Default: none.")
]
Trunk = Annotated[str | None, typer.Option(help="Name. Default: the protocol's.")]
Weights = Annotated[
    str | None, typer.Option(help="Of the trunk: a file, or none. Default: its own.")
]
TrunkLr = Annotated[
    float | None, typer.Option(help="Learning rate of the trunk; another protocol by name.")
]
Trials = Annotated[int | None, typer.Option(help="Default: the protocol's, 50.")]
TrialsPerDimension = Annotated[
    int | None, typer.Option(min=1, help="Trials for each searched parameter, instead.")
]
UntilFlat = Annotated[
    bool | None,
    typer.Option("--until-flat", help="Go on while the last fifth of the trials still helped."),
]
MaxTrials = Annotated[int | None, typer.Option(min=1, help="With --until-flat. Default: 200.")]
Space = Annotated[
    str | None, typer.Option(help="paper: the space that the method's paper searched.")
]
Select = Annotated[
    str | None,
    typer.Option(help="mean: the trial with the best mean over folds. mean-se: less its error."),
]
Reproductions = Annotated[int | None, typer.Option(help="Default: the protocol's, 10.")]
Sampler = Annotated[str | None, typer.Option(help="gp, tpe, random or grid.")]
Prune = Annotated[
    bool, typer.Option("--prune", help="Stop hopeless trials early: PROTOCOL+prune=true.")
]
Preset = Annotated[str | None, typer.Option(help="Whose published parameters come first.")]
Seed = Annotated[int | None, typer.Option(help="Of the search and of every run in it.")]
Workers = Annotated[
    int | None, typer.Option(help="Processes. Default: one per GPU, or per CPU core.")
]
PerGpu = Annotated[
    str | None,
    typer.Option(
        "--per-gpu", metavar="N|auto", help="Workers that share a card. auto: as many as fit."
    ),
]
Crops = Annotated[
    str | None,
    typer.Option(help="gpu: crops are resized on the card; another protocol by name."),
]
MicroBatch = Annotated[
    int | None,
    typer.Option(min=1, help="Images that pass the trunk together: less memory, same gradients."),
]
CheckpointGradients = Annotated[
    bool | None,
    typer.Option("--checkpoint-gradients", help="Compute layers twice: less memory (timm)."),
]
Device = Annotated[str | None, typer.Option(help="auto, cuda, cuda:N or cpu.")]
DataRoot = Annotated[
    str | None, typer.Option(help="Folder of the data set. Or HARNESS_DATA in the environment.")
]
AllowMissing = Annotated[
    bool | None,
    typer.Option("--allow-missing", help="Go on without images that are missing or broken."),
]
Cache = Annotated[str | None, typer.Option(help="off decodes images every time. Default: on.")]
CacheDir = Annotated[
    str | None,
    typer.Option(help="Default: ~/.cache/metric-harness. Or HARNESS_CACHE in the environment."),
]
Storage = Annotated[
    str | None,
    typer.Option(
        help="Database URL that all machines of a search share. Or HARNESS_STORAGE in the "
        "environment. Default: a file in --runs-dir."
    ),
]
RunsDir = Annotated[str | None, typer.Option(help="Where work in progress lives. Default: runs.")]
ResultsDir = Annotated[str | None, typer.Option(help="Where tables go. Default: results.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="YAML file of config keys.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any config key; params.NAME fixes one."),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show every validation.")]


def full_name(method: str) -> str:
    """What an alias stands for, or the row of a loss file; any other name stays as it is."""
    from harness import registry  # the losses, and thus torch: for names without a row alone

    return registry.full_name(method)


def rows_named(methods: Sequence[str] | None, rows: Container[str]) -> tuple[str, ...]:
    """Rows of tables by their names, by aliases or by loss files."""
    return tuple(name if name in rows else full_name(name) for name in methods or ())


def split_metrics(metrics: list[str] | None, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Metrics and losses: as losses do, metrics may stand behind one another after one flag."""
    from harness.metrics.names import is_metric

    wanted = [*(metrics or []), *(name for name in names if metrics and is_metric(name))]
    return wanted, [name for name in names if name not in wanted]


def check_output(path: Path, *endings: str, flag: str = "--output") -> None:
    """Refuse a file to write before any work: a wrong ending, a folder, a device."""
    if path.suffix not in endings:
        raise HarnessError(f"{flag} must end in {' or '.join(endings)}, got {path}")
    if path.exists() and not path.is_file():
        raise HarnessError(f"{flag} is to be a file, and {path} is none")


def read_values(config: Path | None, assignments: list[str] | None, flags: dict[str, Any]) -> Any:
    """Config values by precedence: file, then --set, then flags of their own."""
    from harness.config import RunConfig, load_config, parse_assignments
    from harness.protocols.protocol import with_change

    keys = RunConfig.__dataclass_fields__
    given = {
        key: value
        for key, value in flags.items()
        if key in keys and key != "loss" and value is not None
    }
    if given.get("per_gpu", "").isdecimal():
        given["per_gpu"] = int(given["per_gpu"])
    values = load_config(config) if config is not None else {}
    assigned = parse_assignments(assignments or [])
    if "params" in assigned:
        assigned["params"] = {**(values.get("params") or {}), **assigned["params"]}
    merged = {**values, **assigned, **given}
    for name in ("trunk_lr", "crops"):  # flags for fields of the protocol
        if flags.get(name) is not None:
            protocol = merged.get("protocol", RunConfig().protocol)
            merged["protocol"] = with_change(protocol, name, flags[name])
    RunConfig().updated(merged)  # refuses unknown keys and wrong types
    return merged


def read_configs(values: dict[str, Any], losses: list[str]) -> list[RunConfig]:
    from harness.config import RunConfig

    config = RunConfig().updated(values)
    return [config.updated({"loss": loss}) for loss in losses] or [config]


def read_search_configs(
    config: Path | None, assignments: list[str] | None, flags: dict[str, Any], losses: list[str]
) -> list[RunConfig]:
    """One config for each loss to search; pruning is in the name of the protocol."""
    from harness.protocols.protocol import with_change

    configs = read_configs(read_values(config, assignments, flags), losses)
    if flags["prune"]:
        configs = [
            one.updated({"protocol": with_change(one.protocol, "prune", True)}) for one in configs
        ]
    return configs


def next_command(*words: str, values: Mapping[str, Any], keys: Sequence[str]) -> str:
    """A command to type next, with the folders that this one was given.

    Args:
        keys: config keys of those that it takes.
    """
    flags = [(f"--{key.replace('_', '-')}", str(values[key])) for key in keys if key in values]
    return shlex.join(["harness", *words, *(word for flag in flags for word in flag)])


@contextmanager
def progress(verbose: bool) -> Iterator[Any]:
    """A listener that shows bars on a terminal and writes plain lines elsewhere."""
    from harness.cli.display import Bars, Lines, is_for_people

    display = Bars() if is_for_people() else Lines(verbose)
    with display:  # at once: what is imported next takes seconds
        from harness.registry import forget_listings

        forget_listings()  # of another command in this process
        yield display
