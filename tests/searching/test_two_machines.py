"""Two machines without a shared folder do one search and one evaluation through a database.

A machine is a process with folders of its own, for runs, results and the cache.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import FOLDER, write_images
from postgres import Postgres
from processes import Command

from harness.cli import main
from harness.records.layout import CONFIG, FOLD_RECORD, FOLDS, LEDGER, find_records
from harness.records.ledger import read_ledger
from harness.records.records import TestRecord

PAIRS = FOLDER.replace("mlrc+", "mlrc-pairs+") + "+finalists=2+rotations=1"
TRIALS, REPRODUCTIONS = 4, 2
LONGEST = 240.0  # seconds


@pytest.fixture
def url(installed_postgres: Postgres) -> Iterator[str]:
    name = f"db{time.monotonic_ns()}"
    installed_postgres.ask(f"CREATE DATABASE {name}")
    yield installed_postgres.url(name)
    installed_postgres.ask(f"DROP DATABASE {name} WITH (FORCE)")


class Machine:
    """A machine with folders of its own."""

    def __init__(self, root: Path, name: str, pictures: Path) -> None:
        self.root, self.pictures = root / name, pictures

    def folders(self, *kinds: str) -> list[str]:
        return [word for kind in kinds for word in (f"--{kind}-dir", str(self.root / kind))]

    def search(self, protocol: str, *more: str) -> list[str]:
        what = ["--loss", "proxyanchor", "--dataset", f"folder:{self.pictures}", "--trunk"]
        how = ["convnet", "--protocol", protocol, "--trials", str(TRIALS), "--workers", "1"]
        return ["search", *what, *how, *self.folders("runs", "cache"), *more]

    def eval(self, *more: str) -> list[str]:
        how = ["--reproductions", str(REPRODUCTIONS), "--workers", "1"]
        return ["eval", *how, *self.folders("runs", "results", "cache"), *more]

    def trained(self) -> set[str]:
        """The units that were trained here: a config is written before, and never fetched."""
        return {p.parent.name for p in self.root.glob(f"runs/*/*/*/{FOLDS}/*/{CONFIG}")}

    def finished(self) -> list[Path]:
        return list(self.root.glob(f"runs/*/*/*/{FOLDS}/*/{FOLD_RECORD}"))

    @property
    def table(self) -> Path:
        (table,) = self.root.glob("results/*/*")
        return table

    def scores(self) -> dict[str, Any]:
        """Everything that its test records measured, with the scores of the search."""
        found = {}
        for path in find_records(self.table):
            record = TestRecord.read(path)
            chosen = record.search.get("trial_scores"), record.search.get("validation_folds")
            found[f"{path.parent.name}/{path.name}"] = (record.params, record.scores, *chosen)
        return found


@pytest.fixture
def make_machine(tmp_path: Path) -> Callable[[str], Machine]:
    pictures = tmp_path / "pictures"
    write_images(pictures)
    return lambda name: Machine(tmp_path, name, pictures)


def together(*commands: list[str]) -> None:
    """Run commands at the same time, to their good ends."""
    running = [Command(*command) for command in commands]
    for one in running:
        said = one.finish()
        assert one.exit_code == 0, said


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [FOLDER, PAIRS], ids=["folds", "pairs"])
def test_two_machines_share_a_search_and_its_evaluation(
    make_machine: Callable[[str], Machine],
    url: str,
    protocol: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    alone, a, b, c, d = (make_machine(name) for name in ("alone", "a", "b", "c", "d"))
    together(alone.search(protocol))
    together(alone.eval())
    stored = ["--storage", url]
    together(a.search(protocol, *stored), b.search(protocol, *stored))
    assert not a.trained() & b.trained()
    # The machines that evaluate have neither run a search nor seen its folder.
    together(c.eval(*stored), d.eval(*stored))
    assert not c.trained() & d.trained()
    assert a.trained() | b.trained() | c.trained() | d.trained() == alone.trained()
    assert c.scores() == d.scores() == alone.scores()
    ledgers = [read_ledger(machine.table / LEDGER, []) for machine in (c, d, alone)]
    openings = [Counter((e["method"], e["repetition"]) for e in ledger) for ledger in ledgers]
    assert openings[0] == openings[1] == openings[2]
    # Nothing is left to do, so everything comes from the database.
    fresh = make_machine("fresh")
    assert main(["show", *stored, *fresh.folders("runs", "results")]) == 0
    assert f"{TRIALS} trials, 0 failed" in capsys.readouterr().out
    assert not fresh.root.exists()
    assert main(fresh.eval(*stored)) == 0
    assert not fresh.trained() and fresh.scores() == alone.scores()
    # Weights do not travel, and without them nothing more can be measured.
    assert main(fresh.eval(*stored, "--metrics", "nmi")) == 2
    assert "if another machine trained them, repeat the command there" in capsys.readouterr().err


@pytest.mark.slow
def test_a_machine_that_is_lost_with_its_folder_is_replaced_by_the_other(
    make_machine: Callable[[str], Machine], url: str
) -> None:
    protocol = PAIRS.replace("max_steps=4", "max_steps=24").replace("every=2", "every=12")
    alone, lost, kept = (make_machine(name) for name in ("alone", "lost", "kept"))
    together(alone.search(protocol))
    together(alone.eval())
    stored = ["--storage", url, "--set", "heartbeat=1"]
    for doomed, other in (
        (lost.search(protocol, *stored), kept.search(protocol, *stored)),
        (lost.eval(*stored), kept.eval(*stored)),
    ):
        first, second = Command(*doomed), Command(*other)
        end = time.monotonic() + LONGEST
        while not lost.finished() and time.monotonic() < end:
            time.sleep(0.01)
        assert first.exit_code is None, first.finish()
        first.signal(signal.SIGKILL)
        first.finish()
        shutil.rmtree(lost.root)
        said = second.finish()
        assert second.exit_code == 0, said
    assert kept.scores() == alone.scores()
