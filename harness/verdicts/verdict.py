"""Which claims hold? Every question that the tables can answer, each with its test."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path

import pandas as pd

from harness.errors import HarnessError, unknown
from harness.judgement.compare import Comparison, Lead, compare_pairs
from harness.judgement.questions import OLD, PROPOSED, STARTS, SYSTEMS, System
from harness.judgement.ranks import Ranks, grouped, rank
from harness.judgement.search_luck import largest_luck
from harness.judgement.stats import mean_and_interval
from harness.records.layout import STORED, find_tables
from harness.records.rows import Row, Searches, by_label, newest_of, read_searches
from harness.tables.leaderboard import frame_of
from harness.tables.marks import doubts

METRIC = "map_at_r"

# Kinds of rows that are ranked together: all others had other weights to choose from.
JUDGED = ("reproduction", "naive")

VERSION = "@"  # behind the name of a user's own loss, before the hash of its file


@dataclass(frozen=True, eq=False)
class JudgedTable:
    """Rows that may be ranked together.

    Attributes:
        searches: of trained fold models and the naive ones, by name.
        frame: the leaderboard of them, by name.
    """

    protocol: str
    dataset: str
    trunk: str
    searches: Mapping[str, Searches]
    frame: pd.DataFrame

    @cached_property
    def rows(self) -> dict[str, Row]:
        """Those that are shown."""
        return {name: searches[0] for name, searches in self.searches.items()}

    @cached_property
    def luck(self) -> float:
        """The most that two searches of one method, or almost one, differ by."""
        return largest_luck(self.searches)

    @property
    def trained(self) -> list[str]:
        """Best first."""
        return [name for name in self.frame.index if self.rows[name][0].kind != "naive"]

    @property
    def left_out(self) -> int:
        """Images that were missing or broken."""
        return int(self.frame["missing_images"].max())

    def score(self, method: str, metric: str = METRIC) -> float:
        return self.interval(method, metric)[0]

    def interval(self, method: str, metric: str = METRIC) -> tuple[float, float]:
        """Mean score, and half the width of its 95 % interval."""
        scores = [record.scores["concatenated"][metric] for record in self.rows[method]]
        return mean_and_interval(scores)

    def doubts(self, method: str) -> list[str]:
        """Why its row may show less than the method can do, or more."""
        return doubts(self.frame.loc[[method]].reset_index())


def find_stored(results: Path, against: str | None) -> Path | None:
    """Results to compare with, beside one's own.

    Args:
        against: their folder, or `none`; None takes those that came with the package.
    """
    if against == "none":
        return None
    if against is not None and not Path(against).is_dir():
        raise HarnessError(f"no folder at {against}; --against takes one with results, or none")
    folder = Path(against) if against else STORED
    same = results.is_dir() and folder.is_dir() and folder.samefile(results)
    return None if same else folder


def read_tables(
    results: Path, stored: Path | None, problems: list[str], keep: Callable[[Path], bool]
) -> list[JudgedTable]:
    """Every table that there is, with the rows of both places.

    Args:
        stored: other results, as those that came with the package.
        keep: whether a table is wanted, by its folder.
    """
    places = {
        path.relative_to(root): None
        for root in (results, stored)
        if root is not None
        for path in find_tables(root)
        if keep(path)
    }
    tables = []
    for place in sorted(places):
        more = None if stored is None else stored / place
        found = read_searches(results / place, problems, more)
        judged = [searches for searches in found if searches[0][0].kind in JUDGED]
        if judged:
            identity = judged[0][0][0].identity
            tables.append(
                JudgedTable(
                    protocol=str(identity["protocol"]["name"]),
                    dataset=identity["dataset"],
                    trunk=identity["trunk"],
                    searches=by_label(judged),
                    frame=frame_of(judged).set_index("method"),
                )
            )
    if not tables:
        raise HarnessError(
            f"no records in {results}{f' or {stored}' if stored else ''} of what was asked for\n"
            "  `harness eval` writes them; --results-dir says where they are"
        )
    return tables


class Outcome(Enum):
    """What a table answers."""

    YES = "yes"
    OF_SEARCH = "no: one is almost the other, and what they differ by is luck of two searches"
    WORSE = "no, it is worse"
    PERHAPS = "perhaps: it is ahead, but other test classes might reverse that"
    HARDLY = "no: it is behind, though other test classes might reverse that"
    NOT_SHOWN = "not shown"
    UNTESTED = "too few shared reproductions to say"


@dataclass(frozen=True)
class Answer:
    """Whether one method is better than another on one table."""

    table: JudgedTable
    method: str
    rival: str
    comparison: Comparison

    @property
    def outcome(self) -> Outcome:
        ahead = self.comparison.ahead == self.method
        return {
            Lead.SHOWN: Outcome.YES if ahead else Outcome.WORSE,
            Lead.OF_SEARCH: Outcome.OF_SEARCH,
            Lead.NOT_OVER_CLASSES: Outcome.PERHAPS if ahead else Outcome.HARDLY,
            Lead.NOT_SHOWN: Outcome.NOT_SHOWN,
        }.get(self.comparison.lead, Outcome.UNTESTED)

    @property
    def difference(self) -> float:
        """The method's score less its rival's, mean over the runs that both have."""
        mean = self.comparison.concatenated.mean
        return mean if self.comparison.ahead == self.method else -mean


@dataclass(frozen=True)
class Claim:
    """A question and its answers.

    Attributes:
        missing: rows that an answer lacks, by table.
    """

    question: str
    answers: list[Answer]
    missing: list[tuple[JudgedTable, str]]


@dataclass(frozen=True)
class Verdict:
    """All that one group of tables says.

    Attributes:
        systems: what each paper claims.
        against_old: the papers' methods against the best of the older ones.
        against_start: the best row against PCA of what its training starts from.
        tests: how many comparisons the p-values are corrected for.
    """

    tables: list[JudgedTable]
    systems: list[Claim]
    against_old: Claim
    against_start: Claim
    ranks: Ranks | None
    tests: int


def judge(tables: Sequence[JudgedTable]) -> Verdict:
    """Ask all questions of tables that differ in their data set alone."""
    asked = [(system.question, _against_rivals(system, tables)) for system in SYSTEMS]
    if others := _against_bases(tables):
        asked.append(("Does every other method beat what it adds something to?", others))
    asked.append(("Is any of the five better than the best of the old ones?", _against_old(tables)))
    asked.append(("What does PCA of the features already give?", _against_start(tables)))
    claims = _answered(asked)
    return Verdict(
        tables=list(tables),
        systems=claims[:-2],
        against_old=claims[-2],
        against_start=claims[-1],
        ranks=rank(tables),
        tests=max((a.comparison.tests for claim in claims for a in claim.answers), default=0),
    )


@dataclass(frozen=True)
class _Pair:
    table: JudgedTable
    method: str
    rival: str

    @property
    def missing(self) -> list[str]:
        return [name for name in (self.method, self.rival) if name not in self.table.rows]


def _answered(asked: Sequence[tuple[str, Sequence[_Pair]]]) -> list[Claim]:
    """P-values are corrected for all questions together; a pair that two ask of counts once."""
    whole = list(dict.fromkeys(p for _, pairs in asked for p in pairs if not p.missing))
    rows = [(pair.table.rows[pair.method], pair.table.rows[pair.rival]) for pair in whole]
    found = dict(zip(whole, compare_pairs(rows, METRIC), strict=True))
    return [
        Claim(
            question,
            [Answer(p.table, p.method, p.rival, found[p]) for p in pairs if not p.missing],
            list(dict.fromkeys((p.table, name) for p in pairs for name in p.missing)),
        )
        for question, pairs in asked
    ]


def _against_rivals(system: System, tables: Sequence[JudgedTable]) -> list[_Pair]:
    return [
        _Pair(table, method, rival)
        for table in tables
        for method, rivals in system.rivals.items()
        for rival in rivals
    ]


def _against_bases(tables: Sequence[JudgedTable]) -> list[_Pair]:
    """Methods of nobody's paper that add something to another one."""
    return [
        _Pair(table, method, base)
        for table in tables
        for method in table.trained
        if method not in PROPOSED and (base := base_of(table, method))
    ]


def base_of(table: JudgedTable, method: str) -> str:
    """What a method adds something to, as its records state it; empty if they do not."""
    return table.rows[method][0].search.get("base", "")


def _against_old(tables: Sequence[JudgedTable]) -> list[_Pair]:
    return [
        _Pair(table, method, best)
        for table in tables
        if (best := best_of(table, OLD)) is not None
        for method in table.trained
        if method in PROPOSED
    ]


def _against_start(tables: Sequence[JudgedTable]) -> list[_Pair]:
    return [
        _Pair(table, table.trained[0], start)
        for table in tables
        if table.trained and (start := best_of(table, STARTS)) is not None
    ]


def best_of(table: JudgedTable, names: Iterable[str]) -> str | None:
    """The row with the highest score among some that may be missing."""
    there = [name for name in names if name in table.rows]
    return max(there, key=table.score, default=None)


@dataclass(frozen=True)
class Standing:
    """One method against every other row of a table.

    Attributes:
        answers: best rival first.
        must_beat: rival -> what it is to the method; it may have no row.
    """

    table: JudgedTable
    method: str
    answers: list[Answer]
    must_beat: Mapping[str, str]


def stand(
    tables: Sequence[JudgedTable], name: str, full_name: Callable[[str], str] = str
) -> list[Standing]:
    """Where a method stands in every table that has it.

    P-values are corrected for all comparisons in tables that differ in their data set alone.

    Args:
        full_name: of what may be an alias or a loss file; asked for names without records only.
    """
    found = _own_rows(tables, name) or _own_rows(tables, full_name(name))
    if not found:
        known = {row for table in tables for row in table.trained}
        raise unknown("method", name, known, "these have records; `harness eval` writes them")
    own_rows = dict(found)
    return [
        Standing(table, own_rows[table], claim.answers, _must_beat(table, own_rows[table]))
        for tables in grouped(own_rows)
        for table, claim in zip(tables, _answered(_against_all(tables, own_rows)), strict=True)
    ]


def _against_all(
    tables: Sequence[JudgedTable], own_rows: Mapping[JudgedTable, str]
) -> list[tuple[str, list[_Pair]]]:
    rivals = {t: [name for name in t.frame.index if name != own_rows[t]] for t in tables}
    return [("", [_Pair(t, own_rows[t], name) for name in rivals[t]]) for t in tables]


def _must_beat(table: JudgedTable, method: str) -> dict[str, str]:
    rivals = [rival for system in SYSTEMS for rival in system.rivals.get(method, ())]
    roles = {rival: f"what it claims to beat, {rival}" for rival in rivals}
    if base := base_of(table, method):
        roles[base] = "its base"
    if best := best_of(table, [old for old in OLD if old != method]):
        role = f"the best of the {'other ' * (method in OLD)}old ones"
        roles[best] = f"{roles[best]}, {role}" if best in roles else role
    return roles


def _own_rows(tables: Sequence[JudgedTable], name: str) -> list[tuple[JudgedTable, str]]:
    return [(table, own) for table in tables if (own := _own_row(table, name)) is not None]


def _own_row(table: JudgedTable, name: str) -> str | None:
    """The row of a name; of one's own loss, that of the newest version of its file."""
    if name in table.trained:
        return name
    versions = [row for row in table.trained if row.startswith(f"{name}{VERSION}")]
    if not versions:
        return None
    newest = newest_of(newest_of(table.rows[version]) for version in versions)
    return newest.identity["method"]
