"""No leak: a whole search passes although opening any test file raises."""

from __future__ import annotations

import builtins
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from conftest import identity_of

from harness import registry
from harness.config import RunConfig
from harness.data.sources import open_part
from harness.errors import HarnessError
from harness.evaluation.reproductions import evaluate
from harness.experiment import build_experiment
from harness.records.layout import LEDGER
from harness.searching.loop import search
from harness.system.files import read_json

FROZEN_FOLDER = "frozen+batch_size=8+crop=12+max_steps=4+resize=16+validate_every=2"
PAIRS_FOLDER = FROZEN_FOLDER.replace("frozen", "frozen-pairs")


@pytest.fixture
def folder_config(folder_config: RunConfig) -> RunConfig:
    return folder_config.updated({"trials": 2})


@pytest.fixture
def guard(folder_config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Makes opening a file of a test class raise; returns the files that were opened."""
    split = build_experiment(folder_config).split
    forbidden = {f"class_{label:02d}" for label in split.test}
    assert len(forbidden) == 8
    opened: list[str] = []

    def guarded(original: Any) -> Any:
        def opening(path: Any, *arguments: Any, **options: Any) -> Any:
            if isinstance(path, str | bytes | os.PathLike):
                name = os.fsdecode(path)
                if Path(name).parent.name in forbidden:
                    raise AssertionError(f"test image opened: {name}")
                opened.append(name)
            return original(path, *arguments, **options)

        return opening

    monkeypatch.setattr(builtins, "open", guarded(builtins.open))
    monkeypatch.setattr(io, "open", guarded(io.open))
    monkeypatch.setattr(os, "open", guarded(os.open))
    return opened


def test_search_never_opens_a_test_image(folder_config: RunConfig, guard: list[str]) -> None:
    summary = search([folder_config])[0]
    assert summary.trials == 2
    # The guard saw the training images, so it would have seen the others.
    assert any(Path(name).parent.name == "class_00" for name in guard)


@pytest.mark.parametrize(
    "values",
    [{"protocol": FROZEN_FOLDER}, {"cache": "off"}, {"protocol": PAIRS_FOLDER}],
    ids=["frozen", "without cache", "pairs with finalists"],
)
def test_no_other_way_of_searching_opens_a_test_image(
    folder_config: RunConfig, guard: list[str], values: dict[str, str]
) -> None:
    summary = search([folder_config.updated(values)])[0]
    assert summary.trials == 2
    assert any(Path(name).parent.name == "class_00" for name in guard)


def test_the_guard_catches_evaluation(folder_config: RunConfig, guard: list[str]) -> None:
    search([folder_config])
    with pytest.raises(AssertionError, match="test image opened"):
        evaluate([], {"runs_dir": folder_config.runs_dir, "reproductions": 1, "workers": 1})


def test_every_opening_of_the_test_classes_is_in_the_ledger(folder_config: RunConfig) -> None:
    search([folder_config])
    values = {
        "runs_dir": folder_config.runs_dir,
        "results_dir": folder_config.results_dir,
        "reproductions": 2,
        "workers": 1,
    }
    table = evaluate([], values).tables[0]
    lines = (table / LEDGER).read_text().splitlines()
    assert len(lines) == len(list(table.glob("records/*/*.json"))) == 2 + 2 + 1
    evaluate([], values)  # nothing left to do, so nothing is opened
    assert (table / LEDGER).read_text().splitlines() == lines


def test_a_folder_has_its_own_table_and_the_replaced_folds_in_its_name(
    folder_config: RunConfig, image_folder: Path
) -> None:
    experiment = build_experiment(folder_config)
    assert experiment.table.name == "folder_pictures-convnet"
    assert experiment.protocol.folds == "mlrc"
    extra = image_folder / "class_99"
    extra.mkdir()
    (image_folder / "class_00" / "0.png").rename(extra / "0.png")
    registry.forget_listings()
    odd = build_experiment(folder_config)
    assert odd.listing.num_classes == 17
    assert "+folds=balanced" in odd.protocol.name


def test_too_few_classes_are_refused(folder_config: RunConfig, image_folder: Path) -> None:
    for label in range(4):
        for path in (image_folder / f"class_{label:02d}").iterdir():
            path.unlink()
    with pytest.raises(HarnessError, match="at least 8 classes to train and validate on, got 6"):
        build_experiment(folder_config)


def test_no_image_of_a_fold_is_on_both_sides(folder_config: RunConfig) -> None:
    experiment = build_experiment(folder_config)
    indices, test = (open_part(experiment, part).indices for part in ("trainval", "test"))
    for fold in experiment.split.folds:
        train, val = (set(experiment.of_classes(indices, c)) for c in (fold.train, fold.val))
        assert train and val and not train & val and not (train | val) & set(test)


def test_no_model_of_a_search_by_pairs_or_of_its_finalists_sees_a_test_class(
    folder_config: RunConfig,
) -> None:
    experiment = build_experiment(folder_config.updated({"protocol": PAIRS_FOLDER}))
    assert len(experiment.partitions) == 3
    test = set(experiment.split.test)
    for partition in experiment.partitions:
        for model, fold in enumerate(partition.folds):
            embedded = set(partition.embedded_by(model))
            assert not test & {*fold.train, *fold.val, *embedded}
            assert not set(fold.train) & ({*fold.val} | embedded)


def test_the_fingerprint_of_a_search_does_not_depend_on_test_images(
    folder_config: RunConfig, image_folder: Path
) -> None:
    before = identity_of(build_experiment(folder_config))
    (image_folder / "class_15" / "0.png").write_bytes(b"something else")
    assert identity_of(build_experiment(folder_config)) == before
    (image_folder / "class_00" / "0.png").write_bytes(
        (image_folder / "class_00" / "1.png").read_bytes()
    )
    assert identity_of(build_experiment(folder_config)) != before


def test_records_name_the_split_and_the_data(folder_config: RunConfig) -> None:
    search([folder_config])
    experiment = build_experiment(folder_config)
    record = read_json(next(experiment.runs.glob("folds/*/record.json")))
    assert record["identity"] == json.loads(json.dumps(identity_of(experiment)))


def test_the_images_of_each_class_are_those_found_one_class_at_a_time(
    folder_config: RunConfig,
) -> None:
    experiment = build_experiment(folder_config)
    indices, classes = open_part(experiment, "trainval").indices, experiment.split.folds[1].train
    together = [members.tolist() for members in experiment.by_class(indices, classes)]
    assert together == [experiment.of_classes(indices, (label,)) for label in classes]
    assert all(len(members) == 5 for members in together)
