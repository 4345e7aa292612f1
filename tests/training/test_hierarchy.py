"""Superclasses of a data set reach the loss; what a method changes of its parameters is kept."""

from __future__ import annotations

import pytest
import torch
from conftest import unit_of

from harness.config import RunConfig
from harness.errors import HarnessError
from harness.experiment import build_experiment
from harness.records.records import FoldRecord
from harness.training.trial import train


def test_the_superclasses_of_the_training_classes_reach_the_loss(config: RunConfig) -> None:
    experiment = build_experiment(config.updated({"loss": "hpl-nca-gt"}))
    unit = unit_of(experiment, fold=1)
    scripts = experiment.listing.superclasses
    assert scripts is not None
    own = [scripts[label] for label in unit.classes.train]
    (_,), (record,) = train(config.updated({"loss": "hpl-nca-gt"}), count=1)
    found = {scripts[label] for label in experiment.split.folds[0].train}
    assert record.adjusted["num_coarse"]["used"] == len(found)
    loss = unit.build_trainer(torch.device("cpu")).loss
    assigned = loss.get_buffer("assign_1").tolist()
    assert len(assigned) == len(own)
    for one, other in zip(range(len(own)), reversed(range(len(own))), strict=True):
        assert (assigned[one] == assigned[other]) == (own[one] == own[other])


def test_a_data_set_without_superclasses_is_refused_before_training(
    folder_config: RunConfig,
) -> None:
    with pytest.raises(HarnessError, match="needs a data set that has superclasses"):
        train(folder_config.updated({"loss": "hpl-pa-gt"}))


def test_a_record_says_what_was_used_and_older_ones_are_read(folder_config: RunConfig) -> None:
    config = folder_config.updated({"loss": "hpl-pa", "params": {"num_coarse": 500}})
    (unit,), (record,) = train(config, count=1)
    note = {"given": 500, "used": 3, "reason": "at most half of the 6 classes"}
    assert record.params["num_coarse"] == 500
    assert record.adjusted == {"num_coarse": note}
    assert record.facts(scored=True)["adjusted"] == {"num_coarse": note}
    read = unit.find_record()
    assert isinstance(read, FoldRecord) and read.adjusted == record.adjusted
    plain = folder_config.updated({"loss": "contrastive"})
    (_,), (other,) = train(plain, count=1)
    assert other.adjusted == {} and "adjusted" not in other.facts(scored=True)
