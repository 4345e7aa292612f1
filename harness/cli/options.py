"""Flags that commands share, made from the config keys, and the config that they give."""

from __future__ import annotations

import functools
import inspect
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

from harness.config import (
    ADVANCED,
    LENGTH,
    MEASURE,
    OUTPUT,
    PANELS,
    SEARCH,
    STUDIES,
    Key,
    RunConfig,
    keys,
    load_config,
    parse_assignments,
)
from harness.errors import HarnessError
from harness.loss_file import file_here
from harness.records.layout import VERSION

if TYPE_CHECKING:
    from harness.system.progress import Listener

Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Print every validation.", rich_help_panel=OUTPUT),
]

Against = Annotated[
    str | None,
    typer.Option(
        help="Folder of further results to compare with, or none. "
        "Default: the results that come with the package."
    ),
]

FigureColumns = Annotated[
    int, typer.Option(help="Width of the figure in columns of a paper: 1 or 2.")
]
Serif = Annotated[bool, typer.Option("--serif", help="Use a font with serifs.")]

# Flags for fields of the protocol: name of the field -> type and what a config key declares.
PROTOCOL_FLAGS: Mapping[str, tuple[type, Key]] = {
    "trunk_lr": (
        float,
        Key(
            help="Learning rate of the trunk; part of the protocol's name.",
            panel=ADVANCED,
            commands=(*SEARCH, "sweep", "train"),
        ),
    ),
    "crops": (
        str,
        Key(
            help="Where to resize crops. gpu: on the GPU; part of the protocol's name.",
            panel=ADVANCED,
            commands=(*SEARCH, "train"),
        ),
    ),
    "finalists": (
        int,
        Key(
            help="Trials to score again on other partitions of the classes; 0 for none. "
            "Part of the protocol's name.",
            panel=LENGTH,
            commands=SEARCH,
            default_help="that of the protocol",
        ),
    ),
    "prune": (
        bool,
        Key(
            help="Stop unpromising trials early; part of the protocol's name.",
            panel=LENGTH,
            commands=SEARCH,
        ),
    ),
}

# Flags that give any config key.
_CONFIG_FILE = Annotated[
    Path | None,
    typer.Option("--config", help="YAML file with config keys.", rich_help_panel=ADVANCED),
]
_SET = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any config key. params.NAME=VALUE fixes a hyper-parameter.",
        rich_help_panel=ADVANCED,
    ),
]

# What may stand on the command line without a flag.
_MORE_LOSSES = Annotated[list[str] | None, typer.Argument(metavar="LOSS", help="More losses.")]
_STUDIES = Annotated[
    list[str] | None,
    typer.Argument(metavar="STUDY", help="Losses, or folders of searches. Default: all."),
]


@dataclass(frozen=True)
class Given:
    """What the shared flags of a command say.

    Attributes:
        losses: names and files, in the order in which they were given.
        values: config keys that a flag, `--set` or the file of `--config` gives.
    """

    losses: list[str]
    values: dict[str, Any]

    @property
    def config(self) -> RunConfig:
        """The config of a command that takes no loss."""
        return RunConfig().updated(self.values)

    @property
    def results(self) -> Path:
        """The folder of records and tables."""
        return Path(self.config.results_dir)

    @property
    def table(self) -> Path:
        """The folder of the one table that data set, protocol and trunk choose."""
        from harness.records.layout import find_table

        config, trunk = self.config, self.values.get("trunk")
        return find_table(self.results, config.protocol, config.dataset, trunk)

    @property
    def configs(self) -> list[RunConfig]:
        """One config for each loss; a single one if no loss was given."""
        return [self.config.updated({"loss": loss}) for loss in self.losses] or [self.config]


def takes_config(command: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the flags of all config keys that name it, and the flags that go with them.

    The command declares only what is particular to it. Its first parameter gets what the shared
    flags say, as a `Given`.

    Args:
        command: its name, as config keys spell it.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        shared = list(_shared_parameters(command))

        @functools.wraps(function)
        def run(**flags: Any) -> None:
            given = {parameter.name: flags.pop(parameter.name) for parameter in shared}
            function(read_given(given), **flags)

        parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in [*own, *shared]]
        parameters.sort(key=_panel_number)
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return run

    return decorate


def _panel_number(parameter: inspect.Parameter) -> int:
    """The place of a flag's panel in the help; 0 for what is particular to a command."""
    (about,) = parameter.annotation.__metadata__
    return (None, *PANELS).index(about.rich_help_panel)


def _shared_parameters(command: str) -> Iterator[inspect.Parameter]:
    """The parameters that a command shares with others, as typer reads them."""
    hints = get_type_hints(RunConfig)
    flags = {name: (hints[name], about) for name, about in keys().items()}
    for name, (hint, about) in {**flags, **PROTOCOL_FLAGS}.items():
        if command in about.commands:
            yield _parameter(name, _flag(name, hint, about, command))
    if command in (*MEASURE, "calibrate"):
        yield _parameter("more", _MORE_LOSSES)
    if command in STUDIES:
        yield _parameter("more", _STUDIES)
    if command in (*MEASURE, "check", "data check", "data prepare"):
        yield _parameter("config", _CONFIG_FILE)
    if command in (*MEASURE, "check"):
        yield _parameter("set_", _SET)


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=None, annotation=annotation)


def _flag(name: str, hint: Any, about: Key, command: str) -> Any:
    """The flag of a config key, None if it is not given."""
    # An explicit spelling keeps typer from adding --no-NAME to a bool.
    spellings = about.flags or (f"--{name.replace('_', '-')}",)
    option = typer.Option(
        *spellings,
        help=_help(about, command),
        metavar=about.metavar,
        min=about.minimum,
        parser=_number_or_word if int in get_args(hint) else None,
        rich_help_panel=about.panel,
    )
    type_: Any = (
        list[str] if name == "loss" else hint if hint in (bool, int, float, list[str]) else str
    )
    return Annotated[type_ | None, option]


def _number_or_word(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _help(about: Key, command: str) -> str:
    default = "all" if about.picks_searches and command in STUDIES else about.default_help
    parts = [about.help]
    if default:
        parts.append(f"Default: {default}.")
    if about.variable:
        parts.append(f"Environment variable: {about.variable}.")
    return " ".join(parts)


def read_given(flags: Mapping[str, Any]) -> Given:
    """What shared flags say, by the names of their parameters."""
    losses = [find_file(loss) for loss in (*(flags.get("loss") or []), *(flags.get("more") or []))]
    return Given(losses, read_values(flags.get("config"), flags.get("set_"), flags))


def read_values(
    config: Path | None, assignments: list[str] | None, flags: Mapping[str, Any]
) -> dict[str, Any]:
    """Config values by precedence: flags of single keys, then --set, then the file."""
    from harness.protocols.protocol import with_change

    given = {
        name: value
        for name, value in flags.items()
        if name in keys() and name != "loss" and value is not None
    }
    values = load_config(config) if config is not None else {}
    assigned = parse_assignments(assignments or [])
    if "params" in assigned:
        in_file = values.get("params") or {}
        if not isinstance(in_file, Mapping):
            raise HarnessError(f"{config}: params must hold `name: value` lines, got {in_file!r}")
        assigned["params"] = {**in_file, **assigned["params"]}
    merged = {**values, **assigned, **given}
    for name in PROTOCOL_FLAGS:
        if flags.get(name) is not None:
            protocol = merged.get("protocol", RunConfig.protocol)
            merged["protocol"] = with_change(protocol, name, flags[name])
    RunConfig().updated(merged)  # refuses unknown keys and wrong types
    return merged


def full_name(method: str) -> str:
    """What an alias stands for, or the row of a loss file; any other name stays as it is."""
    from harness import registry  # the losses, and thus torch: for names without a row alone

    return registry.full_name(method)


def find_file(loss: str) -> str:
    """The loss file in this folder that a name stands for; any other name stays as it is."""
    if not file_here(loss):
        return loss
    from harness import registry  # as above

    return registry.find_file(loss)


def rows_named(methods: Sequence[str] | None, rows: Collection[str]) -> tuple[str, ...]:
    """Rows of tables by their names, by aliases, by loss files or by the names of these."""
    return tuple(_row_named(name, rows) for name in methods or ())


def _row_named(name: str, rows: Collection[str]) -> str:
    if name in rows or (found := full_name(name)) in rows:
        return name if name in rows else found
    versions = sorted(row for row in rows if row.startswith(f"{found}{VERSION}"))
    if len(versions) > 1:
        raise HarnessError(f"which version of {found}? Give one of {', '.join(versions)}")
    return versions[0] if versions else found


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
        raise HarnessError(f"{flag}: {path} is not a regular file")


def next_command(*words: str, values: Mapping[str, Any], keys: Sequence[str]) -> str:
    """A command to type next, with the folders that this one was given.

    Args:
        keys: config keys of those that it takes.
    """
    flags = [(f"--{key.replace('_', '-')}", str(values[key])) for key in keys if key in values]
    return shlex.join(["harness", *words, *(word for flag in flags for word in flag)])


@contextmanager
def progress(verbose: bool, config: RunConfig | None = None) -> Iterator[Listener]:
    """A listener that shows bars on a terminal and writes plain lines elsewhere.

    Args:
        config: the loggers that it names hear the same events.
    """
    from harness.cli.display import Bars, Lines, is_for_people

    display = Bars() if is_for_people() else Lines(verbose)
    with display:  # at once: what is imported next takes seconds
        from harness.event_log import with_logs
        from harness.registry import forget_listings

        forget_listings()  # of another command in this process
        with with_logs(config or RunConfig(), display) as listener:
            yield listener
