"""The papers' sweeps and ablations, one YAML file each in protocols/figures.

The name of a figure is the name of its file. `PaperFigure` explains the keys of a file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.config import load_config
from harness.errors import HarnessError, convert_value_errors, unknown
from harness.typed import convert

FOLDER = Path(__file__).parents[1] / "protocols" / "figures"


@dataclass(frozen=True)
class ReadOff:
    """Numbers of a plot or a slide.

    Attributes:
        at: axis or `variant` -> the value of all numbers, or a list with one value per number.
        scores: metric, for four-fold protocols followed by the embedding -> numbers in percent.
    """

    at: dict[str, Any]
    scores: dict[str, list[float]]


@dataclass(frozen=True)
class TableRows:
    """Rows of one of the paper's tables in results/published.

    Attributes:
        file: file name there.
        table: number of the table, as in the column `table`.
        rows: method, as in the column `method`, or with its size, such as "ProxyNCA++ (512-d)" ->
            values of its point. Default: every variant is called what the table calls it.
    """

    file: str
    table: str
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    metrics: tuple[str, ...] = ("recall_at_1",)


@dataclass(frozen=True)
class PaperFigure:
    """One figure or table of a paper, as its file describes it.

    Attributes:
        name: name of the file.
        paper: a name that `harness tables` knows.
        source: number of the figure or table.
        summary: what it shows.
        cost: points, seeds and steps.
        expected: what the paper reports, in one or two sentences.
        dataset, protocol: those of the paper.
        losses: each is trained at every point, unless a variant names its loss.
        settings: config values that all points share.
        axes: what varies -> a list of values, or a range such as 1..30.
        changes: named settings that variants are composed of.
        variants: name -> settings, or a list of settings and of names in `changes`.
        test: whether the paper reports scores on the test classes.
        seeds: runs of each point.
        metrics: metrics on the test classes, in addition to those of every test.
        read_off, tables: the paper's numbers.
    """

    name: str
    paper: str
    source: str
    summary: str
    cost: str
    expected: str
    dataset: str
    protocol: str
    losses: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    axes: dict[str, list[Any] | str] = field(default_factory=dict)
    changes: dict[str, dict[str, Any]] = field(default_factory=dict)
    variants: dict[str, dict[str, Any] | list[str | dict[str, Any]]] = field(default_factory=dict)
    test: bool = True
    seeds: int = 1
    metrics: tuple[str, ...] = ()
    read_off: list[ReadOff] = field(default_factory=list)
    tables: list[TableRows] = field(default_factory=list)

    @property
    def path(self) -> Path:
        """The file of this figure."""
        return FOLDER / f"{self.name}.yaml"


def load_figures() -> dict[str, PaperFigure]:
    """Every figure by name."""
    return {path.stem: _read(path) for path in sorted(FOLDER.glob("*.yaml"))}


def find_figure(name: str) -> PaperFigure:
    """The figure with a name; raises HarnessError if there is none."""
    paths = {path.stem: path for path in FOLDER.glob("*.yaml")}
    if name not in paths:
        raise unknown("figure", name, paths, "`harness list figures` describes each of them")
    return _read(paths[name])


def _read(path: Path) -> PaperFigure:
    """A file as a figure; unknown keys and values of a wrong type are refused."""
    values = load_config(path, "figure")
    if "name" in values:
        raise HarnessError(f"{path}: the file's name is the figure's name; remove the key 'name'")
    with convert_value_errors():
        figure = convert({**values, "name": path.stem}, PaperFigure, str(path))
        for key, type_ in (("read_off", ReadOff), ("tables", TableRows)):
            for number, entry in enumerate(values.get(key, [])):
                convert(entry, type_, f"{path}: {key}[{number}]")
    return figure
