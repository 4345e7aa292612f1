"""A search on many machines, here on one; and what Slurm would be asked for."""

from __future__ import annotations

import inspect
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import submitit
from conftest import FOLDER

from benchmarks.pretended_gpu import pretended_gpu
from harness.cli import main
from harness.cli.search import search
from harness.cli.submit import submit
from harness.config import RunConfig
from harness.errors import HarnessError
from harness.searching import cluster
from harness.searching.storage import URL_VARIABLE


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An sbatch that keeps the script it is given; returns where."""
    kept = tmp_path / "kept.sh"
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sbatch", "srun"):
        program = programs / name
        program.write_text(f'#!/bin/sh\ncp "$1" {kept}\necho "Submitted batch job 77"\n')
        program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return kept


def submitted(arguments: list[str], tmp_path: Path) -> int:
    where = ["--runs-dir", str(tmp_path / "runs"), "--loss", "triplet"]
    return main(["submit", *where, *arguments])


def test_slurm_gets_an_array_with_what_was_asked_for(
    slurm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setenv(URL_VARIABLE, "")
    monkeypatch.setattr(cluster, "check", lambda config: None)  # the database is not there
    asked = ["--nodes", "8", "--gpus", "4", "--cpus", "16", "--hours", "1.5", "--partition", "big"]
    url = "postgresql+psycopg://me:s3cret@host/db"
    assert submitted([*asked, "--slurm", "qos=high", "--storage", url], tmp_path) == 0
    script = slurm.read_text()
    for line in (
        *("array=0-7%8", "gpus-per-node=4", "cpus-per-task=16", "time=90", "partition=big"),
        *("qos=high", "job-name=harness"),
    ):
        assert f"#SBATCH --{line}\n" in script
    assert "job 77_0: " in capsys.readouterr().out
    # The password travels in the environment, which sbatch hands on, and is in no file.
    assert os.environ[URL_VARIABLE] == url
    written = [p.read_bytes() for p in (tmp_path / "runs").rglob("*") if p.is_file()]
    assert len(written) >= 8 and not any(b"s3cret" in content for content in written)


@pytest.mark.parametrize("storage", ["", "sqlite:///study.db"])
def test_files_are_refused_for_many_nodes(
    slurm: Path, tmp_path: Path, storage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submitted(["--nodes", "2", "--storage", storage], tmp_path) == 2
    assert "several nodes need a database" in capsys.readouterr().err
    assert not slurm.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "0"], "--nodes must be at least 1, got 0"),
        (["--hours", "0"], "--hours must be positive"),
        (["--slurm", "qos"], "--slurm takes KEY=VALUE, got 'qos'"),
        (["--trials", "-1"], "'trials' takes a whole number >= 0"),
        (["--sampler", "gb"], "no sampler named 'gb'"),
        (["--storage", "nowhere"], "is no URL"),
    ],
)
def test_wrong_flags_are_refused_before_anything_is_submitted(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submitted(arguments, tmp_path) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_whatever_a_search_takes_can_be_submitted() -> None:
    def flags(command: Callable[..., None]) -> set[str]:
        return set(inspect.signature(command).parameters)

    assert flags(search) - flags(submit) == {"verbose"}  # nobody watches a submitted search


def test_a_missing_submitit_names_the_extra(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(HarnessError, match=r"pip install 'metric-harness\[cluster\]'"):
        cluster.submit([config], cluster.Nodes())


def test_a_task_that_slurm_stops_is_queued_again(config: RunConfig) -> None:
    task = cluster.SearchTask([config])
    again = task.checkpoint()
    assert again.function is task


class Queue:
    """Takes what is submitted, and runs nothing."""

    def __init__(self, folder: Path, cluster: str) -> None:
        del folder, cluster

    def update_parameters(self, **parameters: Any) -> None:
        del parameters

    def batch(self) -> AbstractContextManager[None]:
        return nullcontext()

    def submit(self, task: cluster.SearchTask) -> cluster.SearchTask:
        return task


@pytest.mark.parametrize(
    ("asked", "on_slurm", "workers"), [(0, False, 2), (3, False, 3), (0, True, 0)]
)
def test_tasks_on_one_machine_share_its_cores(
    asked: int,
    on_slurm: bool,
    workers: int,
    config: RunConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(submitit, "AutoExecutor", Queue)
    monkeypatch.setattr(cluster, "check", lambda config: None)  # the database is not there
    monkeypatch.setattr(cluster, "has_slurm", lambda: on_slurm)
    monkeypatch.setattr(cluster, "worker_count", lambda config, threads, units: 8)
    monkeypatch.setenv(URL_VARIABLE, "")
    storage = "postgresql+psycopg://me@host/db" if on_slurm else ""
    wanted = config.updated({"workers": asked, "storage": storage})
    tasks = cluster.submit([wanted], cluster.Nodes(3))
    assert [task.configs[0].workers for task in tasks] == [workers] * 3


@pytest.mark.slow
def test_two_tasks_on_this_machine_do_one_search(
    tmp_path: Path, image_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Submitted by a process of its own, whose end shows what it leaves to be ignored."""
    runs = tmp_path / "runs here"
    pictures = ["--dataset", f"folder:{image_folder}", "--protocol", FOLDER, "--trunk", "convnet"]
    how = ["--nodes", "2", "--workers", "1", "--trials", "3", "--device", "cpu"]
    command = [sys.executable, "-m", "harness", "submit", *pictures, *how]
    where = ["--loss", "triplet", "--runs-dir", str(runs), "--cache-dir", str(tmp_path / "cache")]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run([*command, *where], capture_output=True, text=True, env=environment)
    assert done.returncode == 0
    assert "Exception ignored" not in done.stderr
    assert done.stdout.count("job ") == 2
    assert f"harness show --runs-dir '{runs}'" in done.stdout
    assert main(["show", "triplet", "--runs-dir", str(runs)]) == 0
    assert "3 trials, 0 failed" in capsys.readouterr().out
    assert len(list(runs.glob("**/record.json"))) == 12


@pytest.mark.parametrize(
    ("there", "nodes", "gpus", "shares"),
    [
        (4, 2, 0, [["a", "c"], ["b", "d"]]),
        (4, 3, 0, [["a", "d"], ["b"], ["c"]]),
        (2, 4, 0, [["a"], ["b"], ["a"], ["b"]]),
        (4, 2, 1, [["a"], ["b"]]),
        (2, 3, 1, [["a"], ["b"], ["a"]]),
    ],
)
def test_without_slurm_tasks_share_the_cards_evenly(
    there: int, nodes: int, gpus: int, shares: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join("abcd"[:there]))
    with pretended_gpu(count=there):
        assert cluster._shares(RunConfig(), cluster.Nodes(nodes, gpus=gpus)) == shares
        assert cluster._shares(RunConfig(device="cuda:1"), cluster.Nodes(2)) == [["b"], ["b"]]
        with pytest.raises(HarnessError, match="--gpus 9 is more than the"):
            cluster._shares(RunConfig(), cluster.Nodes(2, gpus=9))
    assert cluster._shares(RunConfig(device="cpu"), cluster.Nodes(2)) == [[], []]


def test_a_task_sees_its_own_cards_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "a,b")
    monkeypatch.setattr(cluster, "search", lambda configs: [])
    assert cluster.SearchTask([], ["b"])() == 0
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "b"
