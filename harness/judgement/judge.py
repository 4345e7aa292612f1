"""Judges tables: every pair of their rows, in families that the records fix."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from harness.errors import HarnessError, unknown
from harness.judgement.answers import SCORES, answer_family
from harness.judgement.estimates import Measured, Pools, measure
from harness.judgement.families import family_name, find_missing, find_pairs
from harness.judgement.groups import letters
from harness.judgement.judged import (
    DEFAULT_MARGIN,
    EMBEDDING,
    METRIC,
    Answer,
    Beats,
    Family,
    FamilyKind,
    JudgedPair,
    JudgedRow,
    JudgedTable,
    Judgement,
)
from harness.judgement.observations import observe
from harness.judgement.samples import Sample
from harness.metrics.names import EMBEDDINGS, METRICS
from harness.records.layout import STORED, VERSION, find_tables
from harness.records.provenance import commit_of
from harness.records.records import TestRecord
from harness.records.rows import difference, group_searches, key_of, label_of, newest_of, read_tests

# Kinds of rows that are ranked together: all others had other weights to choose from.
JUDGED = ("reproduction", "naive")

STORED_LEFT_OUT = "the stored rows of this table are left out"


def find_stored(results: Path, against: str | None) -> Path | None:
    """Results to compare with, besides the user's own.

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


def judge(
    results: Path,
    stored: Path | None = None,
    wanted: Callable[[Path], bool] = lambda table: True,
    margin: float = DEFAULT_MARGIN,
) -> Judgement:
    """Judge every table of a results folder, with the stored rows of the same tables.

    Args:
        stored: other results, such as those that came with the package. Rows of both are judged
            together; the answers about stored rows do not depend on the user's.
        wanted: whether a table counts, by its folder.
        margin: largest difference that is called equivalent, as a share of 1.

    Raises:
        HarnessError: if no table has records.
    """
    if not 0 < margin < 1:  # a NaN is not, either
        raise HarnessError(f"the margin must be between 0 and 100 points, got {100 * margin:g}")
    places = {
        path.relative_to(root): None
        for root in (results, stored)
        if root is not None
        for path in find_tables(root)
        if wanted(path)
    }
    problems: list[str] = []
    tables = []
    for place in sorted(places):
        more = None if stored is None else stored / place
        if samples := read_samples(results / place, more, problems):
            tables.append(judge_samples(samples, margin))
    if not tables:
        raise HarnessError(
            f"no records in {results}{f' or {stored}' if stored else ''} of what was asked for\n"
            "  `harness eval` writes them; --results-dir says where they are. Single models, and "
            "those that were selected on the test classes, are not judged"
        )
    return Judgement(tuple(tables), margin, tuple(problems))


def read_samples(table: Path, more: Path | None, problems: list[str]) -> list[Sample]:
    """The rows of a table; a method that both places have is two rows.

    Args:
        more: folder of the same table in the stored results.
    """
    own = read_tests(table, problems)
    stored = read_tests(more, problems) if more is not None else []
    return samples_of(own, stored, problems)


def samples_of(
    tests: Sequence[TestRecord], stored_tests: Sequence[TestRecord], problems: list[str]
) -> list[Sample]:
    """The rows of tests from two places that are ranked together, as `read_samples` has them."""
    own, stored = ([r for r in found if r.kind in JUDGED] for found in (tests, stored_tests))
    if own and stored:
        reason = difference(newest_of(stored), newest_of(own), ("in the stored rows", "in yours"))
        if reason:
            problems.append(f"{STORED_LEFT_OUT}: {reason}")
            stored = []
    copies = {copy_key(record) for record in stored}
    own = [record for record in own if copy_key(record) not in copies]
    names = {label_of([record]) for record in own}
    samples = [Sample(label_of(found[0]), False, found) for found in group_searches(own)]
    for found in group_searches(stored):
        label = label_of(found[0])
        samples.append(Sample(f"{label} (stored)" if label in names else label, True, found))
    return samples


def copy_key(record: TestRecord) -> tuple[str, str]:
    """What two records share if one is a copy of the other; what draws nothing is always one."""
    trained = record.kind != "naive"
    return key_of(record), str(record.provenance["time"]) if trained else ""


def judge_samples(samples: Sequence[Sample], margin: float = DEFAULT_MARGIN) -> JudgedTable:
    """Judge the rows of one table."""
    samples = sorted(samples, key=lambda sample: -sample.mean(EMBEDDING, METRIC))
    pools = Pools(samples)
    measured = [measure(pair, pools) for pair in find_pairs(samples)]
    by_family: dict[str, list[Measured]] = defaultdict(list)
    for found in measured:
        by_family[found.pair.family].append(found)
    missing = find_missing(samples)
    untested = Counter(family_name(FamilyKind.PLANNED, sample.stored) for sample, _ in missing)
    pairs, families = [], []
    for name, members in by_family.items():
        answered = answer_family(members, untested[name], margin)
        pairs += answered
        tests = sum(pair.holm_p is not None for pair in answered)
        tests += untested[name] if tests else 0
        families.append(Family(name, members[0].pair.kind, tests))
    separated = {frozenset((pair.method, pair.rival)) for pair in pairs if pair.separated}
    trained = [sample.name for sample in samples if sample.trained]
    groups = letters(trained, separated)
    by_rows = {(pair.method, pair.rival): pair for pair in pairs}
    identity = samples[0].newest.identity
    return JudgedTable(
        protocol=str(identity["protocol"]["name"]),
        dataset=identity["dataset"],
        trunk=identity["trunk"],
        rows=tuple(_row(sample, samples, pools, groups, by_rows) for sample in samples),
        pairs=tuple(pairs),
        families=tuple(families),
        missing=tuple((sample.name, rival) for sample, rival in missing),
        observations=observe(samples),
    )


def _row(
    sample: Sample,
    samples: Sequence[Sample],
    pools: Pools,
    groups: Mapping[str, str],
    pairs: Mapping[tuple[str, str], JudgedPair],
) -> JudgedRow:
    trained = [s.mean(EMBEDDING, METRIC) for s in samples if s.trained]
    score = sample.mean(EMBEDDING, METRIC)
    beats, behind = _against_no_training(sample, samples, pairs)
    return JudgedRow(
        name=sample.name,
        method=sample.method,
        kind=sample.newest.kind,
        stored=sample.stored,
        scores={
            embedding: {
                metric: sample.score(embedding, metric, pools.of(sample.stored, embedding, metric))
                for metric in METRICS
                if sample.scores(embedding, metric) is not None
            }
            for embedding in EMBEDDINGS
        },
        dims=dict(sample.newest.dims),
        rank=1 + sum(other > score for other in trained) if sample.trained else None,
        letters=groups.get(sample.name, ""),
        budget=sample.budget,
        scope=sample.scope(pools.of(sample.stored, EMBEDDING, METRIC)),
        searches=sample.num_searches,
        reproductions=sample.reproductions,
        asked_reproductions=sample.asked_reproductions,
        method_notes=tuple(sample.method_notes),
        trials=sample.trials,
        asked=sample.asked,
        base=sample.base,
        coincides_with=sample.coincides_with,
        at_step_limit=sample.at_step_limit,
        best_at_first=sample.best_at_first,
        still_rising=sample.still_rising,
        on_bound=sample.on_bound,
        beats_no_training=beats,
        behind_no_training=behind,
        search_seconds=sample.search_seconds,
        missing_images=max(record.missing_images for record in sample.records),
        time=str(sample.newest.provenance["time"]),
        command=str(sample.newest.provenance["command"]),
        commit=commit_of(sample.newest.provenance),
    )


def _against_no_training(
    sample: Sample, samples: Sequence[Sample], pairs: Mapping[tuple[str, str], JudgedPair]
) -> tuple[Beats | None, tuple[tuple[str, str], ...]]:
    """The answer against the best row without training, and scores in which it is behind it."""
    rivals = [
        pair
        for other in samples
        if not other.trained and (pair := pairs.get((sample.name, other.name))) is not None
    ]
    if not rivals:
        return None, ()
    pair = rivals[0]  # rows are ordered by their scores
    behind = tuple(
        (embedding, metric)
        for embedding, metric in SCORES
        if pair.estimates[embedding][metric].difference < 0
    )
    if pair.answer is Answer.BETTER:
        return (Beats.IN_PART if behind else Beats.YES), behind
    return (Beats.NO if pair.answer is Answer.WORSE else Beats.NOT_DECIDED), behind


def find_rows(
    judgement: Judgement, name: str, full_name: Callable[[str], str] = str
) -> list[tuple[JudgedTable, JudgedRow]]:
    """The trained row of a name in every table that has it; the user's own before a stored one.

    Args:
        name: of a row, of a loss file, or an alias.
        full_name: of what may be an alias or a loss file; asked for names without records only.

    Raises:
        HarnessError: if no table has it.
    """
    found = _rows_named(judgement, name) or _rows_named(judgement, full_name(name))
    if found:
        return found
    known = {row.name for table in judgement.tables for row in table.trained_rows}
    raise unknown("method", name, known, "these have records; `harness eval` writes them")


def find_pairs_of(
    judgement: Judgement, methods: Sequence[str], full_name: Callable[[str], str] = str
) -> list[tuple[JudgedTable, JudgedPair]]:
    """Every pair of some rows, in every table.

    Args:
        methods: two or more names, as `find_rows` takes them.

    Raises:
        HarnessError: if a table lacks one of them, or if two names mean one row.
    """
    if len(set(methods)) < 2:
        raise HarnessError(
            f"compare takes two or more methods, got {' '.join(methods) or 'none'}; "
            "for example: harness compare ccp proxyanchor"
        )
    found = []
    for table in judgement.tables:
        alone = replace(judgement, tables=(table,))
        names = [_named(alone, name, full_name) for name in methods]
        if len(set(names)) < len(set(methods)):
            raise HarnessError(f"{' and '.join(methods)} are names of one method, {names[0]}")
        pairs = [table.pair(*pair) for pair in combinations(dict.fromkeys(names), 2)]
        found += [(table, pair) for pair in pairs if pair is not None]
    return found


def _named(judgement: Judgement, name: str, full_name: Callable[[str], str]) -> str:
    """The name of a row, which may be one without training."""
    (table,) = judgement.tables
    if name in table.by_name:
        return name
    return find_rows(judgement, name, full_name)[0][1].name


def _rows_named(judgement: Judgement, name: str) -> list[tuple[JudgedTable, JudgedRow]]:
    return [(t, row) for t in judgement.tables if (row := _row_of(t, name)) is not None]


def _row_of(table: JudgedTable, name: str) -> JudgedRow | None:
    """The row of a name; of a user's own loss, that of the newest version of its file."""
    if name in table.trained:
        return table.by_name[name]
    versions = [row for row in table.trained_rows if row.method.startswith(f"{name}{VERSION}")]
    return max(versions, key=lambda row: row.time, default=None)


def only_rows(judgement: Judgement, rows: Sequence[tuple[JudgedTable, JudgedRow]]) -> Judgement:
    """The judgement of some rows alone: their tables, with their pairs."""
    tables = tuple(replace(table, pairs=tuple(table.pairs_of(row.name))) for table, row in rows)
    return replace(judgement, tables=tables)
