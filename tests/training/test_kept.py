"""What is kept of a trained model: its weights, and the proxies that it was trained against."""

from __future__ import annotations

import pytest
import torch
from conftest import unit_of

from harness.config import RunConfig
from harness.evaluation.geometry import class_geometry
from harness.experiment import build_experiment
from harness.metrics.geometry import class_distance, covering_radius
from harness.records.layout import CHECKPOINT, PROXIES
from harness.training.embed import embed_with
from harness.training.fold import run_fold
from harness.training.unit import Unit, evaluation_loader


def unit_with(config: RunConfig, **changes: object) -> Unit:
    return unit_of(build_experiment(config.updated(changes)))


def test_the_proxies_of_the_best_model_are_kept_with_its_weights(folder_config: RunConfig) -> None:
    """Of a run with one validation the last proxies are the best ones."""
    protocol = folder_config.protocol.replace("validate_every=2", "validate_every=4")
    unit = unit_with(folder_config, loss="proxygml", protocol=protocol)
    trainer = unit.build_trainer(torch.device("cpu"))
    trainer.fit(unit.folder / CHECKPOINT, seed=unit.seed("loss"))
    last = trainer.loss.get_parameter("proxies").detach()
    (unit.folder / CHECKPOINT).unlink()
    run_fold(unit, keep_weights=True)
    assert torch.equal(unit.load_proxies()["proxies"], last)


def test_a_run_that_was_stopped_keeps_the_same_proxies(folder_config: RunConfig) -> None:
    unit = unit_with(folder_config, loss="ccp-c2")
    run_fold(unit, keep_weights=True)
    expected = unit.load_proxies()
    again = unit_with(folder_config, loss="ccp-c2", runs_dir=folder_config.runs_dir + "-again")

    def stop(fold: int, progress: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_fold(again, stop, keep_weights=True)
    run_fold(again, keep_weights=True)
    found = again.load_proxies()
    assert found.keys() == expected.keys() and "proxies" in found
    assert all(torch.equal(found[name], expected[name]) for name in found)


def test_a_loss_without_parameters_leaves_no_file(folder_config: RunConfig) -> None:
    unit = unit_with(folder_config, loss="contrastive")
    run_fold(unit, keep_weights=True)
    assert unit.load_proxies() == {} and not (unit.folder / PROXIES).exists()


def test_geometry_is_that_of_training_and_of_validation_classes(folder_config: RunConfig) -> None:
    unit = unit_with(folder_config, loss="proxyanchor")
    run_fold(unit, keep_weights=True)
    found = class_geometry(unit)
    assert list(found) == ["training", "validation"]
    experiment, device = unit.experiment, torch.device("cpu")
    indices = experiment.of_classes(unit.trainval.indices, unit.classes.val)
    loader = evaluation_loader(experiment, device)
    embeddings = embed_with(unit.load_model(device), unit.trainval, indices, loader, "l2")
    labels = torch.from_numpy(experiment.listing.labels[indices])
    assert found["validation"]["covering_radius"] == covering_radius(embeddings, labels)
    assert found["validation"]["class_distance"] == class_distance(embeddings, labels)
    assert found["training"] != found["validation"]
