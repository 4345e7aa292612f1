"""Every command that a document shows exists, with its flags and its names."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from documents import DOCUMENTS, ROOT, blocks, commands_in, flags_in, name_of

from harness import registry
from harness.cli import app
from harness.metrics.names import is_metric
from harness.sweeping.paper_figures import find_figure

COMMANDS = sorted({command for document in DOCUMENTS for command in commands_in(document)})


# Data sets that exist once another command that is shown has imported them.
IMPORTED = {
    name for line in COMMANDS for name in re.findall(r"import-features .*--name (\w+)", line)
}


def command_named(*names: str) -> Any:
    """The click command behind some words, and how many of them it took."""
    command = typer.main.get_command(app)
    for taken, name in enumerate(names):
        if not hasattr(command, "commands"):
            return command, taken
        assert name in command.commands, f"no command {' '.join(names)}"
        command = command.commands[name]
    return command, len(names)


def given(parsed: dict[str, Any], *names: str) -> Iterator[str]:
    """The values of some parameters; words in capitals stand for what a user puts there."""
    for name in names:
        value = parsed.get(name) or []
        for one in [value] if isinstance(value, str) else value:
            if not re.search(r"\b[A-Z]{3,}\b", str(one)):
                yield str(one)


def test_documents_show_commands() -> None:
    assert len(COMMANDS) > 30


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_parses_with_names_that_exist(line: str) -> None:
    _, *words = shlex.split(line)
    command, taken = command_named(*words)
    if len(words) == taken:  # mentioned in passing
        return
    parsed = flags_in(command, words[0], words[taken:])
    for loss in given(parsed, "loss", "more", "methods", "studies"):
        if not loss.endswith(".py") and not is_metric(loss):
            registry.load_method(loss)
    datasets = list(given(parsed, "dataset")) or ["glyphs"]
    for dataset in set(datasets) - IMPORTED:
        registry.load_dataset(dataset)
    for trunk in given(parsed, "trunk"):
        registry.load_trunk(trunk)
    for figure in given(parsed, "figure") if words[0] == "sweep" else ():
        find_figure(figure)
    for protocol in given(parsed, "protocol"):
        registry.load_protocol(protocol, datasets[0])


def flags() -> set[str]:
    """Of all commands and benchmarks."""
    benchmarks = "".join(path.read_text() for path in (ROOT / "benchmarks").glob("*.py"))
    found = set(re.findall(r'add_argument\(\s*"(--[\w-]+)"', benchmarks))
    waiting = [typer.main.get_command(app)]
    while waiting:
        command = waiting.pop()
        waiting += getattr(command, "commands", {}).values()
        found |= {flag for parameter in command.params for flag in parameter.opts}
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_flag_in_a_sentence_exists(document: Path) -> None:
    named = set(re.findall(r"`[^`\n]*?(--[a-z0-9-]+)", document.read_text()))
    assert named - flags() == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_make_target_and_benchmark_exists(document: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make ([a-z]+)", "".join(blocks(document)), flags=re.MULTILINE):
        assert f"\n{target}:" in makefile
    for module in re.findall(r"python -m benchmarks\.(\w+)", document.read_text()):
        assert (ROOT / "benchmarks" / f"{module}.py").is_file()
