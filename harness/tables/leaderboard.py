"""The leaderboard of a results folder, made from its records alone, and its files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import pandas as pd
from filelock import FileLock

from harness.judgement.judge import (
    JUDGED,
    STORED_LEFT_OUT,
    copy_key,
    find_stored,
    judge_samples,
    samples_of,
)
from harness.judgement.judged import Estimate, JudgedTable
from harness.judgement.samples import Sample
from harness.judgement.selection import correlations, selection_in
from harness.judgement.words import table_remarks
from harness.metrics.names import EMBEDDINGS, METRICS, title_of
from harness.protocols.selection import SCHEMES
from harness.records.layout import COLUMNS, CSV, LATEX, LEDGER, MARKDOWN, table_lock
from harness.records.ledger import read_ledger
from harness.records.records import TEST_SELECTED
from harness.records.rows import group_searches, label_of, read_tests
from harness.system.files import remove_old_leftovers, write_text
from harness.tables.column import Table, frame_of
from harness.tables.commands import commands_that_made
from harness.tables.indistinguishable import compare_with_best
from harness.tables.latex import to_latex
from harness.tables.leaderboard_columns import Shape, columns_of, shape_of
from harness.tables.leaderboard_line import Line
from harness.tables.rendering import describe_columns, to_csv, to_html, to_markdown

DEFAULT_SCHEME = "folds"  # scores trials by the validation of single models

# Data sets whose test classes are those of training.
CLOSED = ("imagenet_closed",)


@dataclass(frozen=True)
class Leaderboard:
    """A table of results that may be ranked together, and the records that could not enter it.

    Attributes:
        lines: every row, best first, with the stored rows of the same table.
        own: whether a line belongs to the files and to `frame`: the user's rows, and stored ones
            too if `--against` asked for them.
        judged: what holds between the ranked rows; None if there are none.
        remarks: on what is missing.
    """

    folder: Path
    lines: list[Line]
    own: list[bool]
    judged: JudgedTable | None
    problems: list[str]
    remarks: tuple[str, ...] = ()

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The user's rows: every column, best first."""
        return self._frame([line for line, own in zip(self.lines, self.own, strict=True) if own])

    @cached_property
    def whole(self) -> pd.DataFrame:
        """The same of all rows, as people see them: those without training are last."""
        return _naive_last(self._frame(self.lines))

    @cached_property
    def shape(self) -> Shape:
        """What the columns depend on."""
        return shape_of(self.lines)

    def _frame(self, lines: Sequence[Line]) -> pd.DataFrame:
        ranked = [line for line in lines if line.last.kind == "reproduction"]
        cells = compare_with_best([line.sample.records for line in ranked])
        by_name = {line.name: cell for line, cell in zip(ranked, cells, strict=True)}
        whole = [replace(line, indistinguishable=by_name.get(line.name)) for line in lines]
        return frame_of(columns_of(self.shape), whole)

    def table(self, whole: bool = False) -> Table:
        """The columns with all that people read around them; there must be a row.

        Args:
            whole: with the stored rows.
        """
        frame = self.whole if whole else _naive_last(self.frame)
        remarks = [*remarks_on_frame(frame, self.shape), *self.remarks]
        if self.judged is not None:
            remarks[1:1] = table_remarks(self.judged, self.shape.sizes)
        return Table(
            title_of_frame(frame), columns_of(self.shape), frame, remarks, self._commands()
        )

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return to_html(self.table(whole=True)) if self.lines else "<p>no rows</p>"

    def _commands(self) -> list[str]:
        """What made the user's rows."""
        if self.judged is None:
            return []
        own = {line.name for line, own in zip(self.lines, self.own, strict=True) if own}
        return commands_that_made(self.judged, [r for r in self.judged.rows if r.name in own])


class Leaderboards(list[Leaderboard]):
    """Tables, and what could not be evaluated for them, each with the reason."""

    def __init__(self, boards: Iterable[Leaderboard], problems: Sequence[str]) -> None:
        super().__init__(boards)
        self.problems = list(problems)


def build(folder: Path, against: str | None = None) -> Leaderboard:
    """The leaderboard of one results folder, from its records alone.

    Args:
        against: other results, whose rows of the same table are judged and shown with the user's:
            a folder, or `none`. Default: those that came with the package, which are left out of
            files.
    """
    results = folder.parents[1]
    stored = find_stored(results, against)
    more = None if stored is None else stored / folder.relative_to(results)
    problems: list[str] = []
    tests = read_tests(folder, problems)
    others = [] if more is None else read_tests(more, problems)
    samples = samples_of(tests, others, problems)
    judged = judge_samples(samples) if samples else None
    unranked = group_searches(record for record in tests if record.kind not in JUDGED)
    samples += [Sample(label_of(found[0]), False, found) for found in unranked]
    ours = {copy_key(record) for record in tests}
    marked = len({sample.stored for sample in samples}) > 1
    lines = [
        Line(
            sample,
            judged.by_name.get(sample.name) if judged else None,
            _to_base(sample, judged) if judged else None,
            openings,
            marked=marked,
        )
        for sample, openings in _with_openings(samples, folder, more, problems)
    ]
    lines.sort(key=lambda line: -line.score.mean)
    remarks = [problem for problem in problems if problem.startswith(STORED_LEFT_OUT)]
    return Leaderboard(
        folder=folder,
        lines=lines,
        own=[bool(against) or not ours.isdisjoint(map(copy_key, line.row)) for line in lines],
        judged=judged,
        problems=[problem for problem in problems if problem not in remarks],
        remarks=tuple(f"{remark[:1].upper()}{remark[1:]}." for remark in remarks),
    )


def _to_base(sample: Sample, judged: JudgedTable) -> Estimate | None:
    """The difference to the base's row: the user's, or else the stored one."""
    rows = sorted(judged.rows, key=lambda row: row.stored != sample.stored)
    for row in rows:
        if row.method == sample.base and row.trained and row.name != sample.name:
            pair = judged.pair(sample.name, row.name)
            return pair.estimate if pair is not None else None
    return None


def _with_openings(
    samples: Sequence[Sample], folder: Path, more: Path | None, problems: list[str]
) -> list[tuple[Sample, int]]:
    """Every row with how often the ledger of its results says that its method was tested."""
    own = _openings(folder, problems)
    stored = Counter[str]() if more is None else _openings(more, problems)
    return [(sample, (stored if sample.stored else own)[sample.method]) for sample in samples]


def write(board: Leaderboard) -> list[Path]:
    """Write the table beside its records; returns the files."""
    table = board.table()
    texts = {
        CSV: to_csv(board.frame),
        MARKDOWN: to_markdown(table),
        LATEX: to_latex(table),
        COLUMNS: describe_columns(table, CSV),
    }
    with FileLock(table_lock(board.folder)):
        remove_old_leftovers(board.folder)
        for name, text in texts.items():
            write_text(board.folder / name, text)
    return [board.folder / name for name in texts]


def _openings(folder: Path, problems: list[str]) -> Counter[str]:
    """How often the ledger says that each method was tested."""
    return Counter(entry["method"] for entry in read_ledger(folder / LEDGER, problems))


def _naive_last(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows without training below all others, which keep their order."""
    return frame.sort_values("kind", key=lambda kind: kind == "naive", kind="stable")


def title_of_frame(frame: pd.DataFrame) -> str:
    first = frame.iloc[0]
    return f"{first['dataset']}, {first['trunk']}, protocol {first['protocol']}"


def validation_title(frame: pd.DataFrame) -> str:
    """The metric that validation scores of a table are of, as papers write it."""
    return title_of(next(iter(frame["validation_metric"]), METRICS[0]))


def validation_column(frame: pd.DataFrame) -> str:
    """How figures call the validation score."""
    return f"validation {validation_title(frame)}"


def metrics_in(frame: pd.DataFrame) -> list[str]:
    """The metrics of a table: those of every test, then those that were asked for."""
    suffix = "_concatenated"
    names = [name.removesuffix(suffix) for name in frame.columns if name.endswith(suffix)]
    return [name for name in names if name != "dim"]


def measured_on_demand(frame: pd.DataFrame) -> list[str]:
    """The score columns that not every leaderboard has, with a value."""
    more = [metric for metric in metrics_in(frame) if metric not in METRICS]
    columns = [f"{metric}_{embedding}" for embedding in EMBEDDINGS for metric in more]
    return [column for column in columns if frame[column].notna().any()]


def remarks_on_frame(frame: pd.DataFrame, shape: Shape) -> list[str]:
    """What a reader must know to read the table right."""
    together, single = (shape.sizes[embedding] for embedding in EMBEDDINGS)
    several = frame[f"dim_{EMBEDDINGS[1]}"].notna().any()
    remarks = [
        "Percent on the test classes; ± is half the 95% confidence interval over reproductions. "
        + (
            f"{together}: embeddings of the four fold models, concatenated."
            if several
            else f"{together}: one model."
        )
    ]
    if frame["to_base"].notna().any():
        remarks.append("vs base: MAP@R minus that of the loss that the method extends, in points.")
    if several:
        remarks.append(f"{CSV} has all columns, among them the scores of single models ({single}).")
    if (frame["search_scores"] != "[]").any():
        remarks.append(
            "The score of a method with several searches is the mean over its searches, and ± half "
            "the 95% interval over them; its other columns describe the first search."
        )
    for scheme in sorted(set(frame["selection"]) - {DEFAULT_SCHEME}):
        meaning = SCHEMES[scheme].summary if scheme in SCHEMES else "unknown to this version"
        remarks.append(f"Trials were scored with selection={scheme}: {meaning}.")
    if shape.of_a_paper:
        sizes = dict(zip(frame["method"], frame[f"dim_{EMBEDDINGS[0]}"], strict=True))
        remarks += [
            f"{method} has {size:g} dimensions, not {together}: its trunk has no more features."
            for method, size in sizes.items()
            if together.isdecimal() and size < int(together)
        ]
    if (frame["kind"] == "single").any():
        remarks.append("single: one model of that size, trained on all trainval classes; no rank.")
    if (frame["kind"] == TEST_SELECTED).any():
        remarks.append(
            f"{TEST_SELECTED}: the epoch with the best score on the test classes, as the paper "
            "reports it; it has no rank and does not compare with rows of other protocols. last: "
            "the same models at their last epoch."
        )
    if frame["dataset"].isin(CLOSED).any():
        remarks.append(
            "Trained and tested on the same classes, with other images of them. Other tables "
            "test on new classes, so the numbers do not compare."
        )
    if remark := selection_remark(frame, shape):
        remarks.append(remark)
    if left_out := frame["missing_images"].max():
        remarks.append(f"Images left out because they are missing or broken: {left_out:,}.")
    return remarks


def selection_remark(frame: pd.DataFrame, shape: Shape) -> str:
    """Whether the order of validation scores is that of test scores; empty of few methods."""
    selection = selection_in(frame)
    if selection is None:
        return ""
    found = [
        f"{'none' if value is None else f'{value:.2f}'} at {shape.sizes[embedding]}"
        for embedding, value in correlations(selection).items()
    ]
    title = validation_title(frame)
    both = "validation and test MAP@R"
    if title != title_of("map_at_r"):
        both = f"validation {title} and test MAP@R"
    return f"Rank correlation of {both} over {len(selection.methods)} methods: {', '.join(found)}."
