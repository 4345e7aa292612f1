"""Journals and configs of searches that somebody damaged: shown, gone on with, or refused."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
from conftest import FOLDER, write_images
from ends import cases, run, unchanged
from hypothesis import given
from hypothesis import strategies as st
from mutations import damaged_jsonl, damaged_yaml
from optuna.trial import TrialState

from harness.config import RunConfig
from harness.errors import HarnessError
from harness.experiment import Experiment, build_experiment
from harness.records.layout import CONFIG, JOURNAL
from harness.searching.study import Study
from harness.system.files import write_text


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    root = tmp_path_factory.mktemp("fuzz")
    write_images(root / "pictures", per_class=2)
    config = RunConfig(
        loss="proxyanchor",
        dataset=f"folder:{root / 'pictures'}",
        protocol=FOLDER,
        trunk="convnet",
        trials=6,
        sampler="random",
        runs_dir=str(root / "runs"),
        cache_dir=str(root / "cache"),
    )
    return build_experiment(config)


@pytest.fixture(scope="module")
def searched(experiment: Experiment) -> Path:
    """The folder of a search with trials that ended in every way there is."""
    study = Study(experiment, "d1")
    with study.storage.joined() as worker:
        for folds in ([0.1, 0.2, 0.3, 0.4], [0.2, 0.3, 0.4, 0.5]):
            claim = study.claim(worker)
            assert claim is not None
            study.finish(claim, TrialState.COMPLETE, sum(folds) / 4, folds=folds, seconds=2.0)
        for reason in ("no [good]", "nan"):
            claim = study.claim(worker)
            assert claim is not None
            study.finish(claim, TrialState.FAIL, reason=reason)
        study.claim(worker)
    write_text(study.folder / CONFIG, experiment.config.to_yaml())
    shutil.copytree(study.folder, _intact(study.folder))
    return study.folder


def _intact(folder: Path) -> Path:
    return folder.parents[3] / "intact"


def _restore(folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(_intact(folder), folder)


@cases(0.08)
@given(data=st.data())
def test_a_damaged_journal_is_gone_on_with_or_refused(
    data: st.DataObject,
    experiment: Experiment,
    searched: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _restore(searched)
    path = searched / JOURNAL
    path.write_bytes(data.draw(damaged_jsonl(path.read_bytes())))
    damaged = path.read_bytes()
    caplog.clear()
    caplog.set_level(logging.WARNING)
    try:
        study = Study(experiment, "d1")
        with study.storage.joined() as worker:
            claim = study.claim(worker)
            if claim is not None:
                study.finish(claim, TrialState.COMPLETE, 0.5, folds=[0.5] * 4, seconds=1.0)
        study.counted()
        study.best()
    except HarnessError as refused:
        assert str(refused).strip()
    kept = searched / "study.damaged.journal"
    if kept.exists():
        assert damaged.startswith(kept.read_bytes())
        assert str(path) in caplog.text


@pytest.mark.parametrize("command", ["show", "retry"])
@cases(0.015)
@given(data=st.data())
def test_a_command_on_a_damaged_search_ends_with_a_message(
    data: st.DataObject, command: str, experiment: Experiment, searched: Path
) -> None:
    _restore(searched)
    name = data.draw(st.sampled_from([JOURNAL, JOURNAL, CONFIG]))
    damage = damaged_jsonl if name == JOURNAL else damaged_yaml
    path = searched / name
    path.write_bytes(data.draw(damage(path.read_bytes())))
    ours = () if command == "show" else ("study*.journal",)
    with unchanged(searched, *ours):
        run([command, "--runs-dir", experiment.config.runs_dir]).check()
