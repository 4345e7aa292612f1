"""Where a search trains, how many workers share a card, and what the user is told of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from benchmarks.pretended_gpu import pretended_gpu
from harness.config import RunConfig
from harness.data import neutral, sources
from harness.experiment import Experiment, build_experiment
from harness.system import cards
from harness.system.progress import Event, Placed
from harness.system.worker_process import Turn
from harness.training import placement

MakeExperiment = Callable[..., Experiment]


def placed(experiment: Experiment, gpus: int = 1) -> tuple[placement.Placement, str]:
    heard: list[Event] = []
    with pretended_gpu(count=gpus):
        found = placement.place([experiment], 1000, heard.append)
    (event,) = heard
    assert isinstance(event, Placed) and event.device == str(found.device)
    return found, event.reason


def test_small_steps_on_frozen_features_are_the_cpus_unless_one_insists(
    make_experiment: MakeExperiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = make_experiment(protocol="frozen", device="auto")
    found, reason = placed(frozen)
    assert found.device.type == "cpu"
    assert "million operations" in reason and "--device cuda insists" in reason
    assert placed(make_experiment(protocol="frozen", device="cuda"))[0].device.type == "cuda"
    assert placed(make_experiment(device="auto"))[0].device.type == "cuda"  # images
    monkeypatch.setattr(placement, "WORTH_A_CARD", 1.0)
    assert placed(frozen)[0].device.type == "cuda"


@pytest.mark.parametrize(
    ("gpus", "cores", "free", "mps", "expected"),
    [
        (1, 16, None, False, 3),  # processes that take turns
        (1, 16, None, True, 8),
        (1, 2, None, True, 2),  # each needs a core
        (4, 8, None, True, 2),
        (1, 16, 4, True, 2),  # GiB that are free
        (1, 16, 1, True, 1),
    ],
)
def test_small_models_share_a_card_as_memory_and_cores_allow(
    gpus: int,
    cores: int,
    free: int | None,
    mps: bool,
    expected: int,
    make_experiment: MakeExperiment,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(placement, "cores", lambda: cores)
    monkeypatch.setattr(cards, "free_memory", lambda: free and free * 2**30)
    monkeypatch.setattr(cards, "mps_runs", lambda: mps)
    found, reason = placed(make_experiment(device="auto", per_gpu="auto"), gpus)
    assert found.per_gpu == expected
    assert ("MPS" in reason) == (expected > 1)
    assert placed(make_experiment(device="auto", per_gpu=5))[0].per_gpu == 5
    assert placed(make_experiment(device="auto"))[0].per_gpu == 1


def test_images_fill_a_card_alone(folder_config: RunConfig) -> None:
    large = folder_config.protocol.replace("crop=12", "crop=128").replace("=16", "=128")
    values = {"device": "auto", "per_gpu": "auto", "protocol": large}
    assert placed(build_experiment(folder_config.updated(values)))[0].per_gpu == 1


def test_features_are_encoded_apart_where_workers_follow(
    folder_config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the process which waits for its workers holds no memory of a card."""
    apart: list[str] = []

    def run(
        target: Callable[..., None], turn: Turn, device: torch.device, *rest: object, always: bool
    ) -> None:
        assert always
        apart.append(str(device))
        with monkeypatch.context() as there:
            there.setattr(sources, "is_own_process", lambda: True)
            there.setattr(sources, "is_pristine", lambda: True)
            target(turn.job, "cuda:0", lambda event: None)

    monkeypatch.delenv("HARNESS_IN_PROCESS")
    monkeypatch.setattr(neutral, "call_apart", run)
    values = {"device": "cuda", "protocol": "frozen+crop=12+resize=16", "loader_workers": 0}
    config = folder_config.updated({**values, "workers": 0})
    with pretended_gpu(count=2) as gpu:
        sources.open_part(build_experiment(config), "trainval")
        assert apart == ["cuda"]
        gpu.kernels.clear()
        sources.open_part(build_experiment(config), "trainval")  # they are there
        assert apart == ["cuda"] and not gpu.kernels
