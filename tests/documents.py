"""What is written for people, taken apart: commands, code, links, prose."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import typer

from harness.cli import app
from harness.cli.submit import COMMANDS

ROOT = Path(__file__).parents[1]

DOCUMENTS = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "losses" / "README.md",
    ROOT / "results" / "README.md",
    ROOT / "results" / "published" / "README.md",
)

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


def name_of(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


def blocks(document: Path, language: str = "") -> list[str]:
    """The fenced blocks of a language; plain ones unless it is given."""
    return [body for found, body in _FENCE.findall(document.read_text()) if found == language]


def without_blocks(document: Path) -> str:
    return _FENCE.sub("", document.read_text())


def commands_in(document: Path) -> list[str]:
    """Every command line, of blocks and within sentences, without its comment."""
    inline = re.findall(r"`(harness [^`]+)`", without_blocks(document))
    lines = "\n".join(blocks(document))
    shown = re.findall(r"^(?:\$ )?(harness [^#\n]+)", lines, flags=re.MULTILINE)
    return [command.strip() for command in (*shown, *inline)]


def recipes() -> dict[str, str]:
    """Path -> source of the files that CONTRIBUTING.md shows whole."""
    shown = blocks(ROOT / "CONTRIBUTING.md", "python")
    return {block.splitlines()[0][2:]: block for block in shown if block.startswith("# ")}


def sentences(document: Path) -> list[str]:
    """Of the prose, without code, tables and headings."""
    text = re.sub(r"<!--.*?-->", "", without_blocks(document), flags=re.DOTALL)
    lines = text.splitlines()
    kept = ["" if line.startswith(("|", "#", "    ")) else line.strip("- ") for line in lines]
    paragraphs = "\n".join(kept).split("\n\n")
    return [
        sentence
        for paragraph in paragraphs
        for sentence in re.split(r"(?<=[.:!?])\s+", " ".join(paragraph.split()))
    ]


def flags_in(command: Any, name: str, words: list[str]) -> dict[str, Any]:
    """What a command is told by some words; it refuses them as the program does.

    A command keeps the names of its help from the first context that it is given: they are those
    of the program, in which others run it.
    """
    context = command.make_context(name, words, help_option_names=["-h", "--help"])
    if name != "submit":
        return dict(context.params)
    # It passes flags on to another command.
    passed = context.params["words"] or []
    named = bool(passed) and passed[0] in COMMANDS
    found = typer.main.get_command(app)
    path = COMMANDS[passed[0] if named else "search"]
    for part in path:
        found = found.commands[part]  # type: ignore[attr-defined]
    rest = passed[named:]
    if named and passed[0] == "prepare":  # of several data sets, each is prepared by a task
        several = itertools.takewhile(lambda word: not word.startswith("-"), rest[1:])
        rest = [rest[0], *rest[1 + len(list(several)) :]]
    return flags_in(found, " ".join(path), rest)
