"""The papers' settings: every preset, protocol and figure trains with what its paper states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dataset_files import without_files
from paper_facts import (
    Checked,
    Facts,
    compared,
    differences,
    differing,
    experiments_of,
    facts_of,
    is_of,
    points_of,
)

from harness import registry
from harness.errors import HarnessError
from harness.experiment import Experiment
from harness.records.published import PAPERS as TITLES
from harness.sweeping import paper_settings
from harness.sweeping.figure_sweep import build_sweep
from harness.sweeping.paper_figures import load_figures
from harness.sweeping.paper_settings import Compared, Setting, load_papers

PAPERS, FIGURES = load_papers(), load_figures()
SETTINGS = [(name, one) for name, paper in PAPERS.items() for one in paper.settings]
COMPARED = [(name, one) for paper in PAPERS.values() for name, one in paper.figures.items()]

# Not of a paper that is told here: where a search begins, and what we found.
OURS = ("mlrc", "ours")

pytestmark = pytest.mark.filterwarnings("ignore:ratio=.* of 40 x:UserWarning")


@pytest.fixture(scope="module", autouse=True)
def nothing_is_read() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        without_files(patch)
        yield


@pytest.fixture(scope="module")
def points() -> dict[str, list[tuple[Experiment, Facts]]]:
    """Figure -> every point."""
    return {
        name: [(made, facts_of(made)) for made in points_of(figure)]
        for name, figure in FIGURES.items()
    }


@pytest.fixture(scope="module")
def checked(points: dict[str, list[tuple[Experiment, Facts]]]) -> dict[str, list[Checked]]:
    """Paper -> its runs, and the points of its figures that belong to them."""
    found: dict[str, list[Checked]] = {}
    for name, paper in PAPERS.items():
        found[name] = [
            Checked(made, facts_of(made), frozenset([run]))
            for run, runs in paper.runs.items()
            for made in experiments_of(runs)
        ]
        for figure, stated in paper.figures.items():
            for made, facts in points[figure]:
                of = frozenset(run for run, runs in paper.runs.items() if is_of(made, runs))
                if of:
                    found[name].append(Checked(made, facts, of, frozenset(stated.varies)))
    return found


@pytest.mark.parametrize(
    ("paper", "setting"), SETTINGS, ids=lambda one: getattr(one, "setting", one)
)
def test_experiments_have_the_settings_of_their_paper(
    paper: str, setting: Setting, checked: dict[str, list[Checked]]
) -> None:
    assert list(differences(setting, checked[paper])) == []


@pytest.mark.parametrize(
    ("figure", "stated"), COMPARED, ids=lambda one: one if isinstance(one, str) else ""
)
def test_points_of_a_figure_share_all_that_its_paper_does_not_vary(
    figure: str, stated: Compared, points: dict[str, list[tuple[Experiment, Facts]]]
) -> None:
    assert list(compared(stated.varies, differing(points[figure]))) == []
    assert build_sweep(FIGURES[figure]).seeds == stated.seeds


def others(value: Any) -> Iterator[Any]:
    """The value with each part of it changed in turn."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from ({**value, key: other} for other in others(part))
    elif isinstance(value, list):
        for place, part in enumerate(value):
            for other in others(part):
                yield [*value[:place], other, *value[place + 1 :]]
    elif isinstance(value, bool):
        yield not value
    else:
        yield "other" if value is None or isinstance(value, str) else value + 0.5


def test_a_setting_with_another_value_is_found(checked: dict[str, list[Checked]]) -> None:
    changed = 0
    for paper, setting in SETTINGS:
        for value in others(setting.value):
            found = list(differences(replace(setting, value=value), checked[paper]))
            assert found, (paper, setting.setting, value)
            changed += 1
    assert changed > 600


def test_a_figure_that_varies_something_else_is_found(
    points: dict[str, list[tuple[Experiment, Facts]]],
) -> None:
    changed = 0
    for figure, stated in COMPARED:
        found = differing(points[figure])
        fewer = [{k: v for k, v in stated.varies.items() if k != left_out} for left_out in found]
        for varies in (*fewer, {**stated.varies, "threads": [1, 2]}, *others(stated.varies)):
            assert list(compared(varies, found)), (figure, varies)
            changed += 1
    assert changed > 250


def test_every_preset_protocol_and_figure_of_a_paper_is_told() -> None:
    runs = [runs for paper in PAPERS.values() for runs in paper.runs.values()]
    told = {(loss, one.preset, one.protocol) for one in runs for loss in one.losses}
    presets = {
        (method.name, name, protocol)
        for method in registry.items("loss").values()
        for name in method.presets
        for protocol in method.preset(name, "cub").belongs_to[:1] or ("mlrc",)
        if name not in OURS
    }
    # Superclasses are those of SOP and iNaturalist; other memories and bases are told with C2's.
    assert presets - told == set()
    # A classic protocol, or a variant of the reality check, is that of a paper.
    of_papers = {
        n for n in registry.names("protocol") if n.startswith(("classic", "mlrc", "abl", "two"))
    }
    assert of_papers - {one.protocol for one in runs} == {"mlrc-pairs"}
    assert sorted(name for name, _ in COMPARED) == sorted(FIGURES)
    assert set(TITLES) <= set(PAPERS)  # of the others there are no published numbers yet
    for name, paper in PAPERS.items():
        assert {FIGURES[figure].paper for figure in paper.figures} <= {name}


def test_sources_that_disagree_have_a_decision_and_so_has_silence() -> None:
    for paper, setting in SETTINGS:
        assert setting.says and setting.source
        if setting.but or setting.source == "none":
            assert setting.decision, (paper, setting.setting)


PAPER = """
sources: a paper
runs: {all: {losses: [c2], preset: paper, protocol: mlrc-ccp, datasets: [cub]}}
settings: [{setting: rate, value: {rate.trunk: 1.0e-5}, source: section 1, says: A rate.}]
figures: {one: {source: Fig. 1, says: A figure., varies: {batch_size: [1, 2]}}}
"""


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("sources:", "source:", "no field named 'source'. Did you mean 'sources'?"),
        ("cub]}", "cub], trunks: a}", "runs.all: no field named 'trunks'. Did you mean 'trunk'?"),
        ("says: A rate.", "says: A rate., run: [all]", "settings[0]: no field named 'run'"),
        ("says: A rate.", "say: A rate.", "lacks field 'settings[0].says'"),
        ("{rate.trunk: 1.0e-5}", "fast", "value' takes a mapping"),
        ("A figure.,", "A figure., seed: 2,", "figures.one: no field named 'seed'"),
        ("losses: [c2]", "losses: c2", "takes a list"),
    ],
)
def test_what_is_wrong_in_a_file_is_refused_by_file_and_key(
    old: str, new: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paper_settings, "FOLDER", tmp_path)
    file = tmp_path / "mine.yaml"
    file.write_text(PAPER)
    assert list(load_papers()) == ["mine"]
    file.write_text(PAPER.replace(old, new))
    with pytest.raises(HarnessError) as refused:
        load_papers()
    assert str(refused.value).startswith(str(file)) and problem in str(refused.value)
