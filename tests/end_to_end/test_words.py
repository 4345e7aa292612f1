"""What commands say: help, versions, mistakes, bugs; on any terminal."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import textwrap
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from conftest import FOLDER
from ends import run
from made_records import put_scores
from made_tables import put_table

import harness
from harness import registry
from harness.cli import BUG, main
from harness.cli.display import Bars, plain_console
from harness.cli.printed_table import blocks, width_of
from harness.config import RunConfig
from harness.errors import HarnessError, unknown
from harness.system.progress import Begun, Event, Tested, TrialEnded


def test_h_is_help_of_every_command() -> None:
    for arguments in (["-h"], ["search", "-h"], ["data", "check", "-h"]):
        end = run(arguments)
        assert end.code == 0
        assert "Usage: harness" in end.out


def test_harness_alone_prints_its_help() -> None:
    end = run([])
    assert end.code == 0
    assert "Usage: harness" in end.out and "search" in end.out


def test_version_is_printed() -> None:
    end = run(["--version"])
    assert end.code == 0
    assert end.out.startswith("metric-harness ")


@pytest.mark.parametrize(
    ("arguments", "help_"),
    [
        (["search", "--trals", "3"], "harness search --help"),
        (["data", "check"], "harness data check --help"),
        (["serch"], "harness --help"),
    ],
)
def test_a_refused_flag_points_to_the_help_of_its_command(arguments: list[str], help_: str) -> None:
    end = run(arguments)
    assert end.code == 2
    assert f"see: {help_}" in end.err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("ProxyAnchor", "proxyanchor"), ("CCP", "ccp"), ("hlp", "hpl"), ("DRML-PA", "drml-pa")],
)
def test_did_you_mean_knows_aliases_and_case(typed: str, meant: str) -> None:
    with pytest.raises(HarnessError, match=f"Did you mean '{meant}'"):
        registry.load_method(typed)


def test_a_name_in_another_case_is_nearer_than_a_similar_one() -> None:
    assert "Did you mean 'CUB'" in str(unknown("x", "cub", ["CUB", "cubs"]))


def test_what_nobody_has_words_for_is_a_bug_of_ours_with_a_report(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(folder: Path) -> None:
        raise ZeroDivisionError("in postgresql://me:secret@host/db")

    monkeypatch.setattr("harness.records.layout.find_tables", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["harness", "--storage", "postgresql://me:secret@host/db"])
    end = run(["leaderboard"])
    assert end.code == BUG == 70
    assert "error: this is a bug in metric-harness: ZeroDivisionError" in end.err
    (report,) = tmp_path.iterdir()
    assert str(report) in end.err
    assert "in broken" in report.read_text()
    assert "metric-harness" in report.read_text()
    assert "secret" not in report.read_text() + end.err


def test_memory_that_is_short_is_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(folder: Path) -> None:
        raise MemoryError

    monkeypatch.setattr("harness.records.layout.find_tables", short)
    end = run(["leaderboard"])
    assert end.code == 2
    assert "out of memory" in end.err


def test_a_terminal_without_utf8_gets_every_table(tmp_path: Path) -> None:
    put_scores(tmp_path, "café ±", [0.5, 0.6])
    end = run(["leaderboard", "--results-dir", str(tmp_path)], encoding="ascii")
    assert end.code == 0
    assert "caf\\xe9 +-" in end.out


def test_a_reader_that_has_enough_is_no_error() -> None:
    command = f"{sys.executable} -m harness list | true"
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment)
    assert done.stderr == ""


def test_a_name_that_is_not_utf8_is_spelt_out(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/\xff"
    end = run(["leaderboard", "--results-dir", os.fsdecode(folder)])
    assert end.code == 2
    assert "\\udcff" in end.err
    assert main(["leaderboard", "--results-dir", os.fsdecode(folder)]) == 2


FAILING = """
from pytorch_metric_learning.losses import TripletMarginLoss


class Mine(TripletMarginLoss):
    steps = 0

    def compute_loss(self, *batch):
        self.steps += 1
        if self.steps == 2:  # not the first, which a check before the search tries
            raise ArithmeticError("no [good] today")
        return super().compute_loss(*batch)
"""


def search_words(root: Path, loss: str, pictures: Path) -> list[str]:
    return [
        *("search", "--loss", loss, "--dataset", f"folder:{pictures}", "--trunk", "convnet"),
        *("--protocol", FOLDER, "--workers", "1", "--device", "cpu", "--trials", "1"),
        *("--runs-dir", str(root / "runs here"), "--cache-dir", str(root / "cache")),
    ]


def test_a_failing_loss_shows_its_last_line_and_where_the_traceback_is(
    tmp_path: Path, image_folder: Path
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(FAILING)
    end = run(search_words(tmp_path, str(path), image_folder))
    assert end.code == 2
    assert "failed: ArithmeticError: no [good] today" in end.err
    (said,) = re.findall(r"traceback: (.*)", end.err)
    assert "in compute_loss" in Path(said).read_text()


def test_next_repeats_the_folders_that_were_given(tmp_path: Path, image_folder: Path) -> None:
    end = run(search_words(tmp_path, "triplet", image_folder))
    assert end.code == 0
    assert f"next: harness eval --runs-dir '{tmp_path / 'runs here'}'" in end.out


def bars_after(*events: Event) -> str:
    """What the bars show when all of that has happened."""
    bars = Bars()
    with bars:
        for event in events:
            bars(event)
        console = plain_console(width=80, file=io.StringIO())
        console.print(bars.bars.get_renderable())
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_bar_of_a_search_stands_before_its_first_trial_ends() -> None:
    assert "preparing" in bars_after()
    shown = bars_after(Begun(method="ms", done=0, total=50, units="trials"))
    assert "0/50" in shown
    assert "preparing" not in shown


def test_bars_count_what_has_ended_in_whatever_order() -> None:
    begun = Begun(method="ms", done=3, total=10, units="reproductions")
    ended = [Tested(method="ms", reproduction=n, reproductions=10, score=0.5) for n in (9, 4)]
    assert "5/10" in bars_after(begun, *ended)
    trials = [TrialEnded(method="ms", trial=n, trials=50, seconds=1.0, score=0.5) for n in (3, 1)]
    failed = TrialEnded(method="ms", trial=2, trials=50, seconds=1.0, reason="nan")
    assert "3/50" in bars_after(*trials, failed)


def test_python_shows_progress_where_it_is_asked_for(
    folder_config: RunConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    settings: Any = {name: getattr(folder_config, name) for name in ("protocol", "trunk", "device")}
    settings |= {"dataset": folder_config.dataset, "runs_dir": folder_config.runs_dir}
    settings |= {"cache_dir": folder_config.cache_dir, "workers": 1}
    harness.search("triplet", trials=1, **settings)
    assert capsys.readouterr().err == ""
    harness.search(["triplet"], trials=2, progress=True, **settings)
    assert "triplet: trial 2/2" in capsys.readouterr().err


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def test_tables_fit_a_terminal_of_80_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_table(tmp_path, "cub", ("ms", "a-method-with-a-rather-long-name+space=paper", "triplet"))
    monkeypatch.setenv("COLUMNS", "80")
    commands = (["leaderboard"], ["compare", "ms", "triplet", "--dataset", "cub"])
    for command in commands:
        screen = Screen()
        with redirect_stdout(screen):
            assert main([*command, "--results-dir", str(tmp_path)]) == 0
        plain = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())
        table = [line for line in plain.splitlines() if set(line) & set("│┃┏━└─|")]
        assert table
        assert max(map(len, table)) <= 80


def test_a_table_of_many_columns_is_cut_into_several_that_fit() -> None:
    rows = pd.DataFrame({"method": ["ms"], **{f"column {i}": ["0.1234"] for i in range(20)}})
    widths = [[width_of(block[c]) for c in block] for block in blocks(rows, 80)]
    assert all(sum(block) + 1 <= 80 for block in widths)
    assert [c for block in blocks(rows, 80) for c in block][:1] == ["method"]
    shown = {column for block in blocks(rows, 80) for column in block}
    assert shown == set(rows)
    assert all(block.columns[0] == "method" for block in blocks(rows, 80))
    assert len(blocks(rows, 1000)) == 1


def test_many_group_letters_do_not_cut_a_table_in_two() -> None:
    cells = {"group": "ABCDEFGHIJ", "method": "proxyanchor", "MAP@R 512": "20.14 ± 0.12"}
    cells |= {"P@1 512": "58.35", "vs base": "+0.35 ± 0.39", "notes": "best value at the edge"}
    assert len(blocks(pd.DataFrame([cells]), 80)) == 1


@pytest.mark.parametrize("columns", [80, 132])
def test_piped_tables_are_as_wide_as_columns_says(tmp_path: Path, columns: int) -> None:
    put_table(tmp_path)
    command = [sys.executable, "-m", "harness", "leaderboard", "--results-dir", str(tmp_path)]
    environment = {**os.environ, "COLUMNS": str(columns)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    rule = next(line for line in done.stdout.splitlines() if line.strip().startswith("──"))
    assert 78 < len(rule.rstrip()) <= columns
    assert columns == 80 or len(rule.rstrip()) > 80


def test_a_head_that_is_attached_works_as_documented() -> None:
    """DRML's, as in losses/README.md."""
    text = (Path(__file__).parents[2] / "losses" / "README.md").read_text()
    (block,) = re.findall(
        r"```python\n(  from harness.losses import DRML\n.*?)```", text, re.DOTALL
    )
    features = torch.randn(8, 512, requires_grad=True)
    exec(textwrap.dedent(block), {"features": features, "labels": torch.arange(8) % 4})
    assert features.grad is not None
