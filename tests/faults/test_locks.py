"""One lock per table: what is done to it at the same time is done once."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from made_records import make_record, put, put_scores

from harness.config import RunConfig
from harness.data.sources import open_part
from harness.evaluation import naive
from harness.evaluation.naive import evaluate_naive
from harness.experiment import build_experiment
from harness.records.layout import LEDGER, table_path
from harness.records.ledger import note_test_opening, read_ledger
from harness.records.merge import merge
from harness.system.files import append_lines
from harness.system.progress import ignore

TABLE = table_path("mlrc", "cub", "bninception")


def at_once(actions: Sequence[Callable[[], object]]) -> None:
    """Each in a thread of its own, which start together; what one raises is raised here."""
    ready, failed = threading.Barrier(len(actions)), []

    def run(action: Callable[[], object]) -> None:
        ready.wait()
        try:
            action()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def two_results(root: Path, openings: int) -> tuple[Path, Path]:
    """Ours of triplet, and theirs of ms, tested so many times."""
    ours, theirs = root / "ours", root / "theirs"
    put_scores(theirs, "ms", [0.5] * openings)
    for repetition in range(1, openings + 1):
        note_test_opening(theirs / TABLE, "ms", "abc", repetition)
    put(ours, make_record("triplet"))
    return ours, theirs


def test_simultaneous_merges_add_every_opening_once(tmp_path: Path) -> None:
    """41 lines became 154."""
    ours, theirs = two_results(tmp_path, 40)
    note_test_opening(ours / TABLE, "triplet", "abc", 1)
    at_once([lambda: merge([theirs], ours)] * 6)
    problems: list[str] = []
    entries = read_ledger(ours / TABLE / LEDGER, problems)
    assert (len(entries), problems) == (41, [])
    assert len({json.dumps(entry, sort_keys=True) for entry in entries}) == 41


def test_openings_that_are_noted_during_a_merge_are_kept(tmp_path: Path) -> None:
    ours, theirs = two_results(tmp_path, 10)
    noting = [lambda: note_test_opening(ours / TABLE, "triplet", "abc", 1)] * 8
    at_once([lambda: merge([theirs], ours), *noting])
    methods = [entry["method"] for entry in read_ledger(ours / TABLE / LEDGER, [])]
    assert (methods.count("ms"), methods.count("triplet")) == (10, 8)


def test_simultaneous_evaluations_test_a_naive_row_once(
    folder_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two losses have run folders of their own, and share the naive rows of their table."""
    monkeypatch.setattr(naive, "cpu_threads", lambda count: threading.Lock())  # per process
    actions = []
    for loss in ("triplet", "proxyanchor"):
        values = {"loss": loss, "reproductions": 2, "runs_dir": str(tmp_path / loss)}
        experiment = build_experiment(folder_config.updated(values))
        trainval = open_part(experiment, "trainval")
        open_part(experiment, "test")
        actions.append(
            lambda e=experiment, f=trainval.fingerprint: evaluate_naive(e, f, (), ignore)
        )
    at_once(actions)
    entries = read_ledger(experiment.results / LEDGER, [])
    looks = [(entry["method"], entry["repetition"]) for entry in entries]
    assert sorted(looks) == [("pixels", 0), ("untrained", 1), ("untrained", 2)]


def test_a_line_that_a_power_cut_left_torn_is_replaced_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    append_lines(path, [{"a": 1}])
    with open(path, "ab") as file:
        file.write(b'{"b": ')
    append_lines(path, [{"c": 3}, {"d": 4}])
    assert path.read_text() == '{"a": 1}\n{"c": 3}\n{"d": 4}\n'
