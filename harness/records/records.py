"""What is written after a run, one JSON file each, and read back only if it fits to the last field.

The types say what a file may hold. Parts of a record (identity, folds, search) are mappings, kept
as they stand: older files lack what came later, newer ones may state more than is known here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, NotRequired, Self, TypedDict, cast

import msgspec
from msgspec import Meta

from harness.errors import HarnessError
from harness.foreign_files import RefusedFile, read_foreign
from harness.metrics.names import EMBEDDINGS, LENGTHS, METRICS, is_on_demand
from harness.records.layout import holds_metrics
from harness.records.provenance import Provenance
from harness.system.files import write_json
from harness.typed import convert

# JSON's infinities and NaN are no numbers to us: a file that holds one is not even read.
MOST = 2**53  # beyond, floats skip whole numbers
WHOLE = 1 + 1e-9  # rounding lifts some shares above 1
Count = Annotated[int, Meta(ge=0, le=MOST)]
Positive = Annotated[int, Meta(ge=1, le=MOST)]
NotNegative = Annotated[float, Meta(ge=0, le=MOST)]
# What a figure draws: sums and ranges of such numbers are finite.
Drawn = Annotated[float, Meta(ge=-1e30, le=1e30)]
Share = Annotated[float, Meta(ge=0, le=WHOLE)]

# One model whose weights were selected on the test classes.
TEST_SELECTED = "test-selected"

Kind = Annotated[str, Meta(pattern=f"^(reproduction|single|naive|{TEST_SELECTED})$")]

MOST_POINTS = 100  # of the history of one model
DIGITS = 5  # of values that are drawn and not computed with

# A parameter, or a field of a protocol.
Plain = bool | int | float | str | None
Setting = Plain | list[Plain] | dict[str, Plain]

# Version of the records that are written now. It grows when a field changes or is removed.
SCHEMA = 1

# Embedding, concatenated or separated -> metric -> value.
Scores = dict[str, dict[str, NotNegative]]


def rounded(value: float) -> float:
    """To DIGITS significant digits, which keeps records small."""
    return float(f"{value:.{DIGITS}g}")


class Identity(TypedDict):
    """What a run measures.

    Attributes:
        protocol: every field that a result depends on.
        dataset, trunk: as a table is named by them.
        weights: hash of those that the trunk starts from.
    """

    method: str
    protocol: dict[str, Setting]
    dataset: str
    trunk: str
    data_fingerprint: str
    split: str
    seed: int
    weights: NotRequired[str]


class AskedFor(TypedDict):
    """How much a protocol asks for."""

    trials: Count
    reproductions: Count


class SelectionFacts(TypedDict):
    """How a trial was chosen where trials are not scored by single models.

    Attributes:
        scheme: the protocol's selection scheme.
        finalists: indices of the trials that were scored on other partitions, best first by the
            first partition; empty if there was nothing to choose.
        partition_scores: the score of each finalist on each partition.
        partition_noise: standard deviation of a trial's score between partitions, without what
            these add to all finalists alike; None if it is not known.
    """

    scheme: str
    finalists: list[Count]
    partition_scores: list[list[Share]]
    partition_noise: NotNegative | None


class SearchFacts(TypedDict, total=False):
    """What selected the parameters; nothing where none were searched.

    Attributes:
        trials: those that count; failed and pruned ones are among them.
        best_trial: index of the one that was selected.
        validation: the score that it was chosen by, a mean over folds or partitions.
        validation_folds: what that score is the mean of.
        trial_scores: of every trial, by index; None if it failed.
        trial_folds: best validation score of each of its models; None if it failed or was pruned.
        selection: how the trial was chosen; missing if by the mean over folds.
        dimensions: how many parameters were searched.
        on_bound: parameter -> the end of its range that the selected value lies on.
        space: which of the method's spaces; empty for its own.
        base: the method that the searched one adds something to; empty without any.
        corner: values of its own parameters at which it trains almost as its base does.
        compared_with: other methods that its paper compares it with.
        select: how a trial was selected: by its mean over folds, or by "mean-se".
        trial_params: parameter -> its value in every trial, by index, to 5 digits.
        trial_seconds: of training and validation in every trial; None if it failed.
        importance: parameter -> its share in the variance of the scores (fANOVA).
        ranges: parameter -> the range it was searched in, as Optuna names its ends.
        versions: what its trials were trained with, where they differ: name -> versions.
    """

    trials: Count
    failed: Count
    pruned: Count
    best_trial: Count
    validation: Share
    validation_folds: list[Share]
    trial_scores: list[Share | None]
    trial_folds: list[list[Share] | None]
    dimensions: Count
    on_bound: dict[str, str]
    sampler: str
    space: str
    base: str
    corner: dict[str, Plain]
    compared_with: list[str]
    select: str
    asked: AskedFor
    trial_params: dict[str, list[Plain]]
    trial_seconds: list[NotNegative | None]
    importance: dict[str, NotNegative]
    ranges: dict[str, dict[str, Plain | list[Plain]]]
    selection: SelectionFacts
    versions: dict[str, list[str]]


class Compute(TypedDict, total=False):
    """What a score depends on beside code and settings: how numbers were computed.

    Attributes:
        precision: of trunk and head, as the protocol names it.
        tf32: which operations may use it, on cards that have it: convolutions, products.
        gpu, capability, cuda, hip, cudnn, driver: of the card; nothing on a CPU.
        deterministic: whether every kernel adds up in a fixed order, so that bits repeat.
        unordered: those that torch does not promise it of.
    """

    precision: str
    tf32: list[str]
    gpu: str
    capability: str
    cuda: str
    hip: str
    cudnn: str
    driver: str
    deterministic: bool
    unordered: list[str]


class History(TypedDict):
    """The course of one training, a value per validation, to 5 digits; of many, some are kept.

    Attributes:
        loss: mean over the steps since the last validation.
        score: nothing for a model that is not validated.
    """

    steps: list[Count]
    loss: list[Drawn]
    score: NotRequired[list[Drawn]]


class Adjusted(TypedDict):
    """A parameter that a method used with another value than it was given."""

    given: Setting
    used: Setting
    reason: str


class FoldFacts(TypedDict):
    """What a test record says of one of its models."""

    best_step: Count
    steps: Positive
    train_seconds: NotNegative
    peak_memory: Count
    device: str
    fold: NotRequired[Count]
    repetition: NotRequired[Count]
    best_score: NotRequired[Drawn]
    stopped_by: NotRequired[str]
    seconds: NotRequired[NotNegative]
    hook: NotRequired[dict[str, Any]]
    history: NotRequired[History]
    adjusted: NotRequired[dict[str, Adjusted]]
    drops: NotRequired[list[Count]]
    compute: NotRequired[Compute]
    provenance: NotRequired[Provenance]


class RecordError(HarnessError):
    """A record that cannot be used, with its file and the reason."""


@dataclass(frozen=True)
class Record:
    """Base of what is written as one JSON file; a file that does not fit is refused.

    Attributes:
        schema: version of its fields; 0 if the file is from before there were versions.
    """

    schema: Count = field(default=SCHEMA, kw_only=True)

    def write(self, path: Path) -> None:
        values = asdict(self)
        if not self.schema:  # as it was
            del values["schema"]
        write_json(path, values)

    @classmethod
    def read(cls, path: Path, within: Path | None = None) -> Self:
        """The record in a file; RecordError for one that is not whole, or not to be read.

        Args:
            within: folder that links must not lead out of. Default: the folder of the file.
        """
        try:
            values = msgspec.json.decode(read_foreign(path, within))
        except RefusedFile as error:
            raise RecordError(f"{path}: {error}") from None
        except (OSError, ValueError, RecursionError) as error:
            raise RecordError(f"{path}: not a complete JSON file ({error})") from None
        if isinstance(values, dict):
            values.setdefault("schema", 0)
            if isinstance(values["schema"], int) and values["schema"] > SCHEMA:
                raise RecordError(
                    f"{path}: it has schema {values['schema']}, and this version of metric-harness "
                    f"reads up to {SCHEMA}; install a newer version"
                )
        try:
            convert(values, cls, f"not a {cls.__name__}")
        except ValueError as error:
            raise RecordError(f"{path}: {error}") from None
        return cls(**values)


@dataclass(frozen=True)
class Fit:
    """How the training of one model went.

    Attributes:
        history: (step, mean training loss of the epoch or since the last, score) of every
            validation.
        train_seconds: without validation and checkpoints; seconds: with them.
        peak_memory: bytes on the GPU, or of the whole process on a CPU.
        hook: what the method's hook says of the run, as how often CCP changed its problem.
        drops: epochs, from 0, that began at a lower learning rate than the one before.
    """

    best_score: float
    best_step: Count
    steps: Positive
    stopped_by: str
    history: list[tuple[int, float, float]]
    train_seconds: NotNegative
    seconds: NotNegative
    peak_memory: Count
    hook: dict[str, Any]
    # This came later: older records do without it.
    drops: list[Count] = field(default_factory=list, kw_only=True)


@dataclass(frozen=True)
class FoldRecord(Fit, Record):
    """One trained model: one configuration, one fold, one repetition.

    Attributes:
        params: as they were given.
        adjusted: those among them that the method changed, with the reason.
        of_search: whether a search proposed them, and not somebody who tries some.
    """

    identity: Identity
    params: dict[str, Setting]
    fold: Count
    repetition: Count
    device: str
    provenance: Provenance
    # These came later: older records do without them.
    adjusted: dict[str, Adjusted] = field(default_factory=dict)
    compute: Compute = field(default_factory=lambda: Compute())
    of_search: bool | None = None

    def facts(self, scored: bool) -> FoldFacts:
        """What a test record says of this model.

        Args:
            scored: whether it was stopped by a validation score, or by steps.
        """
        left_out = (
            *("schema", "identity", "params", "of_search"),
            *(() if scored else ("best_score",)),
            *(() if self.adjusted else ("adjusted",)),
            *(() if self.drops else ("drops",)),
        )
        kept = {name: value for name, value in asdict(self).items() if name not in left_out}
        kept["history"] = self._course(scored)
        return cast(FoldFacts, kept)

    def _course(self, scored: bool) -> History:
        """The history, thinned to what a picture needs; the best and the last stay in it."""
        count = len(self.history)
        spread = {i * (count - 1) // (MOST_POINTS - 1) for i in range(MOST_POINTS)}
        chosen = [
            entry
            for i, entry in enumerate(self.history)
            if count <= MOST_POINTS or i in spread or entry[0] == self.best_step
        ]
        course: History = {
            "steps": [step for step, _, _ in chosen],
            "loss": [rounded(loss) for _, loss, _ in chosen],
        }
        return {**course, "score": [rounded(s) for *_, s in chosen]} if scored else course


@dataclass(frozen=True)
class TrialRecord(Record):
    """A trial whose models are scored together, on classes that they did not train on.

    Attributes:
        partition: number of the partition of the classes; a search begins with 0.
        scores: those that the trial's score is the mean of.
        folds: best validation score of each model.
        seconds: of training and validation, over all models.
    """

    identity: Identity
    params: dict[str, Setting]
    partition: Count
    scores: list[Share]
    folds: list[float]
    seconds: NotNegative
    provenance: Provenance

    def __post_init__(self) -> None:
        if not self.scores:
            raise ValueError("a trial has no scores")


@dataclass(frozen=True)
class ValidationRecord(Record):
    """The models of one repetition, which saw no test class: a point of a sweep.

    Attributes:
        folds: of each model, with its score on the validation classes.
    """

    identity: Identity
    params: dict[str, Setting]
    repetition: Count
    folds: list[FoldFacts]
    provenance: Provenance

    def __post_init__(self) -> None:
        _check_identity(self.identity)
        if not self.folds or any("best_score" not in fold for fold in self.folds):
            raise ValueError("a model has no score")


@dataclass(frozen=True)
class TestRecord(Record):
    """One opening of the test classes: the models of one repetition, or a naive baseline.

    Attributes:
        kind: "single" is one model instead of those of the folds; "test-selected" one whose weights
            are the best on the test classes.
        dims: embedding -> its size.
        separated: metric -> value, of each fold model.
        folds: of each model.
        per_class: embedding -> metric -> mean over the queries of each test class, in the order of
            the labels; None where no query counts.
        class_queries: how many queries of each test class count.
        missing_images: of the whole data set, because their files were missing or broken.
        last: scores of the last weights, beside those that were selected on the test classes.
    """

    __test__ = False  # pytest: not a test

    kind: Kind
    identity: Identity
    params: dict[str, Setting]
    repetition: Count
    dims: dict[str, Positive]
    scores: Scores
    separated: list[dict[str, NotNegative]]
    queries: Count
    queries_dropped: Count
    test_fingerprint: str
    folds: list[FoldFacts]
    search: SearchFacts
    provenance: Provenance
    # These came later: older records do without them.
    per_class: dict[str, dict[str, list[Share | None]]] = field(default_factory=dict)
    class_queries: list[Count] = field(default_factory=list)
    missing_images: Count = 0
    last: Scores = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_identity(self.identity)
        _check_kinds(self.scores)
        for scores in (*self.scores.values(), *self.separated, *self.last.values()):
            _check_scores(scores, METRICS)
        by = self.identity["protocol"].get("select", "validation")
        if self.kind != "naive" and (self.kind == TEST_SELECTED) != (by == "test"):
            raise ValueError(f"kind is {self.kind}, but the protocol selects by {by}")
        if not self.scores.keys() <= self.dims.keys():
            raise ValueError("dims lack the size of an embedding that has scores")
        for by_metric in self.per_class.values():
            for metric, values in by_metric.items():
                _check_classes(metric, values, self.class_queries)
        _check_trials(self.search.get("trial_folds", []))

    @property
    def flat_scores(self) -> dict[str, float]:
        """Test scores by one name each, such as concatenated/map_at_r."""
        return {
            f"{embedding}/{metric}": score
            for embedding, scores in self.scores.items()
            for metric, score in scores.items()
        }


@dataclass(frozen=True)
class MetricsRecord(Record):
    """More metrics of a run that was tested before; what its TestRecord says stays as it is.

    Attributes:
        kind: that of the run.
    """

    kind: Kind
    identity: Identity
    params: dict[str, Setting]
    repetition: Count
    scores: Scores
    test_fingerprint: str
    provenance: Provenance

    def __post_init__(self) -> None:
        _check_identity(self.identity)
        _check_kinds(self.scores)
        for scores in self.scores.values():
            _check_scores(scores)


def _check_identity(identity: Identity) -> None:
    if not isinstance(identity["protocol"].get("name"), str):
        raise ValueError("the protocol of the identity has no name")


def _check_kinds(scores: Scores) -> None:
    if "concatenated" not in scores:
        raise ValueError("scores lack concatenated")
    for embedding in scores:
        if embedding not in EMBEDDINGS:
            raise ValueError(f"scores are {' or '.join(EMBEDDINGS)}, got {embedding}")


def _check_scores(scores: Mapping[str, float], needed: Sequence[str] = ()) -> None:
    for metric in needed:
        if metric not in scores:
            raise ValueError(f"scores lack {metric}")
    for metric, value in scores.items():
        if not (metric in METRICS or is_on_demand(metric)):
            raise ValueError(f"no metric is called {metric}")
        if metric not in LENGTHS and value > WHOLE:
            raise ValueError(f"{metric} is a part of a whole, got {value}")


def _check_classes(metric: str, values: Sequence[float | None], queries: Sequence[int]) -> None:
    if [value is None for value in values] != [count == 0 for count in queries]:
        raise ValueError(f"{metric} of the classes does not fit class_queries")


def _check_trials(trial_folds: Sequence[Sequence[float] | None]) -> None:
    folds = {len(scores) for scores in trial_folds if scores is not None}
    if len(folds) > 1 or 0 in folds:
        raise ValueError("trial_folds has trials with scores on other folds than the rest")


def read_record(path: Path) -> TestRecord | MetricsRecord:
    """A file of a records folder, by what its name says it is."""
    kind = MetricsRecord if holds_metrics(path) else TestRecord
    return kind.read(path, within=path.parents[2])  # the table
