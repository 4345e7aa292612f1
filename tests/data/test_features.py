"""The frozen track: features computed once, kept apart by part, and a head that trains on them."""

from __future__ import annotations

import shutil
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import unit_of

from harness.config import RunConfig
from harness.data import sources
from harness.data.features import Features
from harness.data.sources import open_images, open_part
from harness.errors import HarnessError
from harness.evaluation.reproductions import evaluate
from harness.experiment import Experiment
from harness.model.build import build_trunk
from harness.model.network import FrozenTrunk
from harness.searching.loop import search
from harness.tables.leaderboard import build
from harness.training.fold import run_fold
from harness.training.trainer import Progress

FROZEN = "frozen+max_steps=6+validate_every=3"


@pytest.fixture
def experiment(make_experiment: Callable[..., Experiment]) -> Experiment:
    return make_experiment(protocol=FROZEN)


@pytest.fixture
def uncached(make_experiment: Callable[..., Experiment], tmp_path: Path) -> Experiment:
    return make_experiment(protocol=FROZEN, cache_dir=str(tmp_path / "cache"))


def test_features_are_the_pooled_output_of_the_trunk_in_inference_mode(
    experiment: Experiment, make_experiment: Callable[..., Experiment]
) -> None:
    source = open_part(experiment, "trainval")
    trunk = build_trunk(experiment, experiment.seed("init", fold=0, repetition=0)).eval()
    chosen = source.indices[5:400:37]
    images = open_part(make_experiment(protocol="mlrc"), "trainval")
    with torch.no_grad():
        expected = trunk(images.for_evaluation(chosen))
    assert torch.allclose(source.for_evaluation(chosen), expected, atol=1e-5)
    assert torch.equal(
        source.for_training(chosen, np.random.default_rng(0)), source.for_evaluation(chosen)
    )


def test_features_are_found_by_listing_index() -> None:
    values = np.arange(8, dtype=np.float32).reshape(4, 2)
    features = Features("four", [7, 2, 9, 4], values)
    assert features.for_evaluation([9, 7, 9]).tolist() == [[4, 5], [0, 1], [4, 5]]
    for absent in (3, 10):
        with pytest.raises(IndexError):
            features.for_evaluation([7, absent])


def test_features_are_computed_once(
    experiment: Experiment,
    make_experiment: Callable[..., Experiment],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = open_part(experiment, "trainval")
    monkeypatch.setattr(sources, "build_trunk", lambda *given: pytest.fail("computed again"))
    other = make_experiment(protocol="frozen+lr=0.002", loss="ms")
    again = open_part(other, "trainval")
    assert isinstance(first, Features) and isinstance(again, Features)
    assert np.array_equal(first.values, again.values)


@pytest.mark.parametrize(
    "changes", [{"seed": 1}, {"protocol": "frozen+pooling=max"}, {"protocol": "frozen+crop=20"}]
)
def test_what_changes_features_has_features_of_its_own(
    make_experiment: Callable[..., Experiment], changes: dict[str, object]
) -> None:
    # A trunk from scratch, whose weights are the seed's, and whose maps have more than one place.
    usual = {"protocol": FROZEN, "trunk": "convnet"}
    first = open_part(make_experiment(**usual), "trainval")
    other = open_part(make_experiment(**{**usual, **changes}), "trainval")
    assert not np.array_equal(first.values, other.values)
    assert first.fingerprint == other.fingerprint  # of the images


def test_the_data_fingerprint_is_that_of_the_images(
    experiment: Experiment, make_experiment: Callable[..., Experiment]
) -> None:
    images = open_part(make_experiment(protocol="mlrc"), "trainval")
    features = open_part(experiment, "trainval")
    assert features.fingerprint == images.fingerprint
    assert list(features.indices) == list(images.indices)


def test_features_that_would_fill_the_disk_are_refused(
    uncached: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_images(uncached, "trainval")  # are there already
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**10, 0, 2**30 + 1000))
    with pytest.raises(HarnessError, match="the features of this part take") as caught:
        open_part(uncached, "trainval")
    assert "--cache-dir" in str(caught.value)


def test_a_cache_that_cannot_be_written_is_said_plainly(
    make_experiment: Callable[..., Experiment], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    experiment = make_experiment(protocol=FROZEN, cache_dir=str(tmp_path / "file" / "cache"))
    with pytest.raises(HarnessError, match="cannot write the cache"):
        open_part(experiment, "trainval")


def test_a_trunk_that_fails_does_so_before_images_are_decoded(
    uncached: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> None:
        raise HarnessError("no such network")

    monkeypatch.setattr(sources, "build_trunk", fail)
    monkeypatch.setattr(sources, "open_images", lambda *given: pytest.fail("decoded"))
    with pytest.raises(HarnessError, match="no such network"):
        open_part(uncached, "trainval")


def test_only_head_and_loss_train_at_the_searched_rates(experiment: Experiment) -> None:
    params = {**experiment.published_params, "head_lr": 0.004, "loss_lr": 0.05}
    trainer = unit_of(experiment, params).build_trainer(torch.device("cpu"))
    assert isinstance(trainer.model.trunk, FrozenTrunk)
    rates = {group["name"]: group["lr"] for group in trainer.optimizer.param_groups}
    assert rates == {"head": 0.004, "loss": 0.05}


def test_proxies_without_a_rate_share_that_of_the_head(
    make_experiment: Callable[..., Experiment],
) -> None:
    experiment = make_experiment(protocol=FROZEN, loss="ccp", space="paper")
    assert "loss_lr" not in experiment.published_params
    params = {**experiment.published_params, "head_lr": 0.004}
    trainer = unit_of(experiment, params).build_trainer(torch.device("cpu"))
    rates = {group["name"]: group["lr"] for group in trainer.optimizer.param_groups}
    assert set(rates.values()) == {0.004}


@pytest.mark.parametrize("loss", ["contrastive", "proxyanchor", "ccp", "drml"])
def test_the_head_rate_is_searched_for_every_method_alike(
    make_experiment: Callable[..., Experiment], loss: str
) -> None:
    experiment = make_experiment(protocol="frozen", loss=loss)
    rate = experiment.space["head_lr"]
    assert (rate.low, rate.high, rate.log) == (1e-5, 1e-1, True)
    assert experiment.published_params["head_lr"] == experiment.protocol.lr == 1e-3
    assert "head_lr" not in make_experiment(protocol="mlrc", loss=loss).space


def test_a_fold_is_repeated_bit_by_bit(experiment: Experiment, tmp_path: Path) -> None:
    first = run_fold(unit_of(experiment, fold=1))
    elsewhere = experiment.config.updated({"runs_dir": str(tmp_path / "again")})
    other = replace(experiment, config=elsewhere)
    assert run_fold(unit_of(other, fold=1)).history == first.history


class Stop(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("loss", ["proxyanchor", "contrastive", "ccp"])
def test_a_fold_that_was_cut_goes_on_bit_by_bit(
    make_experiment: Callable[..., Experiment], tmp_path: Path, loss: str
) -> None:
    unit = unit_of(make_experiment(protocol=FROZEN, loss=loss))

    def stop(progress: Progress) -> None:
        if progress.step == 3:
            raise Stop

    whole, cut, resumed = (unit.build_trainer(torch.device("cpu")) for _ in range(3))
    expected = whole.fit(tmp_path / "whole.pt", seed=1)
    with pytest.raises(Stop):
        cut.fit(tmp_path / "cut.pt", seed=1, on_validation=stop)
    assert resumed.fit(tmp_path / "cut.pt", seed=1).history == expected.history
    ends = [torch.load(tmp_path / f"{name}.pt", weights_only=False) for name in ("whole", "cut")]
    assert all(torch.equal(one, ends[1]["model"][name]) for name, one in ends[0]["model"].items())


def test_a_frozen_search_and_evaluation_have_a_table_of_their_own(
    config: RunConfig, tmp_path: Path
) -> None:
    config = config.updated({"protocol": FROZEN, "trials": 2, "reproductions": 2})
    search([config])
    values = {"reproductions": 2, "workers": 1, "device": "cpu", "runs_dir": config.runs_dir}
    done = evaluate([], {**values, "results_dir": config.results_dir})
    assert done.tables == [tmp_path / "results" / FROZEN / "glyphs-glyphnet"]
    frame = build(done.tables[0]).frame.set_index("method")
    assert set(frame.index) == {"proxyanchor", "pretrained", "pixels"}
    assert frame.loc["pretrained", "reproductions"] == 1  # the trunk is the same in all
