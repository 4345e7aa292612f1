"""Whatever call of the system fails in the middle of a command, the same command then finishes it.

Every call that fails ends the command with a message, or is got over; never with a traceback. What
is there afterwards has the bits of a command that was left alone.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from conftest import FOLDER, study_of, write_images
from failing_calls import ERRORS, failing_files, failing_statements
from made_records import make_record, put, put_scores
from optuna.storages import RDBStorage

from harness import registry
from harness.config import RunConfig
from harness.data.sources import open_part
from harness.errors import HarnessError
from harness.evaluation.reproductions import evaluate
from harness.experiment import build_experiment
from harness.records.layout import LEDGER, table_path
from harness.records.ledger import note_test_opening, read_ledger
from harness.records.merge import merge
from harness.records.records import FoldRecord, TestRecord
from harness.searching import storage
from harness.searching.loop import search
from harness.searching.trials import index_of
from harness.system.files import UNFINISHED, naming_disk_trouble
from harness.tables import leaderboard

# How many pairs of a call and an error: some in `make test`, all of them in `make faults`.
WANTED = os.environ.get("HARNESS_FAULTS", "")

SEED = 20260101


class Task:
    """A command in a folder of its own, and what it is to leave there."""

    def prepare(self, root: Path) -> None:
        """What is there before."""

    def run(self, root: Path) -> None:
        raise NotImplementedError

    def left(self, root: Path) -> Any:
        """What can be compared: no times, no traces of failures."""
        raise NotImplementedError


def config_in(root: Path) -> RunConfig:
    return RunConfig(
        loss="proxyanchor",
        dataset=f"folder:{root / 'pictures'}",
        protocol=FOLDER.replace("max_steps=4", "max_steps=2").replace("every=2", "every=1"),
        trunk="convnet",
        trials=2,
        reproductions=1,
        workers=1,
        device="cpu",
        runs_dir=str(root / "runs"),
        results_dir=str(root / "results"),
        cache_dir=str(root / "cache"),
    )


def fold_of(path: Path) -> Any:
    record = FoldRecord.read(path)
    return (
        *(record.params, record.fold, record.repetition, record.best_score, record.best_step),
        *(record.steps, record.history, record.hook),
    )


class Search(Task):
    def prepare(self, root: Path) -> None:
        write_images(root / "pictures", num_classes=16, per_class=3)

    def run(self, root: Path) -> None:
        with naming_disk_trouble():  # as the command does
            (summary,) = search([config_in(root)])
        assert summary.failed == 0

    def left(self, root: Path) -> Any:
        study = study_of(build_experiment(config_in(root)))
        trials = [(index_of(t), t.params, t.values) for t in study.counted()]
        records = sorted(root.glob("runs/**/record.json"))
        return trials, {path.parent.name: fold_of(path) for path in records}


class Eval(Search):
    """Of a search that is done."""

    def prepare(self, root: Path) -> None:
        super().prepare(root)
        search([config_in(root)])

    def run(self, root: Path) -> None:
        config = config_in(root)
        names = ("runs_dir", "results_dir", "cache_dir", "workers", "reproductions", "device")
        with naming_disk_trouble():
            done = evaluate([], {name: getattr(config, name) for name in names})
            for table in done.tables:
                leaderboard.write(leaderboard.build(table))
        if done.problems:  # as the command says it
            raise HarnessError(str(done.problems))

    def left(self, root: Path) -> Any:
        found = {}
        for path in sorted(root.glob("results/*/*/records/*/*.json")):
            record = TestRecord.read(path)
            found[path.name] = (record.kind, record.params, record.scores, record.per_class)
        (table,) = root.glob("results/*/*")
        problems: list[str] = []
        ledger = read_ledger(table / LEDGER, problems)
        tested = {(entry["method"], entry["repetition"]) for entry in ledger}
        board = leaderboard.build(table)
        return found, tested, problems, board.problems, sorted(p.name for p in table.iterdir())


class Merge(Task):
    TABLE = table_path("mlrc", "cub", "bninception")

    def prepare(self, root: Path) -> None:
        put_scores(root / "theirs", "ms", [0.5, 0.6])
        for repetition in (1, 2):
            note_test_opening(root / "theirs" / self.TABLE, "ms", "abc", repetition)
        put(root / "ours", make_record("triplet"))
        note_test_opening(root / "ours" / self.TABLE, "triplet", "abc", 1)

    def run(self, root: Path) -> None:
        with naming_disk_trouble():
            done = merge([root / "theirs"], root / "ours")
            for table in done.tables:
                leaderboard.write(leaderboard.build(table))
        if done.refused:  # as the command says it
            raise HarnessError(str(done.refused))

    def left(self, root: Path) -> Any:
        table = root / "ours" / self.TABLE
        lines = [json.loads(line) for line in (table / LEDGER).read_text().splitlines()]
        files = {
            str(path.relative_to(table)): path.read_bytes()
            for path in table.rglob("*")
            if path.is_file() and path.suffix not in (".lock", ".jsonl", ".csv")
        }
        return [(line["method"], line["repetition"]) for line in lines], files


class Prepare(Task):
    def prepare(self, root: Path) -> None:
        write_images(root / "pictures", num_classes=16, per_class=3)

    def run(self, root: Path) -> None:
        with naming_disk_trouble():
            for protocol in (config_in(root).protocol, "frozen"):
                settings = {"protocol": protocol, "weights": "none"}
                open_part(build_experiment(config_in(root).updated(settings)), "trainval")

    def left(self, root: Path) -> Any:
        return {
            str(path.relative_to(root)): path.read_bytes()
            for path in sorted((root / "cache").rglob("*"))
            if path.is_file() and path.suffix != ".lock"
        }


TASKS: dict[str, Task] = {
    "search": Search(),
    "eval": Eval(),
    "merge": Merge(),
    "prepare": Prepare(),
}


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """What each command finds before it begins."""
    folders = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, task in TASKS.items():
            folders[name] = tmp_path_factory.mktemp(name)
            task.prepare(folders[name])
    return folders


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.training.fold.PAUSES", (0, 0))
    monkeypatch.setattr(storage, "PATIENCE", (0, 0))


def begin(started: Path, root: Path) -> None:
    """Where a command begins: the same folder, by the same name."""
    if root.exists():
        shutil.rmtree(root)
    shutil.copytree(started, root, symlinks=True)
    registry.forget_listings()


def chosen(there: Sequence[Any], usual: int) -> list[Any]:
    """Some of all that there are, spread over the whole command; or as many as were asked for."""
    count = len(there) if WANTED == "every" else int(WANTED or usual)
    return sorted(random.Random(SEED).sample(there, min(count, len(there))))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "usual"), [("search", 40), ("eval", 30), ("merge", 70), ("prepare", 60)]
)
def test_a_command_that_a_call_of_the_system_failed_is_finished_by_the_next(
    name: str,
    usual: int,
    started: Mapping[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task, root = TASKS[name], tmp_path / name
    begin(started[name], root)
    with failing_files(monkeypatch, root) as counted:
        task.run(root)
    expected = task.left(root)
    ended: dict[str, int] = {"got over": 0, "said": 0}
    found = [(number, error) for number in range(len(counted.calls)) for error in ERRORS]
    for number, error in chosen(found, usual):
        begin(started[name], root)
        where = f"{name}: call {number} of {len(counted.calls)}, {counted.calls[number]}, {error}"
        with failing_files(monkeypatch, root, number, error) as faults:
            try:
                task.run(root)
                ended["got over"] += 1
            except HarnessError as told:
                ended["said"] += 1
                assert str(told).strip(), where
            except Exception as traceback:
                raise AssertionError(where) from traceback
        assert faults.failed, where
        registry.forget_listings()
        task.run(root)
        assert task.left(root) == expected, where
        assert not list(root.rglob(f".*{UNFINISHED}")), where
    print(f"{name}: {len(counted.calls)} calls, {ended}")


@pytest.mark.slow
def test_a_search_that_a_database_left_alone_is_finished_by_the_next(
    started: Mapping[str, Path], tmp_path: Path
) -> None:
    """Lost for a moment it is got over; what is kept in it afterwards is the same."""
    root = tmp_path / "search"

    def run() -> Any:
        config = config_in(root).updated({"storage": f"sqlite:///{root}/study.db"})
        search([config])
        trials = study_of(build_experiment(config)).counted()
        return [(index_of(trial), trial.params, trial.values) for trial in trials]

    begin(started["search"], root)
    with failing_statements() as counted:
        expected = run()
    numbers = range(len(counted.calls))
    for number in chosen(numbers, 20):
        begin(started["search"], root)
        with failing_statements(number) as faults:
            try:
                run()
            except HarnessError as told:
                assert "storage" in str(told)
            except Exception as traceback:
                raise AssertionError(f"statement {number} of {len(numbers)}") from traceback
        assert faults.failed
        registry.forget_listings()
        assert run() == expected, f"statement {number} of {len(numbers)}"


def test_a_database_that_was_lost_before_its_indexes_were_made_keeps_one_study(
    started: Mapping[str, Path], tmp_path: Path
) -> None:
    """They are what keeps the names of studies apart, and are never made later."""
    root = tmp_path / "search"
    begin(started["search"], root)
    url = f"sqlite:///{root}/study.db"
    database = RDBStorage(url)
    with database.engine.begin() as connection:
        connection.execute(sqlalchemy.text("DROP INDEX ix_studies_study_name"))
    for trials in (1, 2):
        search([config_in(root).updated({"storage": url, "trials": trials})])
    (study,) = RDBStorage(url).get_all_studies()
    assert len(RDBStorage(url).get_all_trials(study._study_id)) == 2


def test_the_layer_fails_the_call_it_is_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of what was to be written is there, as on a disk that is full."""
    path = tmp_path / "file"

    def write() -> None:
        with open(path, "wb", buffering=0) as file:
            file.write(b"12345678")

    check: Callable[[], None] = write
    with failing_files(monkeypatch, tmp_path) as counted:
        check()
    assert counted.calls == ["open to write", "write"]
    with (
        failing_files(monkeypatch, tmp_path, 1, "ENOSPC") as faults,
        pytest.raises(OSError, match="No space left"),
    ):
        check()
    assert faults.failed and path.read_bytes() == b"1234"
    check()
    assert path.read_bytes() == b"12345678"
