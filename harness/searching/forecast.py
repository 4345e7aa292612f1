"""What a search would run and cost, without running it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harness import registry
from harness.config import RunConfig
from harness.datasets.dataset import published_listing
from harness.errors import HarnessError, convert_value_errors
from harness.experiment import Experiment, build_experiment, check_validated
from harness.records.layout import FOLD_RECORD
from harness.records.published import find_folder, read
from harness.records.records import FoldRecord, RecordError
from harness.searching.loop import check_until_flat
from harness.searching.study import sampler_of
from harness.training.plan import plan_of

# Seconds of a step on frozen features, on one core: of CCP at CUB's size, as docs/speed.md has it.
FROZEN_STEP = 0.0018
# Of the step that the CCP paper timed.
PUBLISHED_TRUNK, PUBLISHED_BATCH = "bninception", 32

RECORD_BYTES = 12 * 2**10
# Weights, the best ones, and two values that an optimizer keeps of each; 4 bytes all of them.
CHECKPOINT_BYTES = 4 * 4
ASPECT = 4 / 3  # of images, for their size in the cache


@dataclass(frozen=True)
class StepTime:
    """How long a step takes.

    Attributes:
        source: where the time is from, and that it is an estimate if it was not measured here.
        mean_steps: of the models that were measured; None if none was.
    """

    seconds: float
    source: str
    mean_steps: int | None = None


@dataclass(frozen=True)
class Forecast:
    """What a search would run and cost.

    Attributes:
        models: trained in all, those of finalists included.
        steps: of one model, at least and at most.
        time: None if nobody has measured it.
        cache, runs, checkpoint: bytes on disk; the last for each worker while it trains.
        missing: what the search would end for, in words.
    """

    experiment: Experiment
    trials: int
    models: int
    steps: tuple[int, int]
    time: StepTime | None
    cache: int
    runs: int
    checkpoint: int
    missing: tuple[str, ...]


def forecast(config: RunConfig) -> Forecast:
    """What a config would search; what could not be searched on any machine is refused."""
    missing = []
    dataset, path = registry.load_dataset(config.dataset)
    try:
        experiment = build_experiment(config)
    except HarnessError as error:
        if path is not None or not dataset.expected:
            raise
        experiment = build_experiment(config, listing=published_listing(dataset))
        missing.append(str(error))
    check_validated(experiment)
    check_until_flat(experiment)
    sampler_of(experiment)
    missing += _missing_here(experiment, needs_card=dataset.needs_root)
    protocol, trials = experiment.protocol, experiment.trials * config.searches
    others = sum(len(partition.folds) for partition in experiment.partitions[1:])
    models = trials * len(experiment.partitions[0].folds) + protocol.finalists * others
    cache, checkpoint = _bytes(experiment)
    return Forecast(
        experiment=experiment,
        trials=trials,
        models=models,
        steps=_steps(experiment),
        time=_measured(experiment) or _published(experiment),
        cache=cache,
        runs=models * RECORD_BYTES,
        checkpoint=checkpoint,
        missing=tuple(missing),
    )


def _missing_here(experiment: Experiment, needs_card: bool) -> Iterator[str]:
    """What this machine lacks, apart from images.

    Args:
        needs_card: whether whole networks train on photographs, and not on small pictures.
    """
    try:
        _ = experiment.weights
    except HarnessError as error:
        yield str(error)
    if needs_card and not experiment.protocol.frozen and experiment.device.type == "cpu":
        yield "a GPU: on CPU cores a step of a whole network takes far longer"


def _steps(experiment: Experiment) -> tuple[int, int]:
    """The fewest and the most steps of a model."""
    protocol, fold = experiment.protocol, experiment.partitions[0].folds[0]
    images = len(experiment.of_classes(experiment.listed("trainval"), fold.train))
    warmup = experiment.published_params.get("warmup_steps")
    plan = plan_of(protocol, max(1, images // protocol.batch_size), warmup)
    if protocol.patience is None:
        return plan.last, plan.last
    return min(plan.last, plan.first + (1 + protocol.patience) * plan.epoch), plan.last


def _measured(experiment: Experiment) -> StepTime | None:
    """From the models of this search that are finished."""
    folds = list(_finished(experiment))
    if not folds:
        return None
    steps = sum(fold.steps for fold in folds)
    seconds = sum(fold.seconds for fold in folds) / steps
    return StepTime(seconds, f"measured on {len(folds)} models of it", steps // len(folds))


def _finished(experiment: Experiment) -> Iterator[FoldRecord]:
    for path in sorted(experiment.runs.glob(f"folds/*/{FOLD_RECORD}")):
        with suppress(RecordError):
            yield FoldRecord.read(path)


def _published(experiment: Experiment) -> StepTime | None:
    """An estimate where nothing was measured, for frozen trunks and for the published one."""
    if experiment.protocol.frozen:
        return StepTime(FROZEN_STEP, "estimate: CCP on CUB's features, on one core")
    if experiment.trunk.name != PUBLISHED_TRUNK:
        return None
    table = read(find_folder(Path(experiment.config.results_dir)) / "compute_tables.csv")
    row = table[(table["quantity"] == "step_time") & (table["method"] == "Contrastive")].iloc[0]
    images = experiment.protocol.batch_size / PUBLISHED_BATCH
    source = f"estimate: BN-Inception on {row['hardware']}, {row['source'].partition(' (')[0]}"
    return StepTime(float(row["value"]) / 1000 * images, source)


def _bytes(experiment: Experiment) -> tuple[int, int]:
    """Of the cache of all training images, and of a checkpoint."""
    protocol, config = experiment.protocol, experiment.config
    images, channels = len(experiment.listed("trainval")), experiment.listing.channels
    with convert_value_errors():
        network = experiment.trunk.build(channels, "none")
    cache = int(images * protocol.resize**2 * ASPECT * channels) if config.cache == "on" else 0
    if protocol.frozen:
        assert isinstance(network.out_features, int)
        return cache + images * network.out_features * 4, 0
    weights = sum(parameter.numel() for parameter in network.parameters())
    return cache, weights * CHECKPOINT_BYTES
