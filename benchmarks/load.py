"""Load on the shared parts: many workers that claim empty trials, and thousands of records.

$ python -m benchmarks.load --workers 32 --trials 2000
$ python -m benchmarks.load --workers 32 --nodes 8 --trials 500 --storages floor postgres
$ python -m benchmarks.load --workers 32 --trials 200 --storages postgres --before ../old --rounds 3
$ python -m benchmarks.load --records 10000

The storages are measured one after the other in the same run. Compare them by the ratio: claims
per second depend on what else the machine does. The processor time of a trial depends on it less.
The storage `floor` is PostgreSQL with the fewest statements that a claim needs, without Optuna.
With --before FOLDER, another version of the source is measured in turn with this one.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import psycopg
from optuna.trial import TrialState

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from made_tables import full_record, put  # noqa: E402
from postgres import Postgres, find_programs, running_postgres  # noqa: E402

from harness.config import RunConfig  # noqa: E402
from harness.experiment import build_experiment  # noqa: E402
from harness.records.layout import record_path  # noqa: E402
from harness.searching.study import Study  # noqa: E402
from harness.searching.trials import index_of  # noqa: E402
from harness.tables import leaderboard  # noqa: E402

SCORES = [0.1, 0.2, 0.3, 0.4]  # of the folds of every trial
TELL_EVERY = 10  # seconds without a worker that ends
LABEL = "load"  # in place of the fingerprint of images, which nobody opens


@dataclass(frozen=True)
class Load:
    """What a storage did with many workers.

    Attributes:
        seconds: from the first claim to the end of the last trial.
        starting: seconds to start and end the workers.
        processor: seconds of processor time of all workers, without their start.
        opening: seconds of processor time to open the finished study.
        claims: index of a trial -> how often it was completed.
        connections: most connections to the server at a time; 0 without a server.
        failed: number of workers that ended with an error.
    """

    trials: int
    seconds: float
    starting: float
    processor: float
    opening: float
    claims: Counter[int]
    connections: int = 0
    failed: int = 0

    @property
    def per_second(self) -> float:
        return self.trials / self.seconds

    @property
    def each_once(self) -> bool:
        return self.claims == Counter(range(self.trials))

    def describe(self) -> str:
        cost = f"{1000 * self.processor / self.trials:.0f} ms of processor time each"
        once = "each trial once" if self.each_once else "TRIALS LOST OR REPEATED"
        around = f"{self.starting:.0f} s to start the workers, {1000 * self.opening:.0f} ms to open"
        parts = [f"{self.per_second:.1f} claims per second", cost, once]
        if self.connections:
            parts.append(f"at most {self.connections} connections")
        if self.failed:
            parts.append(f"{self.failed} WORKERS FAILED")
        return f"{', '.join(parts)}; {around}"


def work(config: RunConfig, spent: Any = None) -> None:
    """One worker: claims trials and tells their scores, until none is left.

    Args:
        spent: queue for the seconds of processor time that this took.
    """
    study = Study(build_experiment(config), LABEL)
    started = time.process_time()
    with study.storage.joined() as worker:
        while (claim := study.claim(worker)) is not None:
            study.finish(claim, TrialState.COMPLETE, 0.25, folds=SCORES, seconds=0.0)
    if spent is not None:
        spent.put(time.process_time() - started)


class Watch:
    """Asks a server ten times a second how many connections it has, while a block runs.

    Attributes:
        most: the largest number seen.
    """

    def __init__(self, count: Callable[[], int] | None) -> None:
        self.count, self.most = count, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def _ask(self) -> None:
        while self.count is not None and not self._over.wait(0.1):
            with suppress(psycopg.OperationalError):  # full
                self.most = max(self.most, self.count())

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()


def search(
    config: RunConfig, workers: int, nodes: int = 1, count: Callable[[], int] | None = None
) -> Load:
    """Run all trials of a config with so many workers.

    Args:
        nodes: number of parents, which have opened the study while their workers claim.
        count: returns the number of connections to the server.
    """
    with Watch(count) as watch:
        load = _search(config, workers, nodes)
    return replace(load, connections=watch.most)


def _search(config: RunConfig, workers: int, nodes: int) -> Load:
    experiment = build_experiment(config)
    # The tables are created before the workers start.
    study, *_others = [Study(experiment, LABEL) for _ in range(nodes)]
    context = forks()
    spent = context.SimpleQueue()
    started = time.perf_counter()
    processes = [context.Process(target=work, args=(config, spent)) for _ in range(workers)]
    for process in processes:
        process.start()
    while at_work := [process.sentinel for process in processes if process.is_alive()]:
        if not wait(at_work, timeout=TELL_EVERY):
            count, seconds = len(study.counted()), time.perf_counter() - started
            print(f"  {count} of {config.trials} trials after {seconds:.0f} s", file=sys.stderr)
    elapsed = time.perf_counter() - started
    failed = sum(bool(process.exitcode) for process in processes)
    done = study.completed()
    first = min(trial.datetime_start for trial in done if trial.datetime_start)
    last = max(trial.datetime_complete for trial in done if trial.datetime_complete)
    seconds = (last - first).total_seconds()
    processor = sum(spent.get() for _ in range(workers - failed))
    started = time.process_time()
    Study(experiment, LABEL)
    opening = time.process_time() - started
    claims = Counter(map(index_of, done))
    times = (seconds, elapsed - seconds, processor, opening)
    return Load(config.trials, *times, claims, failed=failed)


def forks() -> Any:
    """Processes that start with everything imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["harness.searching.study"])
    return context


def search_plainly(server: Postgres, trials: int, workers: int) -> Load:
    """The floor: as many workers, which lock a row, count, insert and later update a row."""
    url = server.url().replace("+psycopg", "")
    server.ask("CREATE TABLE lock AS SELECT 1 AS study")
    server.ask("CREATE TABLE trial (number int, claimed timestamptz, done timestamptz)")
    context = forks()
    spent = context.SimpleQueue()
    started = time.perf_counter()
    with Watch(server.connections) as watch:
        processes = [
            context.Process(target=work_plainly, args=(url, trials, spent)) for _ in range(workers)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    elapsed = time.perf_counter() - started
    failed = sum(bool(process.exitcode) for process in processes)
    ((seconds,),) = server.ask("SELECT extract(epoch FROM max(done) - min(claimed)) FROM trial")
    claims = Counter(number for (number,) in server.ask("SELECT number FROM trial"))
    processor = sum(spent.get() for _ in range(workers - failed))
    times = (float(seconds), elapsed - float(seconds), processor, 0.0)
    return Load(trials, *times, claims, connections=watch.most, failed=failed)


def work_plainly(url: str, trials: int, spent: Any) -> None:
    """One worker of the floor, which connects for every transaction as a real one does."""
    started = time.process_time()
    while True:
        with psycopg.connect(url) as connection:
            connection.execute("SELECT FROM lock FOR UPDATE")
            number = connection.execute("SELECT count(*) FROM trial").fetchone()[0]  # type: ignore[index]
            if number == trials:
                break
            connection.execute("INSERT INTO trial VALUES (%s, clock_timestamp())", [number])
        with psycopg.connect(url) as connection:
            done = "UPDATE trial SET done = clock_timestamp() WHERE number = %s"
            connection.execute(done, [number])
    spent.put(time.process_time() - started)


def config_for(folder: Path, trials: int, storage: str = "") -> RunConfig:
    """Random points: what a Gaussian process takes for a proposal is no load on what is shared."""
    return RunConfig(
        loss="proxyanchor",
        sampler="random",
        trials=trials,
        runs_dir=str(folder / "runs"),
        storage=storage,
    )


def put_records(results: Path, records: int) -> Path:
    """Ten of each method; returns the folder of their table."""
    table = put(results, full_record("method0", 1, 0.3)).parents[2]
    for number in range(1, records):
        method, repetition = f"method{number // 10}", number % 10 + 1
        path = record_path(table, method, "abc", repetition)
        path.parent.mkdir(exist_ok=True)
        # Not as a run writes it: that waits for the disk each time.
        path.write_text(json.dumps(asdict(full_record(method, repetition, 0.3))))
    return table


def make_table(table: Path) -> tuple[float, float, leaderboard.Leaderboard]:
    """Seconds that it takes, the MB of memory that it adds, and the table."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    board = leaderboard.build(table)
    leaderboard.write(board)
    seconds = time.perf_counter() - started
    return seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, board


@contextmanager
def journal(folder: Path) -> Iterator[tuple[str, None]]:
    """The default: no URL."""
    yield "", None


@contextmanager
def sqlite(folder: Path) -> Iterator[tuple[str, None]]:
    """URL of a file in write-ahead mode: readers and a writer do not wait for each other."""
    path = folder / "study.sqlite3"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    yield f"sqlite:///{path}", None


@contextmanager
def postgres(folder: Path) -> Iterator[tuple[str, Callable[[], int]]]:
    """URL of a database on a server of the system, with its default settings, on loopback."""
    with server_of_system() as server:
        yield server.url(), server.connections


@contextmanager
def server_of_system() -> Iterator[Postgres]:
    programs = find_programs()
    if programs is None:
        raise SystemExit("PostgreSQL is not installed: apt-get install postgresql")
    with running_postgres(programs) as server:
        yield server


# Each yields the URL of a storage, and a function that counts the connections to it.
STORAGES = {"journal": journal, "sqlite": sqlite, "postgres": postgres}


FLOOR = "floor"


def measure(storage: str, trials: int, workers: int, nodes: int) -> Load:
    if storage == FLOOR:
        with server_of_system() as server:
            return search_plainly(server, trials, workers)
    with tempfile.TemporaryDirectory() as name, STORAGES[storage](Path(name)) as (url, count):
        return search(config_for(Path(name), trials, url), workers, nodes, count)


def measure_source(source: Path, asked: argparse.Namespace) -> float:
    """Print what the source in a folder does with the first storage; its claims per second."""
    sizes = {"workers": asked.workers, "trials": asked.trials, "nodes": asked.nodes}
    flags = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    done = subprocess.run(
        [sys.executable, __file__, *flags, "--storages", asked.storages[0]],
        env={**os.environ, "PYTHONPATH": str(source)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    line = done.stdout.splitlines()[-1]
    print(f"{source.resolve().name}: {line}", flush=True)
    return float(line.split()[1])


def compare(before: Path, asked: argparse.Namespace) -> None:
    """Measure another source and this one in turn, and print the ratios."""
    ratios = []
    for _ in range(asked.rounds):
        old, new = measure_source(before, asked), measure_source(ROOT, asked)
        ratios.append(new / old)
    print(f"after / before: median {statistics.median(ratios):.2f} of {ratios}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=32, help="Number of processes.")
    parser.add_argument(
        "--nodes", type=int, default=1, help="Number of parents that share the workers."
    )
    parser.add_argument(
        "--before", type=Path, help="Folder of another source, to be measured in turn with this."
    )
    parser.add_argument("--rounds", type=int, default=3, help="Number of turns with --before.")
    parser.add_argument("--trials", type=int, default=2000, help="Number of trials to claim.")
    parser.add_argument(
        "--storages",
        nargs="+",
        choices=(FLOOR, *STORAGES),
        default=["journal", "sqlite"],
        help="Storages to measure. The others are compared with the first one.",
    )
    parser.add_argument(
        "--records", type=int, default=0, help="Build a table of so many records instead."
    )
    asked = parser.parse_args()
    if asked.records:
        with tempfile.TemporaryDirectory() as name:
            seconds, memory, board = make_table(put_records(Path(name), asked.records))
        rows, size = len(board.frame), f"{memory:.0f} MB more memory"
        print(f"{asked.records} records: a table of {rows} rows in {seconds:.1f} s, {size}")
        return
    print(f"{asked.trials} trials by {asked.workers} workers", flush=True)
    if asked.before:
        compare(asked.before, asked)
        return
    first = None
    for storage in asked.storages:
        load = measure(storage, asked.trials, asked.workers, asked.nodes)
        first = first or load
        ratio = f" ({load.per_second / first.per_second:.2f} of {asked.storages[0]})"
        print(f"{storage}: {load.describe()}{ratio if load is not first else ''}", flush=True)


if __name__ == "__main__":
    main()
