"""What `harness submit` asks Slurm for, and its tasks on one machine without Slurm."""

from __future__ import annotations

import inspect
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from conftest import FOLDER

from benchmarks.pretended_gpu import pretended_gpu
from harness.cli import app, main
from harness.cluster import local, slurm
from harness.cluster.batch import Resources, Step, parse_options, write_script
from harness.cluster.submissions import find_submissions
from harness.config import RunConfig
from harness.errors import HarnessError

SECRET = "postgresql+psycopg://me:s3cret@host/db"


@pytest.fixture
def with_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm seems to be installed; nothing of it is called before a job is submitted."""
    monkeypatch.setattr(slurm, "has_slurm", lambda: True)
    monkeypatch.setattr(slurm, "cores_per_gpu", lambda partition: 6)


@pytest.fixture
def without_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "has_slurm", lambda: False)


def dry_run(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """The scripts that would be submitted."""
    assert main(["submit", *words, "--dry-run"]) == 0
    return re.split(r"^# /.*\n", capsys.readouterr().out, flags=re.MULTILINE)[1:]


def options(script: str) -> dict[str, str]:
    found = re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", script, flags=re.MULTILINE)
    return dict(found)


def commands(script: str) -> list[list[str]]:
    found = re.findall(r"^    (?:exec )?(harness .*?)(?: \|\| return)?$", script, re.MULTILINE)
    return [shlex.split(line) for line in found]


@pytest.mark.usefixtures("with_slurm")
def test_the_script_asks_for_what_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ["--nodes", "8", "--gpus", "4", "--hours", "1.5", "--partition", "big"]
    more = ["--slurm", "qos=high", "--slurm", "exclusive", "--slurm", "mail_type=END"]
    (script,) = dry_run(capsys, "eval", "--loss", "ccp", "c2", *asked, *more)
    found = options(script)
    assert (
        found.items()
        >= {
            **{"job-name": "harness-eval-ccp-c2", "array": "0-7%8", "gpus-per-node": "4"},
            **{"cpus-per-gpu": "6", "time": "90", "partition": "big", "requeue": ""},
            **{"signal": "B:USR1@120", "open-mode": "append", "chdir": str(tmp_path)},
            **{"qos": "high", "exclusive": "", "mail-type": "END", "nodes": "1"},
        }.items()
    )
    assert found["output"].startswith(str(tmp_path / "runs" / "submitted"))
    assert commands(script) == [["harness", "eval", "--loss", "ccp", "c2"]]
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("with_slurm")
def test_steps_wait_for_one_another_and_work_in_the_same_place(
    capsys: pytest.CaptureFixture[str],
) -> None:
    scripts = dry_run(
        capsys,
        *("sweep", "--loss", "c2", "--over", "seed=0,1", "--dataset", "cars", "--preset", "mlrc"),
        *("--runs-dir", "my runs", "--results-dir", "mine", "--nodes", "3"),
        *("--then", "eval --reproductions 2", "--then", "report --pictures"),
    )
    first, second, third = map(options, scripts)
    assert "dependency" not in first and second["dependency"] == "afterok:JOB-ID-OF-SWEEP"
    assert third["dependency"] == "afterok:JOB-ID-OF-EVAL"
    assert (first["array"], second["array"], third["array"]) == ("0-2%3", "0-2%3", "0-0%1")
    where = ["--runs-dir", "my runs", "--results-dir", "mine"]
    # What a preset means differs between commands: it is not passed on.
    carried = ["--loss", "c2", "--dataset", "cars", *where]
    assert sorted(commands(scripts[1])[0]) == sorted(
        ["harness", "eval", *carried, "--reproductions", "2"]
    )
    assert commands(scripts[2]) == [
        ["harness", "report", *where, "--pictures"],
        ["harness", "leaderboard", "--results-dir", "mine"],
    ]


@pytest.mark.usefixtures("with_slurm")
@pytest.mark.parametrize(
    "flags", [["--storage", SECRET], [f"--storage={SECRET}"], ["--set", f"storage={SECRET}"]]
)
def test_a_password_is_in_no_script(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    (script,) = dry_run(capsys, "eval", *flags, "--loss", "c2")
    assert "s3cret" not in script and commands(script) == [["harness", "eval", "--loss", "c2"]]
    assert re.search(r'^export HARNESS_STORAGE="\$\(cat /.*/storage\)"$', script, re.MULTILINE)
    (script,) = dry_run(capsys, "eval", "--storage", "postgresql+psycopg://me@host/db")
    assert "\nexport HARNESS_STORAGE=postgresql+psycopg://me@host/db\n" in script


@pytest.mark.usefixtures("with_slurm")
@pytest.mark.parametrize("storage", ["", "sqlite:///study.db"])
def test_files_are_refused_for_a_search_on_many_nodes(
    tmp_path: Path, storage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--runs-dir", str(tmp_path / "runs"), "--loss", "triplet"]
    assert main(["submit", *where, "--nodes", "2", "--storage", storage]) == 2
    assert "several nodes need a database" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("without_slurm")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "0"], "--nodes must be at least 1, got 0"),
        (["--hours", "0"], "--hours must be positive"),
        (["--slurm", "=high"], "--slurm takes an option of sbatch, KEY=VALUE or KEY"),
        (["--trials", "-1"], "'trials' takes a whole number >= 0"),
        (["--sampler", "gb"], "no sampler named 'gb'"),
        (["--storage", "nowhere"], "is no URL"),
        (["--no-such-flag"], "No such option"),
        (["--then", "evall"], "no command for --then named 'evall'. Did you mean 'eval'?"),
        (["--then", "eval --no-such-flag"], "No such option"),
    ],
)
def test_wrong_flags_are_refused_before_anything_is_submitted(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--runs-dir", str(tmp_path / "runs"), "--loss", "triplet"]
    assert main(["submit", *where, *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_report_alone_needs_no_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "report"]) == 2
    assert "--then report" in capsys.readouterr().err


def test_whatever_a_command_takes_can_be_submitted() -> None:
    """No flag of `harness submit` hides one of the commands that it passes flags on to.

    Except --dry-run, under which neither `submit` nor `search` runs anything.
    """
    found = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    passed = [*(found[name] for name in ("search", "eval", "sweep", "report")), found["data"]]
    passed[-1] = passed[-1].commands["prepare"]
    own = {flag for one in found["submit"].params for flag in one.opts}
    for command in passed:
        theirs = {flag for one in command.params for flag in one.opts}
        assert not (theirs & own) - {"words", "--dry-run"}


def test_an_option_of_slurm_may_have_no_value() -> None:
    given = parse_options(["requeue", "--exclusive", "gres=gpu:a100:4", "mail_user=me=you"])
    assert given == {
        **{"requeue": "", "exclusive": "", "gres": "gpu:a100:4", "mail-user": "me=you"},
    }
    with pytest.raises(HarnessError, match="one line"):
        Resources(slurm={"comment": "a\n#SBATCH --uid=0"})


STEP = Step("eval", [["eval"]], Resources(slurm={"time": "5"}))


def test_options_of_the_user_replace_ours(tmp_path: Path) -> None:
    assert write_script(STEP, tmp_path, tmp_path, {}).count("#SBATCH --time=") == 1
    assert "#SBATCH --time=5\n" in write_script(STEP, tmp_path, tmp_path, {})


@pytest.mark.parametrize(("nodes", "asked", "workers"), [(3, 0, "2"), (16, 0, "1"), (3, 3, None)])
def test_tasks_on_one_machine_share_its_cores(
    nodes: int, asked: int, workers: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "worker_count", lambda config, threads, units: 8)
    step = Step("search", [["search"]], Resources(nodes))
    shared = local.share_machine(step, RunConfig(device="cpu", workers=asked))
    assert list(shared.commands[0]) == ["search", *(["--workers", workers] if workers else [])]


@pytest.mark.slow
@pytest.mark.usefixtures("without_slurm")
def test_without_slurm_the_steps_run_on_this_machine(
    tmp_path: Path, image_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(inspect.getfile(local)).parents[2]))
    runs, results = tmp_path / "runs here", tmp_path / "results"
    pictures = ["--dataset", f"folder:{image_folder}", "--protocol", FOLDER, "--trunk", "convnet"]
    how = ["--nodes", "2", "--workers", "1", "--trials", "3", "--device", "cpu"]
    where = ["--loss", "triplet", "--runs-dir", str(runs), "--cache-dir", str(tmp_path / "cache")]
    then = ["--then", f"eval --reproductions 1 --results-dir {results}"]
    assert main(["submit", *pictures, *how, *where, *then]) == 0
    said = capsys.readouterr().out
    assert said.count(", task ") == 4
    (submission,) = find_submissions(runs)
    assert [step.job for step in submission.steps] == ["", ""]
    logs = "".join(submission.log(submission.steps[0], task).read_text() for task in (0, 1))
    assert sorted(re.findall(r"trial (\d)/3, map@r", logs)) == ["1", "2", "3"]
    assert main(["show", "triplet", "--runs-dir", str(runs)]) == 0
    assert "3 trials, 0 failed" in capsys.readouterr().out
    assert len(list(results.glob("*/*/records/triplet/*.json"))) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("without_slurm")
def test_a_task_that_fails_here_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(inspect.getfile(local)).parents[2]))
    runs = tmp_path / "runs"
    assert main(["submit", "eval", "--loss", "c2", "--runs-dir", str(runs)]) == 2
    said = capsys.readouterr().err
    assert "task 0 of eval failed: no finished search to evaluate" in said and "see /" in said


@pytest.mark.usefixtures("without_slurm")
def test_a_task_that_was_killed_here_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], stand_in: Callable[[str], None]
) -> None:
    stand_in("#!/bin/bash\nkill -KILL $$\n")
    assert main(["submit", "eval", "--device", "cpu", "--runs-dir", str(tmp_path / "runs")]) == 2
    assert "it was killed, or the machine ran out of memory" in capsys.readouterr().err


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
        assert local.share_cards(RunConfig(), Resources(nodes, gpus=gpus)) == shares
        assert local.share_cards(RunConfig(device="cuda:1"), Resources(2)) == [["b"], ["b"]]
        with pytest.raises(HarnessError, match="--gpus 9 is more than the"):
            local.share_cards(RunConfig(), Resources(2, gpus=9))
    assert local.share_cards(RunConfig(device="cpu"), Resources(2)) == [[], []]
