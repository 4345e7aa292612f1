"""Text of others, made safe to show: on a terminal, in Markdown, and in a spreadsheet; counts."""

from __future__ import annotations

import re


def printable(text: str) -> str:
    """The text with what would steer a terminal spelt out."""
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode()
        for char in text
    )


def writable(text: str) -> str:
    """Text that UTF-8 has, of what may hold bytes of a file name that is none."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def counted(count: int, name: str) -> str:
    """As `1 table` and `2 tables`."""
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def one_line(text: str) -> str:
    """The same without line breaks, which would end a row or a heading."""
    return printable(" ".join(text.split()))


# What Markdown reads as more than a character; an underscore within a word is one, and so is a
# smaller-than sign before a number.
_MARKDOWN_SPECIAL = re.compile(r"[\\`*\[\]>|~#!&]|<(?! )|(?<!\w)_|_(?!\w)")

# What begins a list, a rule or a line below a heading, where it begins a line.
_BEGINS_BLOCK = re.compile(r"^(\d{1,9})?([-+=]|(?<=\d)[.)])(?=[-+=\s]|$)")


def markdown_cell(text: str) -> str:
    """Text that Markdown prints as it stands within a row of a table, or of a sentence."""
    return _MARKDOWN_SPECIAL.sub(r"\\\g<0>", one_line(text))


def markdown_text(text: str) -> str:
    """The same for a line of its own, which might begin a list."""
    return _BEGINS_BLOCK.sub(r"\g<1>\\\g<2>", markdown_cell(text))


def markdown_code(text: str) -> str:
    """Text as code, between more backticks than it has in a row."""
    line = one_line(text)
    longest = max((len(run) for run in re.findall("`+", line)), default=0)
    fence = "`" * (longest + 1)
    room = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{room}{line}{room}{fence}"


# What makes a spreadsheet take a cell for a formula, also in the wide letters of East Asia.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")


def spreadsheet_text(text: str) -> str:
    """Text that no spreadsheet runs: what it would take for a formula begins with an apostrophe."""
    formula = text.startswith(_FORMULA) or text.lstrip().startswith(_FORMULA)
    return ("'" if formula else "") + printable(text)
