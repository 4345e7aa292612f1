"""RunConfig: every setting of a run, declared once, in and out of YAML.

Flags and help texts of the commands, checks, environment variables and the settings that a sweep
may vary are all made from the fields of RunConfig and the `Key` beside each of them.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, get_type_hints

import yaml
from msgspec import Meta

from harness.errors import HarnessError, convert_value_errors, unknown
from harness.foreign_files import RefusedFile, read_foreign
from harness.plain_text import writable
from harness.plain_yaml import read_yaml
from harness.redact import redact
from harness.typed import convert

# Panels in which the help groups flags, in this order.
PANELS = ("What to run", "How long", "Where to run", "Data", "Output", "Advanced")
WHAT, LENGTH, WHERE, DATA, OUTPUT, ADVANCED = PANELS

# Commands that share flags.
SEARCH = ("search",)
TRAIN = (*SEARCH, "eval", "sweep", "train")
MEASURE = (*TRAIN, "cost", "geometry")  # all commands that train
STUDIES = ("show", "status", "retry", "dashboard")  # commands about searches
TABLE = ("plot", "embed", "export")  # commands about one table
MODELS = ("report", "embed", "export")  # commands that load the models of a table


@dataclass(frozen=True)
class Key:
    """Everything about a config key except its name, type and default value.

    Attributes:
        help: text of its flag. The default and the environment variable are appended to it.
        panel: heading under which the help lists its flag.
        commands: names of the commands that have its flag. A key without any can be set with
            `--set` and `--config`.
        default_help: the default as the help shows it; usually the value itself.
        flags: spellings of the flag; by default the name of the key.
        metavar: placeholder of the value in the help; by default its type.
        minimum: smallest number that the flag takes.
        variable: environment variable that replaces the default.
        is_path: whether the value may be a file or a folder, so that `~` is expanded.
        is_axis: whether a sweep may vary it: results depend on it, and no other flag varies it.
        picks_searches: whether commands about searches use it to choose among them.
    """

    help: str
    panel: str
    commands: tuple[str, ...] = ()
    default_help: str = ""
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    minimum: int | None = None
    variable: str = ""
    is_path: bool = False
    is_axis: bool = False
    picks_searches: bool = False


def key(default: Any, **facts: Any) -> Any:
    """A field of RunConfig.

    Args:
        default: its value, or a function without arguments that returns it.
        facts: the attributes of its `Key`.
    """
    if not callable(default) and default not in ("", 0):
        facts = {"default_help": str(default), **facts}
    about = Key(**facts)
    if about.variable:
        return field(
            default_factory=lambda: os.environ.get(about.variable) or default,
            metadata={"key": about},
        )
    if callable(default):
        return field(default_factory=default, metadata={"key": about})
    return field(default=default, metadata={"key": about})


Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]


@dataclass(frozen=True)
class RunConfig:
    """What to run, on what, and where to put it."""

    loss: str = key(
        "",
        help="Name of the loss, or a Python file that defines one. More losses may follow.",
        panel=WHAT,
        commands=(*MEASURE, *STUDIES, "calibrate"),
        flags=("--loss", "-l"),
        is_path=True,
        picks_searches=True,
    )
    dataset: str = key(
        "glyphs",
        help="Name of the data set, or folder:PATH.",
        panel=WHAT,
        commands=(*MEASURE, *STUDIES, *TABLE, "check", "list", "calibrate"),
        is_axis=True,
        picks_searches=True,
    )
    protocol: str = key(
        "mlrc",
        help="Name of the protocol, with changed fields if any: mlrc+batch_size=64.",
        panel=WHAT,
        commands=(*MEASURE, *STUDIES, *TABLE, "check", "compare", "data prepare", "calibrate"),
        is_axis=True,
        picks_searches=True,
    )
    split: str = key(
        "",
        help="File with lists of the training, validation and test classes.",
        panel=DATA,
        commands=(*TRAIN, "geometry"),
        default_help="the split of the protocol",
        is_path=True,
        is_axis=True,
    )
    trunk: str = key(
        "",
        help="Name of the trunk network.",
        panel=WHAT,
        commands=(*MEASURE, *STUDIES, *TABLE, "check", "compare", "data prepare", "calibrate"),
        default_help="the trunk of the protocol",
        is_axis=True,
        picks_searches=True,
    )
    weights: str = key(
        "",
        help="File with weights of the trunk, or none for random weights.",
        panel=ADVANCED,
        commands=(*MEASURE, "check", "data prepare", "calibrate"),
        default_help="the weights that come with the trunk",
        is_path=True,
        is_axis=True,
    )
    preset: str = key(
        "mlrc",
        help="Name of published hyper-parameters. A search tries them first; other commands "
        "train with them.",
        panel=WHAT,
        commands=MEASURE,
        is_axis=True,
    )
    params: Mapping[str, Any] = key(
        dict, help="Hyper-parameters to fix instead of searching them, by name.", panel=WHAT
    )
    space: str = key(
        "",
        help="Search space. paper: the space that the method's paper searched.",
        panel=WHAT,
        commands=(*SEARCH, "eval"),
        default_help="the method's space",
        picks_searches=True,
    )
    trials: Count = key(
        0,
        help="Number of trials.",
        panel=LENGTH,
        commands=(*SEARCH, "calibrate"),
        default_help="the number in the protocol, 50",
    )
    trials_per_dimension: Count = key(
        0,
        help="Number of trials per searched hyper-parameter, instead of --trials.",
        panel=LENGTH,
        commands=SEARCH,
        minimum=1,
    )
    until_flat: bool = key(
        False,
        help="Continue while the last fifth of the trials found a better score, up to "
        "--max-trials.",
        panel=LENGTH,
        commands=SEARCH,
    )
    max_trials: Positive = key(
        200,
        help="Maximum number of trials with --until-flat.",
        panel=LENGTH,
        commands=SEARCH,
        minimum=1,
    )
    select: Literal["mean", "mean-se"] = key(
        "mean",
        help="Rule that selects the trial to evaluate. mean: best mean over the folds. "
        "mean-se: best mean minus its standard error.",
        panel=ADVANCED,
        commands=("eval",),
    )
    reproductions: Count = key(
        0,
        help="Number of reproductions, each trained with a different seed.",
        panel=LENGTH,
        commands=("eval", "calibrate"),
        default_help="the number in the protocol, 10",
    )
    searches: Positive = key(
        1,
        help="Number of independent searches per loss. The seeds are --seed, --seed + 1 and so "
        "on. A row's score is the mean over its searches.",
        panel=LENGTH,
        commands=(*SEARCH, "calibrate"),
        minimum=1,
    )
    repeat: Count = key(
        0,
        help="Number of this search among repeated ones. Set by --searches. From 1 on, the search "
        "has a folder of its own, METHOD/seed-SEED.",
        panel=ADVANCED,
    )
    sampler: str = key(
        "",
        help="Search algorithm: gp, tpe, random or grid.",
        panel=ADVANCED,
        commands=(*SEARCH, "calibrate"),
        default_help="the method's sampler",
    )
    seed: Count = key(
        0,
        help="Random seed for the search and all of its runs.",
        panel=ADVANCED,
        commands=(*MEASURE, "calibrate"),
        default_help="0",
        is_axis=True,
        picks_searches=True,
    )
    workers: Count = key(
        0,
        help="Number of worker processes.",
        panel=WHERE,
        commands=(*SEARCH, "eval", "sweep", "calibrate"),
        default_help="one per GPU, or one per CPU core",
    )
    per_gpu: Positive | Literal["auto"] = key(
        1,
        help="Number of workers per GPU. auto: as many as memory and CPU cores allow if the "
        "model is small, otherwise one.",
        panel=WHERE,
        commands=(*SEARCH, "eval", "sweep"),
        metavar="N|auto",
    )
    loader_workers: Annotated[int, Meta(ge=-1)] = key(
        -1,
        help="Number of processes that prepare batches for each training process.",
        panel=WHERE,
        default_help="none on a CPU, as many as the CPU cores allow with a GPU",
    )
    micro_batch: Count = key(
        0,
        help="Number of images per forward pass. A smaller number saves memory and gives the "
        "same gradients.",
        panel=ADVANCED,
        commands=TRAIN,
        default_help="the whole batch",
        minimum=1,
    )
    checkpoint_gradients: bool = key(
        False,
        help="Save memory: compute layers of the trunk twice instead of storing them (timm).",
        panel=ADVANCED,
        commands=TRAIN,
    )
    device: str = key(
        "auto",
        help="Device: auto, cuda, cuda:N or cpu.",
        panel=WHERE,
        commands=(*MEASURE, *MODELS, "query", "data prepare", "calibrate"),
    )
    allow_missing: bool = key(
        False,
        help="Continue without images that are missing or broken.",
        panel=DATA,
        commands=(*MEASURE, "data prepare", "calibrate"),
    )
    cache: Literal["on", "off"] = key(
        "on",
        help="Cache of decoded images: on or off. off: decode images each time.",
        panel=DATA,
        commands=MEASURE,
    )
    data_root: str = key(
        "",
        help="Folder that contains the data set.",
        panel=DATA,
        commands=(*MEASURE, *MODELS, "check", "data check", "data prepare", "calibrate"),
        variable="HARNESS_DATA",
        is_path=True,
    )
    storage: str = key(
        "",
        help="URL of a database for the trials, which several machines can share.",
        panel=WHERE,
        commands=(*SEARCH, "eval", *STUDIES),
        default_help="a file in --runs-dir",
        variable="HARNESS_STORAGE",
    )
    heartbeat: Positive = key(
        30,
        help="Seconds between two heartbeats of a worker in a database. After four missed "
        "heartbeats another worker takes over its trial.",
        panel=WHERE,
    )
    runs_dir: str = key(
        "runs",
        help="Folder for work in progress.",
        panel=OUTPUT,
        commands=(*MEASURE, *STUDIES, *MODELS),
        is_path=True,
    )
    results_dir: str = key(
        "results",
        help="Folder for records and tables.",
        panel=OUTPUT,
        commands=(
            *("eval", "sweep", "cost", "geometry", "show", "status", "report", "embed", "export"),
            "plot",
            *("compare", "leaderboard", "merge", "tables", "verdict"),
        ),
        is_path=True,
    )
    log: list[str] = key(
        list,
        help="Logger that follows the work: tensorboard, wandb, mlflow, csv, or that of a "
        "plug-in. Repeat the flag for several.",
        panel=OUTPUT,
        commands=TRAIN,
        metavar="NAME",
    )
    cache_dir: str = key(
        "~/.cache/metric-harness",
        help="Folder for cached images and features.",
        panel=DATA,
        commands=(*MEASURE, *MODELS, "data prepare", "calibrate"),
        variable="HARNESS_CACHE",
        is_path=True,
    )
    stage_to: str = key(
        "",
        help="Folder on a local disk. Cached images and features are copied to it, checked, and "
        "read from there.",
        panel=DATA,
        commands=MEASURE,
        default_help="none: read from --cache-dir",
        is_path=True,
    )

    def __post_init__(self) -> None:
        with convert_value_errors():
            convert(vars(self), _types(), "config")
        for name, about in keys().items():
            if about.is_path:
                object.__setattr__(self, name, os.path.expanduser(getattr(self, name)))
        for name, value in vars(self).items():
            if isinstance(value, str) and value != writable(value):  # YAML could not hold it
                raise HarnessError(
                    f"{name} is not UTF-8: {writable(value)}; rename the file or folder"
                )

    def updated(self, values: Mapping[str, Any]) -> RunConfig:
        """A copy with some values changed; unknown names and wrong types are refused."""
        known = keys()
        if isinstance(values.get("cache"), bool):  # YAML 1.1 reads on and off as booleans
            values = {**values, "cache": "on" if values["cache"] else "off"}
        if isinstance(values.get("log"), str):
            values = {**values, "log": values["log"].split(",")}
        for name in values:
            if name not in known:
                raise unknown("config key", name, known)
        return replace(self, **values)

    def shown(self) -> dict[str, Any]:
        """All values, without passwords."""
        return {**asdict(self), "storage": redact(self.storage)}

    def to_yaml(self) -> str:
        """All values, without passwords."""
        return yaml.safe_dump(self.shown(), sort_keys=False)


class Settings(TypedDict, total=False):
    """The fields of RunConfig except the loss, for type checkers.

    Type checkers cannot derive it from RunConfig; a test compares the two.
    """

    dataset: str
    protocol: str
    split: str
    trunk: str
    weights: str
    preset: str
    params: Mapping[str, Any]
    space: str
    trials: int
    trials_per_dimension: int
    until_flat: bool
    max_trials: int
    select: Literal["mean", "mean-se"]
    reproductions: int
    searches: int
    repeat: int
    sampler: str
    seed: int
    workers: int
    per_gpu: int | Literal["auto"]
    loader_workers: int
    micro_batch: int
    checkpoint_gradients: bool
    device: str
    allow_missing: bool
    cache: Literal["on", "off"]
    data_root: str
    storage: str
    heartbeat: int
    runs_dir: str
    results_dir: str
    log: list[str]
    cache_dir: str
    stage_to: str


@functools.cache
def keys() -> dict[str, Key]:
    """Name -> what is declared beside the field, for every config key."""
    return {one.name: one.metadata["key"] for one in fields(RunConfig)}


@functools.cache
def _types() -> Any:
    """The types of all keys, as a TypedDict, which checks plain values."""
    make: Any = TypedDict
    return make("RunConfig", get_type_hints(RunConfig, include_extras=True))


def load_config(path: Path, what: str = "config", foreign: bool = False) -> dict[str, Any]:
    """The values in a YAML file.

    Args:
        what: name of the file's kind, for messages.
        foreign: whether it was found and not named by the user, who may also give a pipe.
    """
    try:
        file = Path(os.path.expanduser(path))
        if file.is_char_device() or file.is_block_device():  # as /dev/zero, without an end
            raise HarnessError(f"cannot read {what} {path}: it is no file")
        text = read_foreign(file).decode() if foreign else file.read_text(encoding="utf-8")
    except RefusedFile as error:
        raise HarnessError(f"cannot read {what} {path}: {error}") from None
    except (OSError, RuntimeError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text in UTF-8"
        raise HarnessError(f"cannot read {what} {path}: {reason}") from None
    with convert_value_errors(f"{path} is not valid YAML"):
        values = read_yaml(text)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise HarnessError(f"{path} must hold `key: value` lines, got a {type(values).__name__}")
    for key in values:
        if not isinstance(key, str):  # as `on` and `no` are not to YAML 1.1
            raise HarnessError(f"{path}: a key is text, got {key!r}; put it in quotes")
    return values


def parse_assignments(assignments: list[str]) -> dict[str, Any]:
    """`--set key=value` flags; values read as YAML, `params.NAME=value` reaches into params."""
    values: dict[str, Any] = {}
    params: dict[str, Any] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals:
            raise HarnessError(f"--set takes key=value, got '{text}'")
        with convert_value_errors(f"--set {text}"):
            parsed = read_yaml(value) if value else ""
        if key.startswith("params."):
            params[key.removeprefix("params.")] = parsed
        elif key == "params":
            raise HarnessError(
                f"--set takes params.NAME=value, one parameter at a time, got '{text}'"
            )
        else:
            values[key] = parsed
    return {**values, "params": params} if params else values
