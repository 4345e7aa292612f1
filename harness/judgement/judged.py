"""What a judgement consists of: tables with rows and pairs, as plain typed data.

Scores and differences are shares of 1; multiply by 100 for points of MAP@R.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Any

from harness.judgement.statistic import LEVEL

# What rows are ranked and pairs are answered by. All other scores are reported beside it.
EMBEDDING, METRIC = "concatenated", "map_at_r"

DEFAULT_MARGIN = 0.005  # differences that are smaller than half a point are called equivalent


class Answer(Enum):
    """What is known about the first row of a pair, compared with the second."""

    BETTER = "better"
    WORSE = "worse"
    EQUIVALENT = "equivalent"
    NOT_DECIDED = "not decided"


class Reason(Enum):
    """Why a pair is not decided."""

    NOISE = "the difference is within the noise"
    TEST_SET = "this test set cannot decide it"
    UNDER_BUDGET = "the row behind had fewer trials than its protocol asks for"
    COINCIDES = "one row coincides with the other, its base, at its best parameters"
    FEW_RUNS = "too few reproductions"
    FEW_CLASSES = "too few test classes"
    NO_CLASSES = "the records hold no scores of single test classes"


class Scope(Enum):
    """Which noise an answer accounts for, besides that of the test classes."""

    SEARCHES = "over repeated searches"
    BORROWED = "search noise taken from the other rows"
    ONE_SEARCH = "one search each: search noise not measured"
    FIXED = "fixed parameters"


class Budget(Enum):
    """How a row's parameters were chosen."""

    FULL = "full search"
    SHORT = "fewer trials than the protocol asks for"
    FIXED = "fixed parameters"
    NO_TRAINING = "no training"


class FamilyKind(Enum):
    """Why pairs are corrected together."""

    PLANNED = "planned pairs"
    OTHERS = "all other pairs of ranked rows"
    NO_TRAINING = "trained rows against rows without training"
    OWN_ROW = "one of your rows against all stored rows"


class Beats(Enum):
    """Whether a trained row is better than no training at all."""

    YES = "yes"
    IN_PART = "in part"
    NO = "no"
    NOT_DECIDED = "not decided"


@dataclass(frozen=True)
class Score:
    """A mean score, and half the width of its 95% confidence interval without test classes.

    Attributes:
        half_width: None where nothing is random or only one run exists.
    """

    mean: float
    half_width: float | None


@dataclass(frozen=True)
class Estimate:
    """A difference of two rows in one metric of one embedding.

    Attributes:
        difference: of the mean scores, the first row minus the second.
        low, high: its 95% confidence interval over searches, seeds and test classes; None where
            the records do not suffice, as for the fields below.
        p: two-sided and not corrected.
        error, freedom: standard error and its degrees of freedom.
    """

    difference: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    error: float | None = None
    freedom: float | None = None

    @property
    def flipped(self) -> Estimate:
        """The second row minus the first."""
        low, high = (None if end is None else -end for end in (self.high, self.low))
        return replace(self, difference=-self.difference, low=low, high=high)


@dataclass(frozen=True)
class Outperforming:
    """Probability that the first row is ahead if the whole experiment is repeated."""

    probability: float
    low: float
    high: float

    @property
    def flipped(self) -> Outperforming:
        """That of the second row."""
        return Outperforming(1 - self.probability, 1 - self.high, 1 - self.low)


@dataclass(frozen=True)
class Needed:
    """Searches that would decide a pair if its difference stays as it is.

    Attributes:
        searches: of each row, in total.
        further: that are missing, over both rows.
        seconds: of training that the further ones take, by the records; None without times.
    """

    searches: int
    further: int
    seconds: float | None


@dataclass(frozen=True)
class JudgedRow:
    """One row of a table.

    Attributes:
        name: unique in its table.
        method: name of the method, as records state it.
        stored: whether it belongs to the stored results, and not to the user's.
        scores: embedding -> metric -> score.
        dims: embedding -> its dimension.
        rank: among the trained rows, by concatenated MAP@R; None without training.
        letters: of its groups; two rows share a letter exactly if they are not separated.
        searches: number of searches; 0 without any.
        asked_reproductions: of all searches together; 0 if the records do not state it.
        method_notes: what the method says about facts that are below what it expects.
        trials, asked: of the shortest search, and those that its protocol asks for.
        base: what the method adds something to; empty without any.
        coincides_with: the base, where all searches ended where the method nearly is its base.
        at_step_limit, best_at_first: shares of the models that were stopped by the step limit, and
            that were best at their first validation.
        still_rising: whether a search still improved in its last fifth.
        on_bound: parameter -> the end of its range that the best value lies on.
        versions: what the trials of a search were trained with, where that differs.
        beats_no_training: None where no row without training exists.
        behind_no_training: scores in which it is behind the best row without training.
        search_seconds: training time of one search with its reproductions.
        time: of its newest record.
        command: that wrote it.
        commit: of the code that wrote it.
    """

    name: str
    method: str
    kind: str
    stored: bool
    scores: Mapping[str, Mapping[str, Score]]
    dims: Mapping[str, int]
    rank: int | None
    letters: str
    budget: Budget
    scope: Scope | None
    searches: int
    reproductions: int
    asked_reproductions: int
    method_notes: tuple[str, ...]
    trials: int | None
    asked: int | None
    base: str
    coincides_with: str
    at_step_limit: float | None
    best_at_first: float | None
    still_rising: bool
    on_bound: Mapping[str, str]
    versions: Mapping[str, Sequence[str]]
    beats_no_training: Beats | None
    behind_no_training: tuple[tuple[str, str], ...]
    search_seconds: float | None
    missing_images: int
    time: str
    command: str
    commit: str

    @property
    def trained(self) -> bool:
        return self.budget is not Budget.NO_TRAINING

    @property
    def score(self) -> Score:
        """What it is ranked by."""
        return self.scores[EMBEDDING][METRIC]


@dataclass(frozen=True)
class JudgedPair:
    """Two rows of a table; all differences are `method` minus `rival`.

    Attributes:
        method, rival: names of rows.
        family: name of the one family that the pair belongs to.
        relation: what the rival is to the method, by its declaration; empty without any.
        estimates: embedding -> metric -> estimate.
        holm_p: of concatenated MAP@R, corrected within the family; None if it was not tested.
        answer, reason: the reason is given where the answer is "not decided".
        bound: size that the true difference does not exceed; None if it was not tested.
        within_margin: whether the difference is shown to be smaller than the margin.
        outperforming: None where search noise was not measured.
        scope: None if neither row was trained with anything random.
        searches: of each row.
        contradictions: scores (embedding, metric) in which an uncorrected test says something else.
    """

    method: str
    rival: str
    family: str
    relation: str
    estimates: Mapping[str, Mapping[str, Estimate]]
    holm_p: float | None
    answer: Answer
    reason: Reason | None
    bound: float | None
    within_margin: bool
    outperforming: Outperforming | None
    needed: Needed | None
    scope: Scope | None
    searches: tuple[int, int]
    num_classes: int
    contradictions: tuple[tuple[str, str], ...]

    @property
    def estimate(self) -> Estimate:
        """What the pair is answered by."""
        return self.estimates[EMBEDDING][METRIC]

    @property
    def flipped(self) -> JudgedPair:
        """The same pair, judged from its second row; its relation is not the rival's."""
        opposite = {Answer.BETTER: Answer.WORSE, Answer.WORSE: Answer.BETTER}
        return replace(
            self,
            method=self.rival,
            rival=self.method,
            relation="",
            estimates={
                embedding: {metric: found.flipped for metric, found in by_metric.items()}
                for embedding, by_metric in self.estimates.items()
            },
            answer=opposite.get(self.answer, self.answer),
            outperforming=self.outperforming and self.outperforming.flipped,
            searches=self.searches[::-1],
        )

    @property
    def separated(self) -> bool:
        """Whether the two rows are shown to differ."""
        return self.answer in (Answer.BETTER, Answer.WORSE)


@dataclass(frozen=True)
class Family:
    """Pairs whose p-values are corrected together.

    Attributes:
        tests: number of tests that the correction counts: those of its pairs, and of planned pairs
            whose rival has no row yet; 0 if no pair could be tested.
    """

    name: str
    kind: FamilyKind
    tests: int


@dataclass(frozen=True, eq=False)
class JudgedTable:
    """Rows that may be ranked together, best first, and every pair of them that is judged.

    Attributes:
        missing: (method, rival) pairs that a row declares without a row for the rival.
        observations: what else may order the rows, in words.
    """

    protocol: str
    dataset: str
    trunk: str
    rows: tuple[JudgedRow, ...]
    pairs: tuple[JudgedPair, ...]
    families: tuple[Family, ...]
    missing: tuple[tuple[str, str], ...]
    observations: tuple[str, ...]

    @property
    def error_rate(self) -> float:
        """Chance of a false claim in any family of this table, at most."""
        return min(1.0, LEVEL * sum(family.tests > 0 for family in self.families))

    @property
    def trained_rows(self) -> list[JudgedRow]:
        """Best first."""
        return [row for row in self.rows if row.trained]

    @property
    def trained(self) -> list[str]:
        """Names of the trained rows, best first."""
        return [row.name for row in self.trained_rows]

    @property
    def leaders(self) -> list[str]:
        """Names of the trained rows that are not shown to differ from the best one, best first."""
        first = self.trained_rows[:1]
        shared = set(first[0].letters) if first else set()
        return [row.name for row in self.trained_rows if shared & set(row.letters)]

    def score(self, name: str) -> float:
        """What a row is ranked by."""
        return self.by_name[name].score.mean

    def pairs_of(self, name: str) -> list[JudgedPair]:
        """All pairs of one row, each judged from it, the best rival first."""
        found = [self.pair(name, row.name) for row in self.rows if row.name != name]
        return [pair if pair.method == name else pair.flipped for pair in found if pair is not None]

    @cached_property
    def by_name(self) -> dict[str, JudgedRow]:
        return {row.name: row for row in self.rows}

    @cached_property
    def _by_rows(self) -> dict[frozenset[str], JudgedPair]:
        return {frozenset((pair.method, pair.rival)): pair for pair in self.pairs}

    def pair(self, one: str, other: str) -> JudgedPair | None:
        """The pair of two rows, in the order that it is judged in."""
        return self._by_rows.get(frozenset((one, other)))


@dataclass(frozen=True)
class Judgement:
    """All tables that were asked for.

    Attributes:
        margin: largest difference that is called equivalent.
        problems: what is wrong with records, which were left out.
    """

    tables: tuple[JudgedTable, ...]
    margin: float
    problems: tuple[str, ...]


def to_json(judgement: Judgement) -> dict[str, Any]:
    """The judgement as JSON has it: answers in words, and null where a number is not finite."""
    found: dict[str, Any] = _plain(asdict(judgement))
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Enum):
        return value.value
    return None if isinstance(value, float) and not math.isfinite(value) else value
