"""What a worker does of the reproductions, beside workers of this and of other machines."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import DeviceLost, HarnessError
from harness.evaluation.replay import Replay
from harness.evaluation.runs import FoldModels, Reproduction, ReproductionJob, SingleModel
from harness.evaluation.selected_on_test import SelectedOnTest
from harness.records.layout import find_records
from harness.searching.loop import WAIT
from harness.searching.shared_records import SharedRecords, shared_records
from harness.searching.study import storage_of
from harness.system.progress import Event, Listener, ModelEnded, Waiting
from harness.system.trouble import forgiving
from harness.training.trial import fold_records_of

# What a repetition is, by what the protocol selects.
REPRODUCTION_TYPES: dict[str, type[Reproduction]] = {
    "best": FoldModels,
    "last": FoldModels,
    "test": SelectedOnTest,
    "replay": Replay,
}


def work(jobs: Iterable[ReproductionJob], listener: Listener) -> None:
    """One worker: every fold that nobody has trained or is training, then its test scores.

    Where machines share a database, a machine does a whole reproduction, because weights stay where
    they are. It waits for the reproductions of others, and takes over those of lost machines.
    """
    waiting = []
    for job in jobs:
        share = _Share(job, listener)
        if not share.work():
            waiting.append(share)
    while waiting:
        time.sleep(WAIT)
        listener(Waiting(method=waiting[0].job.opened.title))
        waiting = [share for share in waiting if not share.work()]


def records_of(job: ReproductionJob) -> SharedRecords | None:
    """What a job shares with other machines; None if it shares nothing."""
    experiment = job.opened.experiment
    return shared_records(experiment, storage_of(experiment)) if job.shared else None


def exchange(job: ReproductionJob, records: SharedRecords | None) -> None:
    """Send the records of a job that are here, and fetch those of its table."""
    if records is not None:
        for repetition in job.repetitions:
            _send(job, repetition, records)
        records.send_openings(job.opened.experiment.results)
        records.fetch_table(job.opened.experiment.results)


@contextmanager
def one_machine(table: Path, work: str, records: SharedRecords | None) -> Iterator[None]:
    """A block for one machine at a time, which has the records that earlier ones made in it.

    Args:
        work: names the block among those of the table.
    """
    if records is None:
        yield
        return
    with records.storage.joined():
        while not records.lease(table / work):
            time.sleep(WAIT)
        records.fetch_table(table)
        before = set(find_records(table))
        yield
        records.send(set(find_records(table)) - before)
        records.send_openings(table)
        records.release(table / work)


@dataclass(frozen=True)
class _Share:
    """What one worker does of a job.

    Attributes:
        tried: repetitions that it has finished, or failed to finish.
    """

    job: ReproductionJob
    listener: Listener
    tried: set[int] = field(default_factory=set)

    def work(self) -> bool:
        """Do what nobody does; False if other machines are still at some of it."""
        records = records_of(self.job)
        if records is None:
            for repetition in self.job.repetitions:
                self._finish(repetition)
            return True
        records.fetch_table(self.job.opened.experiment.results)
        with records.storage.joined():
            return all([self._is_done(repetition, records) for repetition in self.job.repetitions])

    def _is_done(self, repetition: int, records: SharedRecords) -> bool:
        """Finish a repetition unless another machine does, or did. False if it still does."""
        job, path = self.job, self.job.record_paths(repetition)[0]
        if repetition in self.tried or job.has_finished(repetition):
            return True
        if not records.lease(path):
            return False
        self.tried.add(repetition)
        records.fetch_table(job.opened.experiment.results)  # finished meanwhile, by its last owner
        if not job.has_finished(repetition):
            if path.exists():  # one more model is trained for as long as those were
                records.fetch(fold_records_of(job.units(repetition)))
            failed = not self._finish(repetition)
            _send(job, repetition, records)
            records.send_openings(job.opened.experiment.results)
            if failed or job.has_finished(repetition):  # else a worker beside this one is at it
                records.release(path)
        return True

    def _finish(self, repetition: int) -> bool:
        """Finish one repetition; an error ends only this one. False if something failed."""
        failed = []

        def heard(event: Event) -> None:
            if isinstance(event, ModelEnded) and event.reason:
                failed.append(event)
            self.listener(event)

        own = REPRODUCTION_TYPES[self.job.opened.experiment.protocol.select]
        for reproduction_type in [own, SingleModel] if self.job.single else [own]:
            reproduction = reproduction_type(self.job, repetition, heard)
            try:
                forgiving(reproduction.finish)
            except DeviceLost:  # for a new process to go on
                raise
            except HarnessError as error:
                reproduction.say_model(reason=str(error))
        return not failed


def _send(job: ReproductionJob, repetition: int, records: SharedRecords) -> None:
    """Copy all records of a repetition: of its tests, of metrics, and of its models."""
    tests = job.record_paths(repetition)[0]
    records.send(tests.parent.glob(f"{tests.stem}.*"))
    if tests.exists():
        records.send(fold_records_of(job.units(repetition)))
