"""The command line: flags to config. The only module that prints or exits."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.errors import HarnessError, unknown

if TYPE_CHECKING:
    from harness.config import RunConfig
    from harness.study import SearchSummary

# Heavy modules are imported inside the commands: `harness --help` must not wait for torch.

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Is that metric learning loss really better? A fair search, then a test on new classes.",
)

INTERRUPTED = 130  # what typer returns after Ctrl-C

Loss = Annotated[
    list[str] | None, typer.Option("--loss", "-l", help="Name, or a Python file of yours.")
]
MoreLosses = Annotated[list[str] | None, typer.Argument(metavar="[LOSS]...", help="More losses.")]
Dataset = Annotated[str | None, typer.Option(help="Name, or folder:PATH. [default: glyphs]")]
Protocol = Annotated[
    str | None, typer.Option(help="Name, perhaps changed: mlrc+batch_size=64. [default: mlrc]")
]
Trunk = Annotated[str | None, typer.Option(help="Name. [default: the protocol's]")]
Trials = Annotated[int | None, typer.Option(help="[default: the protocol's, 50]")]
Reproductions = Annotated[int | None, typer.Option(help="[default: the protocol's, 10]")]
Sampler = Annotated[str | None, typer.Option(help="gp, tpe, random or grid.")]
Preset = Annotated[str | None, typer.Option(help="Whose published parameters come first.")]
Seed = Annotated[int | None, typer.Option(help="Of the search and of every run in it.")]
Workers = Annotated[
    int | None, typer.Option(help="Processes. [default: one per GPU, or per CPU core]")
]
Device = Annotated[str | None, typer.Option(help="auto, cuda, cuda:N, mps or cpu.")]
DataRoot = Annotated[str | None, typer.Option(help="Folder of the data set. [env: HARNESS_DATA]")]
RunsDir = Annotated[str | None, typer.Option(help="Where work in progress lives. [default: runs]")]
ResultsDir = Annotated[str | None, typer.Option(help="Where tables go. [default: results]")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="YAML file of config keys.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any config key; params.NAME fixes one."),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show every validation.")]


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code: 2 for what the user can mend, 130 for Ctrl-C."""
    try:
        code = app(args=arguments, standalone_mode=False, prog_name="harness")
    except HarnessError as error:
        _complain(str(error))
        return 2
    except Exception as error:
        if hasattr(error, "format_message"):  # a flag that click refused
            _complain(f"{error.format_message()}\n  see: harness --help")
            return 2
        raise
    if code == INTERRUPTED:
        print("stopped. Repeat the same command to go on where it stopped.", file=sys.stderr)
    return code if isinstance(code, int) else 0


def _complain(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)


@app.command()
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
    runs_dir: RunsDir = None,
    config: ConfigFile = None,
    set_: Set = None,
    verbose: Verbose = False,
) -> None:
    """Search the hyper-parameters of losses; repeat the command to go on, or to add trials.

    harness search --loss proxyanchor --dataset glyphs --trials 10
    """
    values = _values(config, set_, locals())
    from harness.study import search as run_search

    configs = _configs(values, [*(loss or []), *(more or [])])
    with _progress(verbose) as listener:
        summaries = run_search(configs, listener)
    for summary in summaries:
        _print_summary(summary)


@app.command("eval")
def evaluate(
    loss: Loss = None,
    more: MoreLosses = None,
    dataset: Dataset = None,
    protocol: Protocol = None,
    trunk: Trunk = None,
    reproductions: Reproductions = None,
    workers: Workers = None,
    device: Device = None,
    data_root: DataRoot = None,
    runs_dir: RunsDir = None,
    results_dir: ResultsDir = None,
    config: ConfigFile = None,
    set_: Set = None,
    verbose: Verbose = False,
) -> None:
    """Train the best parameters again with new seeds, open the test classes, write the tables.

    Without flags, every search in --runs-dir; nothing is done twice.

    harness eval --loss proxyanchor --dataset glyphs
    """
    values = _values(config, set_, locals())
    from harness import leaderboard
    from harness.evaluation import evaluate as run_evaluation

    with _progress(verbose) as listener:
        done = run_evaluation([*(loss or []), *(more or [])], values, listener)
    problems = list(done.problems)
    for table in done.tables:
        board = leaderboard.build(table)
        files = leaderboard.write(board)
        _print_leaderboard(board, files)
        problems.extend(board.problems)
    for problem in problems:
        print(f"warning: {problem}", file=sys.stderr)


@app.command()
def train(
    loss: Loss = None,
    more: MoreLosses = None,
    dataset: Dataset = None,
    protocol: Protocol = None,
    trunk: Trunk = None,
    preset: Preset = None,
    seed: Seed = None,
    device: Device = None,
    data_root: DataRoot = None,
    runs_dir: RunsDir = None,
    config: ConfigFile = None,
    set_: Set = None,
    geometry: Annotated[
        bool, typer.Option("--geometry", help="Covering radius and distance of training classes.")
    ] = False,
) -> None:
    """Train one configuration on the four folds, without a search and without the test classes.

    harness train --loss proxyanchor --set params.margin=0.2
    """
    values = _values(config, set_, locals())
    for one in _configs(values, [*(loss or []), *(more or [])]):
        _train_one(one, geometry)


def _train_one(config: RunConfig, geometry: bool) -> None:
    from harness.experiment import build_experiment
    from harness.progress import Event
    from harness.trainer import Progress, TrainingFailed
    from harness.trial import mean_score, run_trial, training_geometry

    experiment = build_experiment(config)
    params, metric = experiment.published_params, experiment.protocol.metric
    name, most = experiment.method.name, experiment.protocol.max_steps
    with _progress(verbose=True) as listener:

        def validated(fold: int, progress: Progress) -> None:
            event = Event("validation", name, units=1, fold=fold, max_steps=most)
            listener(replace(event, step=progress.step, score=progress.best_score))

        try:
            folds = run_trial(experiment, params, validated, keep_weights=geometry)
        except TrainingFailed as failure:
            raise HarnessError(f"training failed: {failure}") from None
    print(f"{name} on {experiment.dataset_label}, {experiment.protocol.name}")
    print(f"  params: {_spell(params)}")
    for fold in folds:
        where = f"at step {fold.best_step} of {fold.steps}, {fold.seconds:.1f} s"
        facts = "".join(f", {fact} {value}" for fact, value in fold.hook.items())
        print(f"  fold {fold.fold}: validation {metric} {fold.best_score:.4f} {where}{facts}")
        if geometry:
            radius, distance = training_geometry(experiment, params, fold.fold)
            print(f"    training classes: covering radius {radius:.4f}, distance {distance:.4f}")
    print(f"  mean {mean_score(folds):.4f}; files: {experiment.runs}")


@app.command("list")
def list_(
    kind: Annotated[
        str, typer.Argument(help="losses, datasets, protocols, trunks or all.")
    ] = "all",
    dataset: Dataset = None,
) -> None:
    """What there is: losses with paper and search space, data sets, protocols, trunks."""
    from harness import registry

    kinds = {"losses": "loss", "datasets": "dataset", "protocols": "protocol", "trunks": "trunk"}
    if kind not in (*kinds, "all"):
        raise unknown("list", kind, [*kinds, "all"])
    for plural, singular in kinds.items():
        if kind not in (plural, "all"):
            continue
        print(f"{plural}:")
        for name, item in registry.items(singular).items():
            if singular == "loss":
                _print_method(item, dataset or "glyphs")
            else:
                print(f"  {name:<14} {item.summary}")


def _values(config: Path | None, assignments: list[str] | None, flags: dict[str, Any]) -> Any:
    """Config values by precedence: file, then --set, then flags of their own."""
    from harness.config import RunConfig, load_config, parse_assignments

    keys = RunConfig.__dataclass_fields__
    given = {
        key: value
        for key, value in flags.items()
        if key in keys and key != "loss" and value is not None
    }
    values = load_config(config) if config is not None else {}
    assigned = parse_assignments(assignments or [])
    if "params" in assigned:
        assigned["params"] = {**values.get("params", {}), **assigned["params"]}
    merged = {**values, **assigned, **given}
    RunConfig().updated(merged)  # refuses unknown keys and wrong types
    return merged


def _configs(values: dict[str, Any], losses: list[str]) -> list[RunConfig]:
    from harness.config import RunConfig

    config = RunConfig().updated(values)
    return [config.updated({"loss": loss}) for loss in losses] or [config]


def _spell(params: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_short(value)}" for name, value in params.items()) or "none"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _print_method(method: Any, dataset: str) -> None:
    names = " ".join([method.name, *(f"({alias})" for alias in method.aliases)])
    print(f"  {names:<14} {method.paper}")
    space = method.space(dataset, 75)
    bounds = ", ".join(f"{name} {_bounds(dist)}" for name, dist in space.items())
    print(f"  {'':<14} space: {bounds or 'none'}")
    print(f"  {'':<14} presets: {', '.join(method.presets)}")


def _bounds(distribution: Any) -> str:
    if hasattr(distribution, "choices"):
        return "{" + ", ".join(map(str, distribution.choices)) + "}"
    log = " log" if distribution.log else ""
    return f"[{_short(distribution.low)}, {_short(distribution.high)}]{log}"


def _print_summary(summary: SearchSummary) -> None:
    folds = " ".join(f"{score:.4f}" for score in summary.fold_scores)
    print(f"{summary.method}: {summary.trials} trials, {summary.failed} failed")
    print(f"  best validation map@r {summary.best_score:.4f} (trial {summary.best_trial + 1})")
    print(f"  folds: {folds}")
    print(f"  params: {_spell(summary.best_params)}")
    for name, end in summary.on_bound.items():
        value = _short(summary.best_params[name])
        print(f"  note: {name}={value} lies on the {end} end of its range; consider a wider one")
    for reason in sorted(set(summary.reasons)):
        print(f"  failed {summary.reasons.count(reason)} times: {reason}")
    print("  next: harness eval")


def _print_leaderboard(board: Any, files: list[Path]) -> None:
    from rich.console import Console
    from rich.table import Table

    from harness.leaderboard import notes_on, shown, title_of

    table = Table(title=title_of(board.frame).lstrip("# "), title_justify="left")
    rows = shown(board.frame)
    for column in rows.columns:
        left = column in ("method",)
        table.add_column(column, justify="left" if left else "right", overflow="fold")
    for row in rows.astype(str).to_numpy():
        table.add_row(*row)
    # A terminal wraps what does not fit; a file has room for the whole table.
    width = None if sys.stdout.isatty() else 200
    Console(width=width).print(table)
    for note in notes_on(board.frame):
        print(note)
    print("files: " + ", ".join(str(path) for path in files))


@contextmanager
def _progress(verbose: bool) -> Iterator[Any]:
    """A listener that shows bars on a terminal and writes plain lines elsewhere."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    from harness.display import Bars, Lines

    display = Bars() if sys.stderr.isatty() else Lines(verbose)
    with display:
        yield display


if __name__ == "__main__":
    sys.exit(main())
