"""`harness submit` on a real Slurm of eight nodes: shares, restarts, losses and refusals."""

from __future__ import annotations

import json
import os
import re
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from conftest import FOLDER
from emulated_slurm import NODES, EmulatedSlurm, wait_until
from postgres import PASSWORD, Postgres
from sqlalchemy import make_url
from telling_loss import SAYS, write_telling

from harness.cli import main
from harness.cluster.submissions import Submission, find_submissions

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("slurm")]

StandIn = Callable[[str], None]

# Works until a file appears; asked to stop, it stops.
WAITS = """#!/bin/bash
echo "at work: $*"
trap 'echo stopping; exit 143' TERM
while [ ! -e {go} ]; do sleep 0.2 & wait $!; done
echo finished
"""

# Prints what it was given.
TELLS = """#!/bin/bash
echo "words: $*"
echo "cards: $CUDA_VISIBLE_DEVICES"
echo "cores: $SLURM_CPUS_ON_NODE"
echo "node: $(hostname)"
"""


def submitted(tmp_path: Path, *words: str) -> Submission:
    """Submit from a command line; what was kept of it."""
    runs = tmp_path / "runs"
    assert main(["submit", *words, "--runs-dir", str(runs)]) == 0
    return find_submissions(runs)[-1]


def wait_for(slurm: EmulatedSlurm, job: str, *states: str, seconds: float = 240) -> None:
    """Until every task of a job is in one of some states."""
    wait_until(lambda: set(slurm.states(job).values()) <= set(states), seconds)


def logs(submission: Submission, step: int = 0) -> list[str]:
    """What every task has printed so far."""
    one = submission.steps[step]
    paths = [submission.log(one, task) for task in range(one.tasks)]
    return [path.read_text() if path.exists() else "" for path in paths]


def notes(submission: Submission, task: int = 0) -> list[str]:
    """What the task noted, without times and processes."""
    lines = submission.notes(submission.steps[0], task)
    return [re.sub(r", process \d+$", "", line.partition(" ")[2]) for line in lines]


def test_search_evaluation_and_report_follow_one_another(
    slurm: EmulatedSlurm, tmp_path: Path, image_folder: Path, postgres: str, cache_dir: Path
) -> None:
    """Two nodes, a real database with a password, real training; the end is the table."""
    url = make_url(postgres).set(password="s3cretpw").render_as_string(hide_password=False)
    submission = submitted(
        tmp_path,
        *("search", "--loss", "triplet", "--dataset", f"folder:{image_folder}"),
        *("--protocol", FOLDER, "--trunk", "convnet", "--trials", "3", "--device", "cpu"),
        *("--workers", "1", "--nodes", "2", "--cpus", "2", "--storage", url),
        *("--cache-dir", str(cache_dir), "--set", "heartbeat=5"),
        *("--then", f"eval --reproductions 2 --results-dir {tmp_path / 'results'}"),
        *("--then", f"report --results-dir {tmp_path / 'results'} -o {tmp_path / 'page.html'}"),
    )
    assert submission.id == submission.steps[0].job
    assert [step.name for step in submission.steps] == ["search", "eval", "report"]
    wait_for(slurm, submission.jobs[-1], "COMPLETED", "CANCELLED", seconds=900)
    search, evaluation, report = (logs(submission, step) for step in range(3))
    # Each log reads as a terminal would: the device, every trial with its score, the table.
    trials = re.findall(r"triplet: trial (\d)/3, map@r \d+\.\d\d%", "".join(search))
    assert sorted(trials) == ["1", "2", "3"]
    assert all("trains on cpu" in log or "3 trials" in log for log in search)
    assert len(re.findall(r"reproduction [12]/2, map@r", "".join(evaluation))) == 2
    assert (tmp_path / "page.html").exists()
    table = (tmp_path / "results").glob("*/*/leaderboard.md")
    assert "triplet" in next(iter(table)).read_text()
    assert "triplet" in report[0].partition("page.html")[2]
    # The password is in one file that only its owner reads, and not in Slurm's.
    holders = [
        path
        for folder in (tmp_path / "runs", tmp_path / "results", slurm.folder)
        for path in folder.rglob("*")
        if path.is_file() and b"s3cretpw" in path.read_bytes()
    ]
    assert [path.name for path in holders] == ["storage"]
    assert stat.S_IMODE(holders[0].stat().st_mode) == 0o600


@pytest.mark.xfail(
    strict=False,
    reason="Slurm 22.05 does not always start a task again that was requeued right after its start",
)
def test_a_task_is_queued_again_as_often_as_it_takes(
    slurm: EmulatedSlurm, tmp_path: Path, stand_in: StandIn
) -> None:
    """One real time limit, then four more; the site does not queue jobs again by itself."""
    go = tmp_path / "go"
    stand_in(WAITS.format(go=go))
    submission = submitted(tmp_path, "eval", "--hours", "0.01", "--cpus", "1")
    task = f"{submission.id}_0"
    wait_until(lambda: len(notes(submission)) == 2, 150)  # the time limit is one minute
    for times in range(1, 6):
        wait_until(lambda: slurm.states(task) == {task: "PENDING"})
        if times == 5:
            go.touch()
        slurm.start_now(task, lambda times=times: len(notes(submission)) > 2 * times)  # type: ignore[misc]
        if times < 5:
            slurm.run("scancel", "--batch", "--signal=USR1", task)
    wait_for(slurm, submission.id, "COMPLETED")
    told = [re.sub(r"node\d", "node", note) for note in notes(submission)]
    assert told == [
        "node: started",
        *(
            line
            for times in range(1, 6)
            for line in ("node: time limit: queued again", f"node: started again ({times})")
        ),
        "node: exit code 0",
    ]
    assert logs(submission)[0].count("at work: eval") == 6  # appended, and nothing lost
    assert "stopping" in logs(submission)[0] and "finished" in logs(submission)[0]


def test_another_node_takes_the_task_of_a_dead_one(
    slurm: EmulatedSlurm,
    tmp_path: Path,
    stand_in: StandIn,
    capsys: pytest.CaptureFixture[str],
) -> None:
    go = tmp_path / "go"
    stand_in(WAITS.format(go=go))
    submission = submitted(tmp_path, "eval", "--cpus", "1")
    wait_for(slurm, submission.id, "RUNNING")
    wait_until(lambda: len(notes(submission)) == 1)
    dead = notes(submission)[0].partition(":")[0]
    slurm.kill_node(dead)
    try:
        task = f"{submission.id}_0"
        wait_until(lambda: slurm.states(task) == {task: "PENDING"})
        slurm.start_now(task, lambda: len(notes(submission)) == 2)
        capsys.readouterr()
        assert main(["status", "--runs-dir", str(tmp_path / "runs")]) == 0
        assert "; earlier: killed, or its machine was lost, 1 time\n" in capsys.readouterr().out
        go.touch()
        wait_for(slurm, submission.id, "COMPLETED")
    finally:
        slurm.start_node(dead)
    first, again, end = notes(submission)
    assert first == f"{dead}: started" and again.endswith(": started again (1)")
    assert not again.startswith(dead) and end.endswith(": exit code 0")


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--partition", "big"], "invalid partition specified: big"),
        (["--slurm", "mem=90G"], "Memory specification can not be satisfied"),
        (["--gpus", "9"], "Requested node configuration is not available"),
    ],
)
def test_a_refusal_of_slurm_is_an_error_of_the_user(
    slurm: EmulatedSlurm,
    tmp_path: Path,
    flags: list[str],
    reason: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs = tmp_path / "runs"
    assert main(["submit", "eval", *flags, "--then", "report", "--runs-dir", str(runs)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: Slurm refused the job:\n") and reason in said
    assert find_submissions(runs) == [] and list(runs.glob("submitted/*")) == []


def test_without_a_shared_folder_nothing_is_submitted(
    slurm: EmulatedSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = slurm.hidden / "runs"
    before = slurm.run("squeue", "-h", "-n", "harness-eval", "-o", "%A")
    assert main(["submit", "eval", "--runs-dir", str(runs)]) == 2
    said = capsys.readouterr().err
    assert "the nodes of the cluster do not have the folder" in said and "--logs DIR" in said
    assert list(runs.glob("submitted/*")) == []
    assert slurm.run("squeue", "-h", "-n", "harness-eval", "-o", "%A") == before


def test_logs_can_be_where_only_the_nodes_write(
    slurm: EmulatedSlurm, tmp_path: Path, stand_in: StandIn
) -> None:
    stand_in(TELLS)
    logs_here = tmp_path / "logs"
    logs_here.mkdir()
    runs = slurm.hidden / "runs"
    words = ["submit", "eval", "--nodes", "2", "--runs-dir", str(runs), "--logs", str(logs_here)]
    assert main(words) == 0
    submission = find_submissions(runs)[-1]
    wait_for(slurm, submission.id, "COMPLETED")
    assert all("words: eval" in log for log in logs(submission))


def test_gpus_come_with_their_share_of_the_cores(
    slurm: EmulatedSlurm, tmp_path: Path, stand_in: StandIn
) -> None:
    """Nodes have 16 cores and 4 GPUs; without GPUs a node is a whole node."""
    stand_in(TELLS)
    asked = {
        ("--gpus", "4"): ("0,1,2,3", "16"),
        ("--gpus", "1"): ("0", "4"),
        ("--gpus", "2", "--cpus", "3"): ("0,1", "3"),
        ("--cpus", "1", "--slurm", "exclusive"): ("0,1,2,3", "16"),
        (): ("0,1,2,3", "16"),
    }
    for flags, (cards, cores) in asked.items():
        submission = submitted(tmp_path, "eval", *flags)
        wait_for(slurm, submission.id, "COMPLETED")
        (log,) = logs(submission)
        assert f"cards: {cards}\ncores: {cores}\n" in log
    # Whole nodes are different nodes.
    submission = submitted(tmp_path, "eval", "--nodes", "8", "--gpus", "4")
    wait_for(slurm, submission.id, "COMPLETED")
    assert Counter("".join(logs(submission)).split()) >= Counter(NODES)


def test_every_data_set_is_prepared_by_one_task(
    slurm: EmulatedSlurm, tmp_path: Path, stand_in: StandIn
) -> None:
    stand_in(TELLS)
    words = ["submit", "prepare", "cub", "cars", "glyphs", "--cpus", "1"]
    os.chdir(tmp_path)
    assert main([*words, "--nodes", "2", "--data-root", "/data"]) == 0
    submission = find_submissions(tmp_path / "runs")[-1]
    wait_for(slurm, submission.id, "COMPLETED")
    for name, log in zip(("cub", "cars", "glyphs"), logs(submission), strict=True):
        assert f"words: data prepare {name} --data-root /data\n" in log


# One node of a search without training: four processes that claim from one study.
CLAIMERS = """#!python
import multiprocessing, os, sys, time
from harness.searching.storage import open_storage
from pathlib import Path
import optuna
from optuna.trial import TrialState, create_trial

def work(number):
    storage = open_storage(os.environ["HARNESS_STORAGE"], Path(__file__).parent, "load", 30)

    def opened():
        with storage.exclusive():
            return optuna.create_study(
                storage=storage.optuna, study_name="load", load_if_exists=True
            )

    def claimed():
        with storage.exclusive():
            index = len(study.get_trials(deepcopy=False))
            if index < TRIALS:
                claim = {"index": index, "worker": worker}
                done = {"state": TrialState.COMPLETE, "value": 0.0}
                study.add_trial(create_trial(**done, user_attrs=claim))
            return index < TRIALS

    study = storage.insist(opened)
    with storage.joined() as worker:
        while storage.insist(claimed):
            time.sleep(PAUSE)

TRIALS, PAUSE = {trials}, {pause}
optuna.logging.set_verbosity(optuna.logging.ERROR)
workers = [multiprocessing.Process(target=work, args=(n,)) for n in range(4)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
print("codes:", [worker.exitcode for worker in workers])
sys.exit(max(abs(worker.exitcode) for worker in workers))
"""


def claims(url: str) -> list[dict[str, Any]]:
    """What every trial of the claimers says of itself; nothing before there are any."""
    try:
        study = optuna.load_study(storage=url, study_name="load")
    except KeyError:
        return []
    return [trial.user_attrs for trial in study.get_trials(deepcopy=False)]


def test_thirty_two_workers_on_eight_nodes_claim_every_trial_once(
    slurm: EmulatedSlurm, tmp_path: Path, installed_postgres: Postgres, stand_in: StandIn
) -> None:
    """On a server that gives them no more than 40 connections."""
    server = installed_postgres
    server.ask("CREATE ROLE crowd LOGIN PASSWORD 'many' CONNECTION LIMIT 40")
    server.ask("CREATE DATABASE crowd OWNER crowd")
    stand_in(CLAIMERS.replace("{trials}", "96").replace("{pause}", "0"))
    url = server.url("crowd", user="crowd", password="many")
    submission = submitted(tmp_path, "eval", "--nodes", "8", "--cpus", "4", "--storage", url)
    wait_for(slurm, submission.id, "COMPLETED", "FAILED", seconds=400)
    assert set(slurm.states(submission.id).values()) == {"COMPLETED"}, logs(submission)
    claimed = claims(server.url("crowd"))
    assert sorted(one["index"] for one in claimed) == list(range(96))
    assert len({one["worker"].partition("-")[0] for one in claimed}) >= 2  # nodes


def test_workers_outlive_a_database_that_starts_late_and_restarts(
    slurm: EmulatedSlurm,
    tmp_path: Path,
    installed_postgres: Postgres,
    stand_in: StandIn,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is down while they start and goes down again while they work.

    The URL has no password: the tasks read the password file.
    """
    server = installed_postgres
    server.ask("CREATE DATABASE shaky")
    passwords = tmp_path / ".pgpass"
    passwords.write_text(f"127.0.0.1:{server.port}:*:harness:{PASSWORD}\n")
    passwords.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(passwords))
    stand_in(CLAIMERS.replace("{trials}", "60").replace("{pause}", "0.2"))
    server.stop()
    try:
        url = server.url("shaky", password="")
        submission = submitted(tmp_path, "eval", "--nodes", "2", "--cpus", "4", "--storage", url)
        wait_for(slurm, submission.id, "RUNNING")
        wait_until(lambda: all("does not answer" in log for log in logs(submission)))
    finally:
        server.start()
    wait_until(lambda: len(claims(server.url("shaky"))) >= 5)
    server.stop()
    server.start()
    wait_for(slurm, submission.id, "COMPLETED", "FAILED", seconds=400)
    assert set(slurm.states(submission.id).values()) == {"COMPLETED"}, logs(submission)
    found = sorted(one["index"] for one in claims(server.url("shaky")))
    assert found == list(range(60))


def test_a_search_that_is_cancelled_saves_its_work(
    slurm: EmulatedSlurm,
    tmp_path: Path,
    image_folder: Path,
    cache_dir: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The real command in the middle of a training whose next validation is hours away."""
    hours = re.sub(r"(max_steps|validate_every)=\d", r"\1=1000000", FOLDER)
    runs = tmp_path / "runs"
    submission = submitted(
        tmp_path,
        *("search", "--loss", str(write_telling(tmp_path)), "--dataset", f"folder:{image_folder}"),
        *("--protocol", hours, "--trunk", "convnet", "--device", "cpu", "--workers", "1"),
        *("--cache-dir", str(cache_dir), "--cpus", "1"),
    )
    begun = "trains on cpu"  # before it, the loss is checked
    wait_until(lambda: logs(submission)[0].partition(begun)[2].count(SAYS) > 9, 600)
    capsys.readouterr()
    assert main(["status", "--runs-dir", str(runs)]) == 0
    said = capsys.readouterr().out
    assert re.search(
        r"elling\S*: 0 of 50 trials, 0 failed\n    trial 1: node\d, process \d+, for", said
    )
    assert re.search(rf"  search, job {submission.id}, task 0: runs on node\d\n", said)
    assert main(["cancel", submission.id, "--runs-dir", str(runs)]) == 0
    wait_for(slurm, submission.id, "CANCELLED")
    wait_until(lambda: len(notes(submission)) == 2)
    assert notes(submission)[1].endswith(": stopped by SIGTERM")
    assert "stopped. Repeat the same command to go on" in logs(submission)[0]
    (fold,) = runs.glob("**/folds/*/config.yaml")
    assert (fold.parent / "checkpoint.pt").exists()
    capsys.readouterr()
    assert main(["status", "--runs-dir", str(runs)]) == 0
    said = capsys.readouterr().out
    assert "this worker is gone, the next one takes it over" in said
    assert re.search(r"task 0: stopped on node\d \(cancelled\)\n", said)


# Asked to stop, it dies, as Python does before it has read our code.
STARTING = """#!/bin/bash
exec sleep 1000
"""


def test_a_signal_at_the_start_queues_a_task_again(
    slurm: EmulatedSlurm, tmp_path: Path, stand_in: StandIn
) -> None:
    stand_in(STARTING)
    submission = submitted(tmp_path, "eval", "--cpus", "1")
    task = f"{submission.id}_0"
    wait_until(lambda: slurm.states(task) == {task: "RUNNING"})
    wait_until(lambda: bool(notes(submission)))
    slurm.run("scancel", "--batch", "--signal=USR1", task)
    wait_until(lambda: slurm.states(task) == {task: "PENDING"})
    assert [note.partition(": ")[2] for note in notes(submission)] == [
        *("started", "time limit: queued again"),
    ]
    slurm.run("scancel", task)


# The first task lives until it is stopped; the others end in their ways.
ENDS = """#!/bin/bash
case $SLURM_ARRAY_TASK_ID in
1) kill -KILL $$ ;;
2) echo "error: no such data"; exit 2 ;;
esac
trap 'exit 143' TERM
while true; do sleep 0.2 & wait $!; done
"""


def test_status_says_why_tasks_ended(
    slurm: EmulatedSlurm,
    tmp_path: Path,
    stand_in: StandIn,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stand_in(ENDS)
    words = ["--nodes", "3", "--cpus", "1", "--then", "report"]
    submission = submitted(tmp_path, "eval", *words)
    first, job = f"{submission.id}_0", submission.id
    wait_until(lambda: sorted(slurm.states(job).values()) == ["FAILED", "FAILED", "RUNNING"])
    where = ["--runs-dir", str(tmp_path / "runs")]
    capsys.readouterr()
    assert main(["status", *where]) == 0
    said = re.sub(r"node\d", "node", capsys.readouterr().out)
    for line in (
        f"  eval, job {job}, task 0: runs on node\n",
        f"  eval, job {job}, task 1: failed on node (killed, usually because memory was short; ask "
        "for more)\n",
        f"  eval, job {job}, task 2: failed on node (no such data)\n",
        f"  report, job {submission.jobs[1]}, task 0: waits (Dependency)\n",
    ):
        assert line in said
    assert main(["cancel", *where]) == 0
    assert f"{job}: 2 tasks cancelled\n" in capsys.readouterr().out
    wait_until(lambda: slurm.states(first) == {first: "CANCELLED"})
    wait_until(lambda: set(slurm.states(submission.jobs[1]).values()) == {"CANCELLED"})


def test_the_job_ids_stay_with_the_runs(
    slurm: EmulatedSlurm, tmp_path: Path, stand_in: StandIn
) -> None:
    stand_in(TELLS)
    submission = submitted(tmp_path, "eval", "--cpus", "1", "--then", "report")
    kept = json.loads((submission.folder / "submission.json").read_text())
    assert [step["job"] for step in kept["steps"]] == submission.jobs
    assert "harness-eval" in slurm.run("squeue", "-h", "-t", "all", "-o", "%j")
