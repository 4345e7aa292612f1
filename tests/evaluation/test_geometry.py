"""Classes by stage of training: CCP's instances, each with the weights that were its best."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch
from conftest import unit_of

from harness.cli import main
from harness.config import RunConfig
from harness.errors import HarnessError
from harness.evaluation.geometry import measure_stages
from harness.experiment import build_experiment
from harness.records.layout import FOLD_RECORD, LEDGER, STAGES
from harness.records.records import FoldRecord
from harness.report.stage_maps import draw_stages
from harness.training.fold import run_fold
from harness.training.stages import build_staged_trainer, read_stages
from harness.training.trial import train

# Five validations, of which each that is in vain ends an instance.
FIVE = "+max_steps=5+validate_every=1"


@pytest.fixture
def ccp(folder_config: RunConfig) -> RunConfig:
    params = {"patience": 1, "proxies_per_class": 2}
    protocol = folder_config.protocol + FIVE
    return folder_config.updated({"loss": "ccp-c2", "protocol": protocol, "params": params})


def test_other_parameters_do_not_write_over_a_table(folder_config: RunConfig) -> None:
    first = measure_stages(folder_config)
    kept = [path.read_bytes() for path in first.files]
    for params in ({"margin": 0.3}, {"margin": 0.4}):
        assert measure_stages(folder_config.updated({"params": params})).files != first.files
    assert [path.read_bytes() for path in first.files] == kept
    assert len(list(first.files[0].parent.iterdir())) == 6


def test_every_instance_has_its_best_weights_and_training_is_as_without_them(
    ccp: RunConfig, tmp_path: Path
) -> None:
    units, _ = train(ccp, count=1)
    plain = units[0].find_record()
    table = measure_stages(ccp)
    (path,) = (tmp_path / "runs" / "geometry").rglob(FOLD_RECORD)
    record = FoldRecord.read(path)
    assert plain is not None
    assert record.history == plain.history and record.hook == plain.hook
    instances = record.hook["instances"]
    assert instances > 2
    frame = table.frame
    # An instance that began with the last validation has had none.
    assert frame["stage"].tolist() == ["before", *map(str, range(1, len(frame)))]
    assert len(frame) - 1 in (instances, instances - 1)
    scores = {step: score for step, _, score in record.history}
    begun = [*record.hook["events"]["new proxies"], record.steps]
    for number, step in enumerate(frame["step"][1:]):
        own = {at: s for at, s in scores.items() if begun[number] < at <= begun[number + 1]}
        assert own[step] == max(own.values())
        measured = frame["validation_map_at_r"][number + 1]
        assert measured == pytest.approx(scores[step], abs=1e-6)
    assert frame["step"][0] == 0


def test_a_run_that_was_killed_leaves_the_same_stages(ccp: RunConfig, tmp_path: Path) -> None:
    def stages(name: str, cut: bool) -> list[tuple[int, dict[str, torch.Tensor]]]:
        unit = unit_of(build_experiment(ccp.updated({"runs_dir": str(tmp_path / name)})))

        def stop(fold: int, progress: object) -> None:
            raise KeyboardInterrupt

        if cut:
            with pytest.raises(KeyboardInterrupt):
                run_fold(unit, stop, build_trainer=build_staged_trainer)
        run_fold(unit, build_trainer=build_staged_trainer)
        return [(stage.step, stage.weights) for stage in read_stages(unit)]

    for (step, weights), (own_step, own) in zip(stages("a", True), stages("b", False), strict=True):
        assert step == own_step
        assert all(torch.equal(value, own[name]) for name, value in weights.items())


def test_the_test_classes_are_measured_only_when_asked_and_noted(
    ccp: RunConfig, tmp_path: Path
) -> None:
    table = measure_stages(ccp, folds=2)
    assert not any(column.startswith("test_") for column in table.frame)
    assert list((tmp_path / "results").rglob(LEDGER)) == []
    tested = measure_stages(ccp, folds=2, test=True)
    (ledger,) = (tmp_path / "results").rglob(LEDGER)
    assert len(ledger.read_text().splitlines()) == 2  # a line for each model
    assert tested.frame["test_covering_radius"].gt(0).all()
    assert table.files[0].exists() and table.files != tested.files
    written = pd.read_csv(tested.files[0], dtype={"stage": str})
    assert written["fold"].tolist() == tested.frame["fold"].tolist()
    assert {"params", "commit", "command"} <= set(written)


def test_a_look_at_fewer_folds_does_not_write_over_one_at_more(ccp: RunConfig) -> None:
    two, one = (measure_stages(ccp, folds=folds).files for folds in (2, 1))
    assert set(pd.read_csv(two[0])["fold"]) == {1, 2} and set(pd.read_csv(one[0])["fold"]) == {1}


def test_a_method_without_stages_has_one(ccp: RunConfig) -> None:
    frame = measure_stages(ccp.updated({"loss": "contrastive", "params": {}})).frame
    assert frame["stage"].tolist() == ["before", "1"]


def test_proxies_of_training_classes_are_pictured(ccp: RunConfig) -> None:
    flat = ccp.updated({"protocol": f"{ccp.protocol}+embedding_size=2"})
    views = measure_stages(flat, kept_part="training").views
    figure = draw_stages(views)
    before, first = figure.axes[:2]
    # Six classes of five images each, then the proxies trained and those picked next.
    assert [len(c.get_offsets()) for c in before.collections] == [5] * 6 + [12, 12]
    assert first.get_title().startswith("1: ")
    assert views[1].first is not None
    picked = before.collections[-1].get_offsets()
    assert torch.tensor(picked).tolist() == views[1].first.flatten(0, 1).tolist()


def test_the_command_writes_a_picture_of_more_dimensions(
    ccp: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--set", "params.patience=1"]
    for key in ("loss", "dataset", "protocol", "trunk", "runs_dir", "results_dir", "cache_dir"):
        flags += [f"--{key.replace('_', '-')}", str(getattr(ccp, key))]
    picture = tmp_path / "stages.svg"
    assert main(["geometry", *flags, "--picture", str(picture)]) == 0
    assert "before: " in picture.read_text()
    said = capsys.readouterr().out
    assert "validation MAP@R" in said and "stages.svg: validation classes" in said
    for wrong, message in (
        (["--of", "test", "--picture", str(picture)], "it needs --test"),
        (["--of", "tset", "--picture", str(picture)], "there are training, validation, test"),
        (["--picture", "a.gif"], "must end in .svg"),
    ):
        assert main(["geometry", *flags, *wrong]) == 2
        assert message in capsys.readouterr().err


def test_stages_that_are_gone_are_said_to_be(ccp: RunConfig, tmp_path: Path) -> None:
    measure_stages(ccp)
    for path in (tmp_path / "runs").rglob(f"{STAGES}/*.pt"):
        path.unlink()
    with pytest.raises(HarnessError, match="the weights of the stages are gone from"):
        measure_stages(ccp)
