"""Workers: how many, with how many threads, and what happens when one dies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from worker_jobs import complain, complain_if_first, die, start_a_process, tell_threads

from benchmarks.pretended_gpu import pretended_gpu
from harness.config import RunConfig
from harness.errors import HarnessError
from harness.searching.loop import search
from harness.system import workers
from harness.system.progress import Event, Prepared, ignore
from harness.system.worker_process import Turn

CORES = len(os.sched_getaffinity(0))
CPU = torch.device("cpu")


def test_one_worker_per_core_on_a_cpu_and_never_more_than_there_is_to_do() -> None:
    config = RunConfig(device="cpu")
    assert workers.worker_count(config, threads=1, units=1000) == CORES
    assert workers.worker_count(config, threads=1, units=1) == 1
    assert workers.worker_count(config, threads=10 * CORES, units=1000) == 1
    assert workers.worker_count(RunConfig(device="cpu", workers=3), 1, 1000) == 3


def test_one_worker_per_gpu_and_no_more_unless_asked_for() -> None:
    with pretended_gpu(count=4):
        assert workers.worker_count(RunConfig(), threads=1, units=1000) == 4
        assert workers.worker_count(RunConfig(per_gpu=3), threads=1, units=1000) == 12
        with pytest.raises(
            HarnessError, match=r"--workers 5 is more than the 4 GPU\(s\) here take; give at most 4"
        ):
            workers.worker_count(RunConfig(workers=5), threads=1, units=1000)


def test_too_many_workers_are_refused_before_any_work(
    config: RunConfig,
) -> None:
    with pretended_gpu(), pytest.raises(HarnessError, match="--workers 2 is more than the 1 GPU"):
        search([config.updated({"workers": 2, "device": "cuda"})])
    assert not Path(config.runs_dir).exists()


def told(heard: list[Event], action: str) -> list[tuple[int, str, str, int]]:
    events = [event for event in heard if isinstance(event, Prepared) and event.action == action]
    return sorted((event.worker, event.method, event.dataset, event.done) for event in events)


@pytest.mark.slow
def test_workers_get_their_job_their_threads_and_a_gpu_each_and_may_start_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No GPU is touched: a worker is told the name of its own, and sees no other."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    heard: list[Event] = []
    before = dict(os.environ)
    with pretended_gpu(count=2):
        turns = [Turn("mine", "job")]
        workers.run_workers(start_a_process, turns, torch.device("cuda"), 3, 1, heard.append)
    assert dict(os.environ) == before
    cards = ["GPU-a", "GPU-b", "GPU-a"]
    for action, done in (("asking", 1), ("loading", 3)):
        assert told(heard, action) == [
            (number, f"cuda:0 of {card}", "job", done) for number, card in enumerate(cards, start=1)
        ]


def test_a_gpu_that_is_asked_for_is_the_one_that_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    heard: list[Event] = []
    owned: list[str] = []
    with pretended_gpu(count=2):
        monkeypatch.setattr(torch.cuda, "set_device", owned.append)
        turns = [Turn("mine", "job")]
        workers.run_workers(tell_threads, turns, torch.device("cuda:1"), 1, 1, heard.append)
        monkeypatch.undo()
    assert told(heard, "asking") == [(1, "cuda:1 of all", "job", 1)]
    assert owned == ["cuda:1"]  # else its first card would hold a context of ours, too


@pytest.mark.slow
@pytest.mark.usefixtures("quick_workers")
def test_a_worker_that_dies_is_noticed() -> None:
    with pytest.raises(HarnessError, match="a worker of mine: it ended with exit code 3"):
        workers.run_workers(die, [Turn("mine", None)], CPU, 2, 1, ignore)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_workers")
def test_what_the_user_can_mend_comes_back_from_a_worker() -> None:
    with pytest.raises(HarnessError, match="what the user can mend"):
        workers.run_workers(complain, [Turn("mine", None)], CPU, 2, 1, ignore)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_workers")
def test_a_worker_that_ends_with_an_error_does_not_end_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Event] = []
    turns = [Turn("mine", str(tmp_path / "first"))]
    with pytest.raises(HarnessError, match="no connection is free"):
        workers.run_workers(complain_if_first, turns, CPU, 3, 1, heard.append)
    assert len(heard) == 2
