"""What `harness status` says of the tasks of `harness submit`, and `harness cancel`."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from emulated_slurm import wait_until

from harness.cli import main
from harness.cluster import slurm
from harness.cluster.batch import Resources, Step
from harness.cluster.submissions import Submission, find_submissions, keep
from harness.cluster.tasks import tasks_of

# Works until it is asked to stop.
WAITS = """#!/bin/bash
trap 'echo stopping; exit 143' TERM
while true; do sleep 0.2 & wait $!; done
"""


def put_submission(folder: Path, job: str, notes: list[str], log: str = "") -> Submission:
    """One task, with what it noted and what it printed."""
    folder.mkdir()
    submission = keep([Step("eval", [["eval"]], Resources())], folder, folder, [], [job])
    lines = [f"2030-01-01T00:00:00 {note}\n" for note in notes]
    (folder / "eval_0.notes").write_text("".join(lines))
    submission.log(submission.steps[0], 0).write_text(log)
    return submission


@pytest.mark.parametrize(
    ("notes", "said"),
    [
        ([], ("unknown", "it left no notes")),
        (["n1: started, process 1"], ("lost", "killed, or its machine was lost")),
        (["n1: started, process 1", "n1: exit code 0"], ("done", "")),
        (["n1: started, process 1", "n1: exit code 3"], ("failed", "exit code 3")),
        (["n1: started, process 1", "n1: stopped by SIGTERM"], ("stopped", "stopped by SIGTERM")),
        (
            ["n1: started, process 1", "n1: exit code 137"],
            ("failed", "killed, usually because memory was short; ask for more"),
        ),
        (
            ["n1: started, process 1", "n1: time limit: queued again"],
            ("waits", "time limit: queued again"),
        ),
    ],
)
def test_a_task_that_slurm_has_forgotten_is_known_from_its_notes(
    notes: list[str], said: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "has_slurm", lambda: False)
    submission = put_submission(tmp_path / "s", "12", notes)
    (task,) = tasks_of(submission, submission.steps[0])
    assert (task.now.state, task.now.reason) == said


def test_the_reason_of_a_failure_is_the_error_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(slurm, "has_slurm", lambda: False)
    starts = ["n1: started, process 1", "n2: started again (1), process 2"]
    starts += ["n2: time limit: queued again", "n2: started again (2), process 3"]
    (tmp_path / "submitted").mkdir()
    put_submission(
        tmp_path / "submitted" / "s", "12", [*starts, "n2: exit code 2"], "error: no such data\n"
    )
    assert main(["status", "--runs-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out.endswith(
        "  eval, job 12, task 0: failed on n2 (no such data); earlier: killed, or its machine was "
        "lost, 1 time; time limit, 1 time\n"
    )


# What sacct prints: these columns are in its manual. Accounting needs a database of its own, which
# the Slurm of the other tests does not have.
SACCT = """#!/bin/bash
echo '12_0|OUT_OF_MEMORY|node2'
echo '12_1|CANCELLED by 1000|node3'
echo '12_2|TIMEOUT|node4'
echo '12_[3-9%8]|PENDING|None assigned'
"""


def test_accounting_says_why_a_task_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, source in (("sacct", SACCT), ("squeue", "#!/bin/bash\nexit 1\n")):
        (programs / name).write_text(source)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm, "has_slurm", lambda: True)
    folder = tmp_path / "s"
    folder.mkdir()
    step = Step("eval", [["eval"]], Resources(nodes=3))
    submission = keep([step], folder, folder, [], ["12"])
    tasks = tasks_of(submission, submission.steps[0])
    assert [(task.now.state, task.node) for task in tasks] == [
        *(("failed", "node2"), ("stopped", "node3"), ("failed", "node4")),
    ]
    assert tasks[0].now.reason.startswith("out of memory")
    assert tasks[2].now.reason == "its time limit was reached"


@pytest.mark.slow
def test_tasks_on_this_machine_are_shown_and_cancelled(
    tmp_path: Path,
    stand_in: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(slurm, "has_slurm", lambda: False)
    stand_in(WAITS)
    where = ["--runs-dir", str(tmp_path / "runs")]
    words = ["submit", "eval", "--device", "cpu", "--nodes", "2", *where]
    codes: list[int] = []
    waiting = threading.Thread(target=lambda: codes.append(main(words)))
    waiting.start()
    wait_until(lambda: len(list(tmp_path.glob("runs/submitted/*/*.notes"))) == 2)
    (submission,) = find_submissions(tmp_path / "runs")
    capsys.readouterr()
    assert main(["status", *where]) == 0
    said = capsys.readouterr().out
    assert f"submitted as {submission.id}, logs in {submission.logs}\n" in said
    assert f"  eval, tasks 0, 1: runs on {socket.gethostname()}\n" in said
    assert main(["cancel", "another", *where]) == 2
    assert f"known: {submission.id}" in capsys.readouterr().err
    assert main(["cancel", *where]) == 0
    waiting.join(60)
    captured = capsys.readouterr()
    assert f"{submission.id}: 2 tasks cancelled" in captured.out
    assert codes == [2] and "it was stopped; repeat the command to go on" in captured.err
    assert main(["status", *where]) == 0
    assert "tasks 0, 1: stopped on" in capsys.readouterr().out
    assert main(["cancel", *where]) == 0
    assert capsys.readouterr().out == ""
