"""RunConfig: everything a command can be told, as one frozen dataclass, in and out of YAML."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import yaml
from msgspec import Meta

from harness.errors import HarnessError, refusing, unknown
from harness.foreign_files import RefusedFile, read_foreign
from harness.plain_text import writable
from harness.plain_yaml import read_yaml
from harness.redact import redact
from harness.typed import convert


def _default_cache() -> str:
    return os.environ.get("HARNESS_CACHE") or str(Path.home() / ".cache" / "metric-harness")


Count = Annotated[int, Meta(ge=0)]

# Settings that are, or may be, files and folders: ~ is the home of the user.
PATHS = ("loss", "split", "weights", "data_root", "runs_dir", "results_dir", "cache_dir")


class Settings(TypedDict, total=False):
    """The fields of RunConfig but the loss, for functions that take them by name."""

    dataset: str
    protocol: str
    split: str
    trunk: str
    weights: str
    preset: str
    params: Mapping[str, Any]
    space: str
    trials: Count
    trials_per_dimension: Count
    until_flat: bool
    max_trials: Annotated[int, Meta(ge=1)]
    select: Literal["mean", "mean-se"]
    reproductions: Count
    sampler: str
    seed: Count
    workers: Count
    per_gpu: Annotated[int, Meta(ge=1)] | Literal["auto"]
    loader_workers: Annotated[int, Meta(ge=-1)]
    micro_batch: Count
    checkpoint_gradients: bool
    device: str
    allow_missing: bool
    cache: Literal["on", "off"]
    data_root: str
    storage: str
    heartbeat: Annotated[int, Meta(ge=1)]
    runs_dir: str
    results_dir: str
    cache_dir: str


class _Fields(Settings):
    loss: str


@dataclass(frozen=True)
class RunConfig:
    """What to run, on what, and where to put it.

    Attributes:
        loss: name or Python file; empty where a command takes all.
        dataset: name, or folder:PATH.
        protocol: name, with changes if any: mlrc+batch_size=64.
        split: file of class lists, instead of the protocol's split.
        trunk: empty takes the protocol's.
        weights: of the trunk: empty takes its own, none starts from random ones; or a file.
        preset: whose published parameters are the first trial.
        params: parameters that are fixed instead of searched.
        space: empty searches the method's own; "paper" the one that its paper searched.
        trials, reproductions: 0 takes the protocol's.
        trials_per_dimension: of the space, instead of a number of trials.
        until_flat: go on while the last fifth of the trials brought something, up to max_trials.
        select: which trial eval takes: the best "mean" over the folds, or "mean-se", the mean less
            its standard error.
        sampler: empty takes the method's: gp, tpe, random or grid.
        seed: of the study and of every run in it.
        workers: processes; 0 is per_gpu for each GPU, or one per core on a CPU.
        per_gpu: workers that share a card; "auto" is as many as its memory and the cores allow
            where the model is too small to fill it, else one.
        loader_workers: processes that prepare batches for one training process; -1 is none on a
            CPU, and beside a GPU as many as the cores allow.
        micro_batch: images that pass the trunk together, for the same gradients in less memory; 0
            is the whole batch.
        checkpoint_gradients: compute layers of the trunk again instead of keeping them (timm).
        allow_missing: go on without images that are missing or broken.
        cache: on keeps decoded images, off decodes them every time.
        storage: URL of a database that keeps the studies; empty is a journal in the run directory.
        heartbeat: seconds between signs of life of a worker in a database; after four that are
            missed, its trial is another's.
    """

    loss: str = ""
    dataset: str = "glyphs"
    protocol: str = "mlrc"
    split: str = ""
    trunk: str = ""
    weights: str = ""
    preset: str = "mlrc"
    params: Mapping[str, Any] = field(default_factory=dict)
    space: str = ""
    trials: int = 0
    trials_per_dimension: int = 0
    until_flat: bool = False
    max_trials: int = 200
    select: Literal["mean", "mean-se"] = "mean"
    reproductions: int = 0
    sampler: str = ""
    seed: int = 0
    workers: int = 0
    per_gpu: int | Literal["auto"] = 1
    loader_workers: int = -1
    micro_batch: int = 0
    checkpoint_gradients: bool = False
    device: str = "auto"
    allow_missing: bool = False
    cache: Literal["on", "off"] = "on"
    data_root: str = field(default_factory=lambda: os.environ.get("HARNESS_DATA", ""))
    storage: str = field(default_factory=lambda: os.environ.get("HARNESS_STORAGE", ""))
    heartbeat: int = 30
    runs_dir: str = "runs"
    results_dir: str = "results"
    cache_dir: str = field(default_factory=_default_cache)

    def __post_init__(self) -> None:
        with refusing():
            convert(vars(self), _Fields, "config")
        for name in PATHS:
            object.__setattr__(self, name, os.path.expanduser(getattr(self, name)))
        for name, value in vars(self).items():
            if isinstance(value, str) and value != writable(value):  # it could not be kept
                raise HarnessError(
                    f"{name} is not UTF-8: {writable(value)}; rename the file or folder"
                )

    def updated(self, values: Mapping[str, Any]) -> RunConfig:
        """A copy with some values changed; unknown names and wrong types are refused."""
        known = [f.name for f in fields(RunConfig)]
        if isinstance(values.get("cache"), bool):  # as YAML 1.1 reads on and off
            values = {**values, "cache": "on" if values["cache"] else "off"}
        for key in values:
            if key not in known:
                raise unknown("config key", key, known)
        return replace(self, **values)

    def to_yaml(self) -> str:
        """What is written down: everything but passwords."""
        values = {**asdict(self), "storage": redact(self.storage)}
        return yaml.safe_dump(values, sort_keys=False)


def load_config(path: Path, what: str = "config", foreign: bool = False) -> dict[str, Any]:
    """The values in a YAML file.

    Args:
        what: name of the file's kind, for messages.
        foreign: whether it was found and not named by the user, who may also give a pipe.
    """
    try:
        file = path.expanduser()
        if file.is_char_device() or file.is_block_device():  # as /dev/zero, without an end
            raise HarnessError(f"cannot read {what} {path}: it is no file")
        text = read_foreign(file).decode() if foreign else file.read_text(encoding="utf-8")
    except RefusedFile as error:
        raise HarnessError(f"cannot read {what} {path}: {error}") from None
    except (OSError, RuntimeError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text in UTF-8"
        raise HarnessError(f"cannot read {what} {path}: {reason}") from None
    with refusing(f"{path} is not valid YAML"):
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
        with refusing(f"--set {text}"):
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
