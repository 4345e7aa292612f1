"""Text of others is text: no markup, no emoji, nothing that steers a terminal."""

from __future__ import annotations

import io
import sys
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from harness.cli import display, main
from harness.cli.display import Bars, Lines, printable
from harness.cli.printed_table import print_table
from harness.system import progress
from harness.system.progress import (
    Event,
    ModelEnded,
    PointEnded,
    Prepared,
    TrialEnded,
    TrialReturned,
    Validated,
)

# A closing tag without an opening one ended the search; a code of an emoji was replaced.
NASTY = "size [/bold] [red]of[0] :warning: {task} %s \x1b[31mred\x07 \udc80"
SHOWN = "size [/bold] [red]of[0] :warning: {task} %s \\x1b[31mred\\x07 \\udc80"

EVENTS: list[Event] = [
    TrialEnded(method=NASTY, trial=1, trials=2, seconds=1.0, reason=NASTY),
    TrialEnded(method=NASTY, trial=2, trials=2, seconds=1.0, score=0.5, best=0.5),
    TrialReturned(method=NASTY, trial=1, trials=2, reason=NASTY),
    ModelEnded(method=NASTY, reproduction=1, reproductions=2, fold=1, reason=NASTY),
    PointEnded(method=NASTY, point=1, points=2, values=NASTY, reason=NASTY),
    Prepared(dataset=NASTY, action="decoding", done=3, total=3),
    Validated(method=NASTY, fold=1, step=1, max_steps=2, best=0.5),
    progress.Tested(method=NASTY),
]


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "log"])
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_event_is_shown_as_it_stands(
    event: Event, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.StringIO()

    def console(**options: Any) -> Console:
        settings = {"file": written, "force_terminal": terminal, "width": 400, "color_system": None}
        return made(**{**options, "stderr": False, **settings})

    made = display.plain_console
    monkeypatch.setattr(display, "plain_console", console)
    shown = Bars() if terminal else Lines(verbose=True)
    with shown:
        shown(event)
    if not (terminal and isinstance(event, progress.Tested)):  # which has no bar of its own
        assert SHOWN in written.getvalue()


def test_a_table_shows_names_and_columns_as_they_stand(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(pd.DataFrame({"method": ["[/a] :warning:"], "[/b] :x:": ["[red]1"]}), "[/c] :x:")
    said = capsys.readouterr().out
    assert all(text in said for text in ("[/a] :warning:", "[/b] :x:", "[red]1", "[/c] :x:"))


def test_messages_of_errors_steer_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", "--loss", "x\x1b[2J"]) == 2
    said = capsys.readouterr().err
    assert "x\\x1b[2J" in said and "\x1b" not in said


def test_what_can_be_printed_is_left_alone() -> None:
    assert printable("Größe: ± 3 µm\nзлой 猫") == "Größe: ± 3 µm\nзлой 猫"
    assert sys.getdefaultencoding() == "utf-8"
