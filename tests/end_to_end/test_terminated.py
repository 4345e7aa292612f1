"""SIGTERM, as Slurm, Kubernetes and spot machines send it: the work is saved and given back."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from conftest import FOLDER
from processes import Command
from sqlalchemy import create_engine, text
from telling_loss import SAYS, write_telling

from harness.system.stopping import TERMINATED

# The next validation is hours away.
HOURS = re.sub(r"(max_steps|validate_every)=\d", r"\1=1000000", FOLDER)


@pytest.mark.parametrize(("workers", "reaches"), [("1", "all"), ("2", "all"), ("2", "first")])
@pytest.mark.slow
def test_a_search_that_is_stopped_saves_its_work_and_returns_its_trials(
    workers: str, reaches: str, tmp_path: Path, image_folder: Path, postgres: str
) -> None:
    """Slurm sends the signal to all processes, Kubernetes to the first one alone."""
    telling = write_telling(tmp_path)
    where = ["--runs-dir", str(tmp_path / "runs"), "--storage", postgres]
    process = Command(
        *("search", "--loss", str(telling), "--device", "cpu", "--workers", workers, *where),
        *("--dataset", f"folder:{image_folder}", "--trunk", "convnet", "--protocol", HOURS),
        *("--trials", "2", "--sampler", "random"),
        forks_workers=True,
    )
    folds = "**/folds/*/config.yaml"
    while len(list(tmp_path.glob(folds))) < int(workers):
        process.read_until(SAYS)
    for _ in range(200):  # by now each of them trains
        process.read_until(SAYS)
    if reaches == "all":
        process.signal(signal.SIGTERM)
    else:
        os.kill(process.pid, signal.SIGTERM)
    _, said = process.finish()
    assert process.exit_code == TERMINATED == 143
    assert "Repeat the same command to go on" in said and "Traceback" not in said
    started = [path.parent for path in tmp_path.glob(folds)]
    assert len(started) == int(workers)
    assert all((folder / "checkpoint.pt").exists() for folder in started)
    # A worker that is gone from this table has its trial taken over at once.
    with create_engine(postgres).connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM harness_workers")).scalar() == 0
