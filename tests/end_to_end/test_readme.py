"""What the README and the pages behind it show exists: commands, files, names."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from harness import registry
from harness.cli import app
from harness.metrics.names import is_metric

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
TEXT = "\n".join(page.read_text() for page in PAGES if page.name != "CHANGES.md")
COMMANDS = sorted(set(re.findall(r"^(?:\$ |`)?(harness [^#`\n]+)", TEXT, flags=re.MULTILINE)))


def test_there_are_commands_to_check() -> None:
    assert len(COMMANDS) >= 4


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_is_shown_parses(command: str) -> None:
    """With its real flags and a real loss, data set, protocol and trunk."""
    _, name, *arguments = shlex.split(command)
    click_command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    if hasattr(click_command, "commands"):
        name, *arguments = arguments
        click_command = click_command.commands[name]
    parsed = click_command.make_context(name, arguments).params
    for loss in [*(parsed.get("loss") or []), *(parsed.get("more") or [])]:
        if not loss.endswith(".py") and not is_metric(loss):
            registry.load_method(loss)
    for kind, load in (("dataset", registry.load_dataset), ("trunk", registry.load_trunk)):
        given = parsed.get(kind) or []
        for spec in [given] if isinstance(given, str) else given:
            load(spec)


def test_every_file_that_is_named_exists() -> None:
    paths = set(re.findall(r"`((?:harness|losses|protocols)/[\w./]*)`", TEXT))
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_make_targets_that_are_named_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"\bmake ([a-z]+)", TEXT)) - {"and"}:
        assert f"\n{target}:" in makefile
