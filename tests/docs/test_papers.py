"""docs/papers.md: presets stand there with their protocols, and each command can be run."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import typer
from dataset_files import without_files
from documents import ROOT, commands_in, flags_in

from docs.papers_page import page
from harness import registry
from harness.cli import app
from harness.cli.options import Given, read_values
from harness.config import RunConfig
from harness.evaluation.fixed import fixed_config, is_fixed
from harness.evaluation.geometry import PARTS
from harness.experiment import Experiment, build_experiment, check_validated
from harness.metrics.names import is_metric, parse_metrics
from harness.report.figures import FIGURES as PLOTS
from harness.sweeping.axes import config_at, parse_axis, parse_variant
from harness.sweeping.figure_sweep import build_sweep
from harness.sweeping.paper_figures import find_figure
from harness.sweeping.paper_settings import load_papers
from harness.sweeping.run import Sweep

DOCUMENT = ROOT / "docs" / "papers.md"
PAGE = DOCUMENT.read_text()
EXPERIMENTS = PAGE.partition("## Every experiment")[2].partition("## What the papers state")[0]
CLI: Any = typer.main.get_command(app)
COMMANDS = [line for line in dict.fromkeys(commands_in(DOCUMENT)) if " " in line[8:]]
OF_PAPERS = [
    (method.name, preset, method.preset(preset, "cub").belongs_to)
    for method in registry.items("loss").values()
    for preset in method.presets
    if method.preset(preset, "cub").belongs_to
]


def test_the_page_is_made_from_the_papers_settings() -> None:
    """If not: make papers."""
    made = page()
    assert made == PAGE
    for paper in load_papers().values():
        told = [one.setting for one in paper.settings if one.value]
        assert told and all(f"| {name} | " in PAGE for name in told)


def rows() -> list[tuple[set[str], set[str], set[str]]]:
    """Losses, presets and protocols of each row; `the same` repeats the cell above."""
    found: list[tuple[set[str], set[str], set[str]]] = []
    section = PAGE.partition("## Presets and their protocols")[2].partition("\n## ")[0]
    for line in re.findall(r"^\| (?:`|the same).*$", section, flags=re.MULTILINE):
        cells = [cell.strip() for cell in line.strip("|").split("|")][:3]
        parts = [
            found[-1][i] if cell == "the same" else set(re.findall(r"`([^`]+)`", cell))
            for i, cell in enumerate(cells)
        ]
        found.append((parts[0], parts[1], parts[2]))
    return found


@pytest.mark.parametrize(("loss", "preset", "protocols"), OF_PAPERS)
def test_a_preset_stands_there_with_its_protocols(
    loss: str, preset: str, protocols: tuple[str, ...]
) -> None:
    named = {
        p for losses, presets, own in rows() if loss in losses and preset in presets for p in own
    }
    assert set(protocols) <= named


def test_every_protocol_that_stands_there_exists() -> None:
    for _, _, protocols in rows():
        for name in protocols:
            registry.load_protocol(name, "cub")


def parsed(line: str) -> tuple[str, dict[str, Any]]:
    """A command and what its flags say; FILE is what a user puts there."""
    _, name, *words = shlex.split(line.replace(" --split FILE", ""))
    return name, flags_in(CLI.commands[name], name, words)


def experiments(line: str) -> list[Experiment]:
    """All that a command would train or test, built as the command does it."""
    name, flags = parsed(line)
    if name not in ("search", "train", "eval", "sweep", "cost", "geometry"):
        return []
    values = read_values(None, flags["set_"], flags)
    named = [*(flags["loss"] or []), *(flags["more"] or [])]
    losses = [loss for loss in named if not is_metric(loss)]
    if name == "sweep":
        configs = points_of(flags, values, losses)
    elif name == "eval" and is_fixed(values):
        configs = [fixed_config(loss, values) for loss in losses]
    else:
        configs = Given(losses, values).configs
    made = [build_experiment(config) for config in configs]
    if name in ("search", "train", "cost", "geometry"):
        for one in made:
            check_validated(one)
    return made


def points_of(flags: dict[str, Any], values: Any, losses: list[str]) -> list[RunConfig]:
    seeds, axes = flags["seeds"], [parse_axis(text) for text in flags["over"] or []]
    if flags["figure"]:
        figure = find_figure(flags["figure"])
        asked = build_sweep(figure, values, axes, flags["quick"], flags["test"], seeds)
    else:
        variants = dict(parse_variant(text) for text in flags["variant"] or [])
        asked = Sweep(losses, axes, values, variants, seeds=seeds)
    return [
        config_at(asked.config, {k: v for k, v in changes.items() if k != "loss"}).updated(
            {"loss": changes["loss"]}
        )
        for _, changes in asked.points()
    ]


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_builds_its_experiments(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without_files(monkeypatch)
    name, flags = parsed(line)
    made = experiments(line)
    assert made or name in ("plot", "report", "list")
    for one in made:
        classes, params = one.split.folds[0].train, one.published_params
        hierarchy = one.hierarchy_of(classes)
        one.method.make_loss(len(classes), one.protocol.embedding_size, params, hierarchy)
        one.method.make_hook(params)
    parse_metrics(flags.get("metrics") or [])
    assert flags.get("of", PARTS[0]) in PARTS
    assert name != "plot" or flags["figure"] in (*PLOTS, "moons")


def test_pictures_are_of_tables_that_another_command_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    without_files(monkeypatch)
    tested = [
        (one.protocol.name, one.dataset_label, one.method.name)
        for line in COMMANDS
        if line.startswith("harness eval ")
        for one in experiments(line)
    ]
    tables = {f"{protocol}/{dataset}-" for protocol, dataset, _ in tested}
    shown = 0
    for name, flags in map(parsed, COMMANDS):
        if name == "report":
            assert all(any(part in table for table in tables) for part in flags["tables"])
            shown += 1
        elif name == "plot" and flags["figure"] in PLOTS:
            assert f"{flags['protocol']}/{flags['dataset']}-" in tables
            rows = [row for protocol, dataset, row in tested if protocol == flags["protocol"]]
            assert set(flags["method"] or []) <= set(rows)
            shown += 1
    assert shown >= 4


def test_every_experiment_has_a_command() -> None:
    rows = [line for line in EXPERIMENTS.splitlines() if line.startswith("| ")]
    rows = [row for row in rows if not row.startswith("| what |")]
    assert len(rows) > 35
    assert [row for row in rows if "`harness " not in row] == []
