"""An experiment with its trainval images opened, as every command that trains hands it down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from harness.config import RunConfig
from harness.data.batches import Source
from harness.data.sources import open_part
from harness.experiment import Experiment, build_experiment, digest_of
from harness.loss_file import is_file
from harness.records.ledger import note_test_opening
from harness.records.records import Identity
from harness.system.progress import Listener, ignore

SELECT = "+select="  # in the label of a row, before how its trial was chosen


@dataclass(frozen=True)
class OpenedExperiment:
    """An experiment and what its models see of the trainval classes.

    A process resolves and opens an experiment once. Another process is sent the config, because a
    method may be code that only a file of the user has.

    Attributes:
        fixed: what the user set the parameters by, where nothing was searched: the preset and
            single parameters. It is part of the name of the row.
    """

    experiment: Experiment
    trainval: Source
    fixed: str = ""

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.experiment.method.name

    @property
    def label(self) -> str:
        """Name of the row; another way to choose the parameters makes another row."""
        select = self.experiment.config.select
        how = self.fixed or (f"{SELECT}{select}" if select != "mean" else "")
        return self.method + how

    @property
    def title(self) -> str:
        """Name of the row for people, with the seed of a repeated search."""
        return self.label + self.experiment.seed_note

    @property
    def identity(self) -> Identity:
        return {**self.experiment.identity(self.trainval.fingerprint), "method": self.label}

    def digest(self, params: Mapping[str, Any]) -> str:
        """Name of the runs at some parameters, in records and in the ledger."""
        return digest_of({"identity": self.identity, "params": dict(params)})

    def note_opening(self, params: Mapping[str, Any], repetition: int) -> None:
        """Write to the ledger that the test classes are being opened, before they are."""
        table = self.experiment.results
        note_test_opening(table, self.label, self.digest(params), repetition)

    def placed(self, device: str, loader_workers: int) -> OpenedExperiment:
        """The same experiment in a worker.

        Args:
            device: of the worker.
            loader_workers: processes that prepare its batches, unless the config says.
        """
        config = _placed(self.experiment.config, device, loader_workers)
        # A loss file is imported again, just before it is used: its functions may import helpers
        # when they are called, and the file of another loss may have helpers of the same names.
        if is_file(config.loss):
            return replace(self, experiment=build_experiment(config, self.method))
        return replace(self, experiment=replace(self.experiment, config=config))

    def __reduce__(self) -> tuple[type[_SentExperiment], tuple[Any, ...]]:
        # A loss may change the working directory.
        return _SentExperiment, (self.experiment.config.absolute(), self.method, self.fixed)


@dataclass(frozen=True)
class _SentExperiment:
    """What another process gets of an opened experiment, until it is placed there.

    Attributes:
        method: its name when the work began; a loss file that was edited since is refused.
    """

    config: RunConfig
    method: str
    fixed: str

    def placed(self, device: str, loader_workers: int) -> OpenedExperiment:
        config = _placed(self.config, device, loader_workers)
        return open_experiment(build_experiment(config, self.method), fixed=self.fixed)


def _placed(config: RunConfig, device: str, loader_workers: int) -> RunConfig:
    own = config.loader_workers
    values = {"device": device, "loader_workers": own if own >= 0 else loader_workers}
    return config.updated(values)


def open_experiment(
    experiment: Experiment, listener: Listener = ignore, fixed: str = ""
) -> OpenedExperiment:
    """Open the trainval images of an experiment, or their features, made now if need be."""
    return OpenedExperiment(experiment, open_part(experiment, "trainval", listener), fixed)
