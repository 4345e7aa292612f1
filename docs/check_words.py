"""Check that documents are written in plain English; `make lint` runs this.

Prints every place that breaks a rule and exits with 1 if there is any:

$ python docs/check_words.py
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = (
    *sorted(ROOT.glob("*.md")),
    *sorted(ROOT.glob("docs/*.md")),
    ROOT / "losses" / "README.md",
    *sorted(ROOT.glob("results/**/README.md")),
)

LONGEST_SENTENCE = 35  # words
LONGEST_PARAGRAPH = 700  # characters, about five lines
LONGEST_HEADING = 9  # words
MOST_COLUMNS = 6

# Pattern -> what to write instead.
BANNED = {
    r"\bwhoever\b": "name the person or the program",
    r"\bin vain\b": "without improvement",
    r"\bmended\b": "fixed",
    r"\banew\b": "again",
    r"\btold apart\b": "distinguished, or separated",
    r"\bgot over\b": "handled",
    r"\bbut for\b": "except",
    r"\bby the clock\b": "wall-clock time",
    r"\bof its own\b": "separate, or its own ...",
    r"\bis to be\b": "must be",
    r"\bis none\b": "is not ..., or there is no ...",
    r"\bwhat it is of\b": "name the thing",
    r"(?<!\w)(lies|lie|stands|stand) (on|in|at|beside|behind|there|below)\b": "is, or are",
    r", as (the|an?|in) \w+ has it": "as in the paper",
    r"\bhas \d+\.\d+\b": "scores ...",
    r"\bfor nothing\b": "without training",
    r"\bsuch as [^.]*\betc\b": "drop etc.",
    r"[†‡◁§⊣≡≈]": "a note in words",
}


def check(document: Path) -> Iterator[str]:
    """Every broken rule with its line."""
    name = document.relative_to(ROOT).as_posix()
    for line, paragraph in paragraphs(document.read_text()):
        for problem in (*_shape(paragraph), *_wording(paragraph)):
            yield f"{name}:{line}: {problem}"


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """First line and text of each paragraph, list item, heading or table, without code blocks."""
    text = re.sub(r"^```.*?^```$", _blank, text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->", _blank, text, flags=re.DOTALL)
    text = re.sub(r"(?<=\n\n)(    .*\n)+", _blank, text)
    start, lines = 1, list[str]()
    for number, line in enumerate((*text.splitlines(), ""), start=1):
        begins = bool(re.match(r"\s*([-*] |\d+\. |#)", line)) or (
            line.startswith("|") and not (lines and lines[-1].startswith("|"))
        )
        if lines and (begins or not line.strip() or lines[-1].startswith("#")):
            yield start, "\n".join(lines)
            lines = []
        if line.strip():
            start = start if lines else number
            lines.append(line.strip())


def _blank(found: re.Match[str]) -> str:
    return "\n" * found.group().count("\n")


def _shape(paragraph: str) -> Iterator[str]:
    if paragraph.startswith("|"):
        columns = paragraph.splitlines()[0].count("|") - 1
        if columns > MOST_COLUMNS:
            yield f"a table of {columns} columns; at most {MOST_COLUMNS}"
    elif paragraph.startswith("#"):
        heading = paragraph.lstrip("# ")
        if len(heading.split()) > LONGEST_HEADING or heading.endswith((".", "!", ":")):
            yield f"heading {heading!r}: name the content in a few words"
    elif len(_prose(paragraph)) > LONGEST_PARAGRAPH:
        yield f"a paragraph of {len(_prose(paragraph))} characters; at most {LONGEST_PARAGRAPH}"


def _wording(paragraph: str) -> Iterator[str]:
    prose = _prose(paragraph)
    for pattern, better in BANNED.items():
        for found in re.finditer(pattern, prose, flags=re.IGNORECASE):
            yield f"{found.group()!r}: write {better!r}"
    if not paragraph.startswith(("|", "#")):
        for sentence in re.split(r"(?<=[.:;!?])\s+", prose):
            if len(sentence.split()) > LONGEST_SENTENCE:
                yield f"a sentence of {len(sentence.split())} words: {sentence[:60]}..."


def _prose(paragraph: str) -> str:
    """Without code and without the targets of links."""
    text = re.sub(r"\]\([^)]*\)", "]", paragraph)
    return " ".join(re.sub(r"`[^`]*`", "CODE", text).split())


def main() -> int:
    problems = [problem for document in DOCUMENTS for problem in check(document)]
    print("\n".join(problems) or f"{len(DOCUMENTS)} documents are fine")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
