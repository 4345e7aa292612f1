"""Names and messages that somebody chose to do harm where our texts are pasted.

A page, a table, a formula or a terminal is made of the same parts whatever rows are called: only
the letters differ.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from ends import cases, run
from hypothesis import given
from hypothesis import strategies as st
from made_studies import put_study
from made_tables import full_record
from markdown_it import MarkdownIt

from harness.config import RunConfig
from harness.plain_text import one_line
from harness.records.classes import note_test_classes
from harness.records.layout import PLAN, record_path, validation_path
from harness.records.records import TestRecord, ValidationRecord
from harness.records.sweep_plan import SweepPlan
from harness.system.files import write_json
from harness.tables import sweeps
from harness.tables.latex import LATEX_SPECIAL

PIECES = (
    *(
        "|",
        "`",
        "```",
        "[x](javascript:alert(1))",
        "![x](http://x/y.png)",
        "<http://x>",
        "**",
        "_x_",
    ),
    *("=HYPERLINK(1)", "+1", "-1", "@SUM(A1)", "＝1", "\t", "'", '"', ",", ";"),
    *("\x1b]0;title\x07", "\x1b[31m", "\r", "\x9b1m", "\u202e", "\x00", "\x7f"),
    *(r"\input{/etc/passwd}", r"\\", r"\write18", "{", "}", "$", "&", "%", "#", "~", "^", "[", "*"),
    *("<script>alert(1)</script>", "<img src=x onerror=y>", "</td>", "<!--", "&amp;", "{{ x }}"),
    *("\n", "\n\n# x", "\n---\n", "\n===\n", "1. x", "- x", ":warning:", "[bold]", "%s", "{0}"),
)

# As many words as there are names of others in what is shown.
WORDS = ("first", "second", "dataset", "trunk", "protocol", "class", "reason", "parameter")


def hostile_names() -> st.SearchStrategy[dict[str, str]]:
    pieces = st.lists(st.sampled_from(PIECES), min_size=8, max_size=20).map("".join)
    # A word in each, so that no two are the same, and behind the rest, which may so begin it.
    return st.fixed_dictionaries(
        {word: pieces.map(lambda text, w=word: text + w) for word in WORDS}
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return shown(tmp_path_factory.mktemp("plain"), {word: word for word in WORDS})


@cases(0.0015)  # each of them holds many
@given(names=hostile_names())
def test_what_is_pasted_elsewhere_has_the_parts_that_it_has_with_plain_names(
    names: dict[str, str], plain: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    hostile = shown(tmp_path_factory.mktemp("hostile"), names)
    assert hostile.keys() == plain.keys()
    for place, text in hostile.items():
        parts = PARTS[place.rpartition(".")[2]]
        assert parts(text) == parts(plain[place]), place
    for place in ("leaderboard.md", "verdict.md"):  # and nothing is left out
        assert one_line(names["first"]).replace(" ", "") in words_of(hostile[place]), place


def shown(root: Path, names: dict[str, str]) -> dict[str, str]:
    """All that is made from records, studies and plans of these names; a suffix tells its kind."""
    results, theirs = root / "results", root / "theirs"
    table = put_rows(results, names)
    put_rows(theirs, names, repetitions=1, test_fingerprint=names["reason"])
    put_sweep(results / "sweeps" / "sweep", names)
    fixed = {names["parameter"]: names["reason"]}
    config = RunConfig(runs_dir=str(root / "runs"))
    told = {"method": names["first"], "fixed_params": fixed}
    put_study(config, "mlrc/cub-bninception/first", names["reason"], **told)
    page, verdict = root / "page.html", root / "verdict.md"
    where = ["--results-dir", str(results)]
    commands: list[list[str]] = [
        ["leaderboard", "--published", *where],
        ["compare", *where, "--dataset", "cub", "--", names["first"], names["second"]],
        ["verdict", *where, "--against", "none", "--output", str(verdict), "--", names["first"]],
        ["verdict", *where, "--against", "none"],
        ["report", *where, "--output", str(page)],
        ["show", "--runs-dir", str(root / "runs"), *where],
        ["merge", str(theirs), *where],
    ]
    said = {}
    for number, command in enumerate(commands):
        end = run(command)
        end.check()
        assert end.code == (2 if command[0] == "merge" else 0), end.err
        said[f"{number} {command[0]}.terminal"] = end.out + end.err
    sweep = sweeps.build(results / "sweeps" / "sweep")
    made = [*table.glob("leaderboard*"), *sweeps.write(sweep), verdict, page]
    return said | {path.name: path.read_text() for path in made}


def put_rows(results: Path, names: dict[str, str], repetitions: int = 5, **changes: Any) -> Path:
    """Two methods in a table whose folder has a plain name."""
    table = results / "mlrc" / "cub-bninception"
    for place, word in enumerate(("first", "second")):
        for repetition in range(1, repetitions + 1):
            record = renamed(full_record(word, repetition, 0.2 + place / 10), names)
            path = record_path(table, word, "abc", repetition)
            replace(record, **changes).write(path)
    note_test_classes(table, "s1", [names["class"], "b", "c"])
    return table


def renamed(record: TestRecord, names: dict[str, str]) -> TestRecord:
    identity = record.identity
    protocol = {**identity["protocol"], "name": names["protocol"]}
    named = {word: names[word] for word in ("dataset", "trunk")}
    params = {names["parameter"]: names["reason"], **record.params}
    search = {**record.search, "on_bound": {names["parameter"]: names["reason"]}}
    provenance = {**record.provenance, "command": f"harness eval {names['reason']}"}
    return replace(
        record,
        identity={**identity, **named, "method": names[identity["method"]], "protocol": protocol},  # type: ignore[typeddict-item]
        params=params,
        search=search,  # type: ignore[arg-type]
        provenance=provenance,  # type: ignore[arg-type]
    )


def put_sweep(folder: Path, names: dict[str, str]) -> None:
    record = renamed(full_record("first", 0, 0.3), names)
    folds = [{**fold, "best_score": 0.3} for fold in record.folds]
    point: dict[str, Any] = {"method": names["first"], "table": "a/b", "seed": 0}
    axis = names["parameter"]
    points = [
        {**point, "params": record.params, "values": {axis: names["reason"]}},
        {**point, "params": {}, "values": {axis: 2}, "failure": names["reason"]},
    ]
    settings = {"protocol": names["protocol"]}
    plan = SweepPlan([axis], settings, "map_at_r", points)  # type: ignore[arg-type]
    write_json(folder / PLAN, asdict(plan))
    kept = ("identity", "params", "repetition", "provenance")
    facts = {name: value for name, value in asdict(record).items() if name in kept}
    ValidationRecord(folds=folds, **facts).write(  # type: ignore[arg-type]
        validation_path(folder / "a" / "b", "first", "abc", 0)
    )


def markdown_parts(text: str) -> list[str]:
    parsed = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text)
    tokens = [inner for token in parsed for inner in (token, *(token.children or ()))]
    return [token.type for token in tokens if not token.type.startswith("text")]


def words_of(text: str) -> str:
    """What a reader of the Markdown sees, without blanks."""
    parsed = MarkdownIt("commonmark").enable("table").parse(text)
    return "".join(
        inner.content.replace(" ", "") for token in parsed for inner in token.children or ()
    )


def csv_parts(text: str) -> list[int]:
    rows = list(csv.reader(io.StringIO(text)))
    for cell in (cell for row in rows for cell in row):
        is_number = re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", cell)
        assert is_number or not cell.strip().startswith(tuple("=+-@＝")), cell
        assert printed(cell) is None
    return [len(row) for row in rows]


def latex_parts(text: str) -> list[str]:
    assert printed(text) is None
    escaped = sorted(LATEX_SPECIAL.values(), key=len, reverse=True)
    bare = re.sub("|".join(map(re.escape, escaped)), "x", text)
    return re.findall(r"\\[a-zA-Z]+|\\\\(?:\n?\s*[\[*])?|\\.|[{}&$%#_^~]", bare)


def html_parts(text: str) -> list[tuple[str, tuple[str, ...]]]:
    found: list[tuple[str, tuple[str, ...]]] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
            values = [value or "" for name, value in attrs if name in ("href", "src")]
            assert not any(value.strip().lower().startswith("javascript") for value in values)
            found.append((tag, tuple(name for name, _ in attrs)))

    reader = Reader()
    reader.feed(text)
    reader.close()
    return found


def printed(text: str) -> None:
    """A terminal is steered by none of its characters."""
    assert all(char.isprintable() or char == "\n" for char in text), repr(text)


PARTS: dict[str, Callable[[str], Any]] = {
    "md": markdown_parts,
    "csv": csv_parts,
    "tex": latex_parts,
    "html": html_parts,
    "terminal": printed,
}
