"""What the papers state of their experiments, one YAML file each in protocols/papers.

The name of a file is the paper's name in `harness tables`. `Paper` explains the keys of a file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.config import load_config
from harness.errors import convert_value_errors
from harness.typed import convert

FOLDER = Path(__file__).parents[1] / "protocols" / "papers"


@dataclass(frozen=True)
class Runs:
    """Experiments of a paper that share their settings.

    Attributes:
        trunk: of these runs, if it is not the protocol's.
        space: name of the search space, if it is not the usual one.
    """

    losses: tuple[str, ...]
    preset: str
    protocol: str
    datasets: tuple[str, ...]
    trunk: str = ""
    space: str = ""


@dataclass(frozen=True)
class Setting:
    """A sentence of a paper or of its code, as data.

    Attributes:
        setting: its name in words.
        says: a paraphrase of the sentence.
        source: section of the paper, or file of its code.
        value: fact of an experiment -> its value, or data set -> value. Empty: nothing that a
            configuration decides. tests/paper_facts.py lists the facts.
        runs: names of the runs that have it. Default: all.
        losses: those of them that have it. Default: all.
        but: what another source says instead.
        decision: what we follow, and why, where sources disagree or are silent.
    """

    setting: str
    says: str
    source: str
    value: dict[str, Any] = field(default_factory=dict)
    runs: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    but: str = ""
    decision: str = ""


@dataclass(frozen=True)
class Compared:
    """What differs among the points of a figure; they share everything else.

    Attributes:
        varies: fact of an experiment -> all its values. None stands for an absent parameter.
        seeds: runs of each point.
    """

    says: str
    source: str
    varies: dict[str, list[Any]]
    seeds: int = 1


@dataclass(frozen=True)
class Paper:
    """What a paper states, as its file has it.

    Attributes:
        sources: what is cited, in words.
        runs: name -> experiments.
        figures: name of a figure in protocols/figures -> what it compares.
        commands: what is shown -> the command, for experiments that are no figure.
        notes: sentences about these experiments.
        missing: what cannot be reproduced, and why.
    """

    name: str
    sources: str
    runs: dict[str, Runs]
    settings: list[Setting]
    figures: dict[str, Compared] = field(default_factory=dict)
    commands: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def load_papers() -> dict[str, Paper]:
    """Every paper by name."""
    return {path.stem: _read(path) for path in sorted(FOLDER.glob("*.yaml"))}


def _read(path: Path) -> Paper:
    """A file as a paper; unknown keys and values of a wrong type are refused."""
    values = load_config(path, "paper")
    with convert_value_errors():
        paper = convert({**values, "name": path.stem}, Paper, str(path))
        for key, type_ in (("runs", Runs), ("figures", Compared)):
            for name, entry in values.get(key, {}).items():
                convert(entry, type_, f"{path}: {key}.{name}")
        for number, entry in enumerate(values["settings"]):
            convert(entry, Setting, f"{path}: settings[{number}]")
    return paper
