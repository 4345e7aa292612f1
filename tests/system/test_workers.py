"""Workers: how many, with how many threads, and what happens when one dies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from worker_jobs import complain, die, start_a_process, tell_threads

from harness.config import RunConfig
from harness.errors import HarnessError
from harness.searching.loop import search
from harness.system import workers
from harness.system.device import choose_device
from harness.system.progress import Event, Prepared

CORES = len(os.sched_getaffinity(0))


def test_one_worker_per_core_on_a_cpu_and_never_more_than_there_is_to_do() -> None:
    config = RunConfig(device="cpu")
    assert workers.worker_count(config, threads=1, units=1000) == CORES
    assert workers.worker_count(config, threads=1, units=1) == 1
    assert workers.worker_count(config, threads=10 * CORES, units=1000) == 1
    assert workers.worker_count(RunConfig(device="cpu", workers=3), 1, 1000) == 3


def test_one_worker_per_gpu_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert workers.worker_count(RunConfig(), threads=1, units=1000) == 4
    with pytest.raises(
        HarnessError, match=r"--workers 5 is more than the 4 GPU\(s\) here; give at"
    ):
        workers.worker_count(RunConfig(workers=5), threads=1, units=1000)


def test_too_many_workers_are_refused_before_any_work(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(HarnessError, match="--workers 2 is more than the 1 GPU"):
        search([config.updated({"workers": 2, "device": "cuda"})])
    assert not Path(config.runs_dir).exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpu", "no device named 'gpu'"),
        ("cpu:3", "no device named 'cpu:3'"),
        ("cuda", "not available here"),
        ("mps", "not available"),
    ],
)
def test_a_device_that_is_not_there_is_refused(
    name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(HarnessError, match=message):
        choose_device(name)
    assert choose_device("auto").type == "cpu"
    assert torch.backends.cudnn.deterministic


def told(heard: list[Event], action: str) -> list[tuple[int, str, str, int]]:
    events = [event for event in heard if isinstance(event, Prepared) and event.action == action]
    return sorted((event.worker, event.method, event.dataset, event.done) for event in events)


@pytest.mark.slow
def test_workers_get_their_job_their_threads_and_a_gpu_each_and_may_start_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No GPU is touched: a worker is told the name of its own."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    heard: list[Event] = []
    before = dict(os.environ)
    workers.run_workers(start_a_process, "job", "auto", 2, threads=1, listener=heard.append)
    assert dict(os.environ) == before
    assert told(heard, "asking") == [(1, "cuda:0", "job", 1), (2, "cuda:1", "job", 1)]
    assert told(heard, "loading") == [(1, "cuda:0", "job", 3), (2, "cuda:1", "job", 3)]


def test_a_gpu_that_is_asked_for_is_the_one_that_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    heard: list[Event] = []
    workers.run_workers(tell_threads, "job", "cuda:1", 1, threads=1, listener=heard.append)
    assert told(heard, "asking") == [(1, "cuda:1", "job", 1)]


@pytest.mark.slow
def test_a_worker_that_dies_is_noticed() -> None:
    with pytest.raises(HarnessError, match="a worker ended with exit code 3"):
        workers.run_workers(die, None, "cpu", 2, threads=1, listener=lambda event: None)


@pytest.mark.slow
def test_what_the_user_can_mend_comes_back_from_a_worker() -> None:
    with pytest.raises(HarnessError, match="what the user can mend"):
        workers.run_workers(complain, None, "cpu", 2, threads=1, listener=lambda event: None)
