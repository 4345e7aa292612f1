"""What machines without a shared folder find in a database, and what they may not do twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import optuna
import pytest
import sqlalchemy

from harness.cli import main
from harness.config import RunConfig
from harness.records.layout import LEDGER
from harness.records.ledger import note_test_opening, read_ledger
from harness.searching.database_tables import COPIES
from harness.searching.loop import search
from harness.searching.shared_records import CONFIG_FACT, SharedRecords
from harness.searching.storage import Database, open_storage
from harness.training.trainer import TrainingFailed

TABLE = Path("mlrc", "glyphs-glyphnet")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/study.db"


@pytest.fixture
def machine(tmp_path: Path, url: str) -> Callable[[str], SharedRecords]:
    """The records of a machine, by its name."""

    def make(name: str) -> SharedRecords:
        root = tmp_path / name
        storage = open_storage(url, root / "runs" / TABLE / "ms", "ms", heartbeat=30)
        return SharedRecords(storage, root / "runs", root / "results")

    return make


def test_records_and_openings_reach_another_machine(
    machine: Callable[[str], SharedRecords], tmp_path: Path
) -> None:
    here, there = machine("a"), machine("b")
    ours, theirs = (tmp_path / name / "results" / TABLE for name in ("a", "b"))
    record = Path("records", "ms", "0123-01.json")
    (ours / record).parent.mkdir(parents=True)
    (ours / record).write_text('{"name": "Ä"}\n')
    for repetition in (1, 2):
        note_test_opening(ours, "ms", "0123", repetition)
    note_test_opening(theirs, "ms", "0123", 3)
    for _ in range(2):  # the second time there is nothing new
        here.send([ours / record, ours / "records" / "ms" / "not there.json"])
        here.send_openings(ours)
        there.fetch_table(theirs)
    assert (theirs / record).read_bytes() == (ours / record).read_bytes()
    openings = [entry["repetition"] for entry in read_ledger(theirs / LEDGER, [])]
    assert sorted(openings) == [1, 2, 3]


def test_no_name_in_a_database_leads_out_of_the_folders(
    machine: Callable[[str], SharedRecords], tmp_path: Path
) -> None:
    here = machine("a")
    assert isinstance(here.storage, Database)
    start = f"results/{TABLE.as_posix()}"
    inside = f"{start}/records/ms/0123-01.json"
    outside = ("../../../x.json", "records/../../x.json", "records/ms/.x.json", "../x/records/m/x")
    with here.storage.connected() as connection:
        for name in (inside, *(f"{start}/{name}" for name in outside)):
            connection.execute(COPIES.insert().values(path=name, content="{}"))
    here.fetch_table(tmp_path / "a" / "results" / TABLE)
    written = [path for path in tmp_path.rglob("*.json")]
    assert written == [tmp_path / "a" / inside]


def test_one_machine_at_a_time_has_a_lease_and_its_workers_share_it(
    machine: Callable[[str], SharedRecords], tmp_path: Path
) -> None:
    """A lease ends when it is released, or with the last worker of its machine."""
    first, beside, other = machine("a"), machine("a"), machine("b")
    work = [tmp_path / name / "results" / "work" for name in ("a", "a", "b")]
    with beside.storage.joined():
        with first.storage.joined():
            assert first.lease(work[0]) and beside.lease(work[1])
            assert not other.lease(work[2])
        assert not other.lease(work[2])
        first.release(work[0])
        assert other.lease(work[2])
    with other.storage.joined():
        assert not first.lease(work[0])
        other.release(tmp_path / "b" / "results" / "other work")
        assert not first.lease(work[0])
    assert first.lease(work[0])


@pytest.fixture
def searched(config: RunConfig, objective: SimpleNamespace, url: str) -> RunConfig:
    """A search of three trials in a database, the last of which fails."""
    right = objective.function

    def fail_in_the_end(params: dict[str, float]) -> float:
        if len(objective.calls) == 3:
            raise TrainingFailed("the disk was full")
        return right(params)

    objective.function = fail_in_the_end
    stored = config.updated({"storage": url, "trials": 3, "sampler": "random"})
    search([stored])
    return stored


def test_a_url_is_enough_to_show_a_search_and_to_retry_its_failures(
    searched: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = ["--storage", searched.storage, "--runs-dir", str(tmp_path / "elsewhere")]
    assert main(["show", *elsewhere, "--results-dir", str(tmp_path / "none")]) == 0
    assert "3 trials, 1 failed" in capsys.readouterr().out
    assert main(["show", *elsewhere, "--dataset", "cub"]) == 2
    assert "no such search here" in capsys.readouterr().err
    assert main(["retry", "proxyanchor", *elsewhere]) == 0
    assert "1 failed trials will be run again" in capsys.readouterr().out
    assert not (tmp_path / "elsewhere").exists()


def test_a_study_without_its_config_is_not_found_elsewhere(
    searched: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it is with studies from before configs were kept with them."""
    engine = sqlalchemy.create_engine(searched.storage)
    with engine.begin() as connection:
        delete = "DELETE FROM study_user_attributes WHERE key = :key"
        connection.execute(sqlalchemy.text(delete), {"key": CONFIG_FACT})
    elsewhere = ["--storage", searched.storage, "--runs-dir", str(tmp_path / "elsewhere")]
    assert main(["show", *elsewhere]) == 2
    assert "no such search here; start it with harness search" in capsys.readouterr().err


def test_a_config_in_a_database_says_nothing_of_the_machine(searched: RunConfig) -> None:
    (study,) = optuna.get_all_study_summaries(searched.storage)
    kept = study.user_attrs[CONFIG_FACT]
    assert kept["loss"] == "proxyanchor" and kept["trials"] == 3
    assert not {"runs_dir", "results_dir", "storage", "device"} & kept.keys()
    assert searched.runs_dir not in str(kept) and searched.storage not in str(kept)
