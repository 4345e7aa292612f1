"""Which selection rule picks the configuration that tests best?

Retrains a pool of configurations of several losses under each rule, tests all of them, and prints
the rank correlation of each rule with the test score and its regret: the best test score of a
pool minus that of the configuration that the rule picks. Intervals are 95% bootstrap intervals
over configurations. This opens the test classes, so never tune on its result.

python -m benchmarks.selection --records results/frozen/cub-efficientnet_lite0 --data-root DATA
python -m benchmarks.selection --dataset glyphs --protocol frozen --losses proxyanchor contrastive

Finished models are kept in --runs-dir: repeat the command to continue, or to print the tables
again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from harness.calibration.selection import Params, measure_pools, planned_pool
from harness.calibration.selection_rules import ROTATIONS, describe, spread
from harness.cli.display import Lines
from harness.config import RunConfig
from harness.records.layout import find_records
from harness.records.records import TestRecord

LOSSES = ("proxyanchor", "contrastive", "proxynca++", "ms", "softtriple")


def recorded_pool(table: Path, loss: str, count: int) -> tuple[RunConfig, list[Params]]:
    """Configurations that a recorded search tried: some of its better half, evenly by rank."""
    records = [TestRecord.read(path) for path in find_records(table) if path.parent.name == loss]
    if not records:
        raise SystemExit(f"error: no records of {loss} in {table}; give other --losses")
    record = max(records, key=lambda record: record.search.get("trials", 0))
    search, identity = record.search, record.identity
    searched = [
        {name: values[place] for name, values in search["trial_params"].items()}
        for place in spread(search["trial_scores"], count)
    ]
    config = RunConfig(
        loss=loss,
        dataset=identity["dataset"],
        protocol=str(identity["protocol"]["name"]),
        trunk=identity["trunk"],
    )
    return config, [{**record.params, **params} for params in searched]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=Path, help="results folder of a table: its trials")
    parser.add_argument("--dataset", default="glyphs", help="without --records")
    parser.add_argument("--protocol", default="frozen", help="without --records")
    parser.add_argument("--losses", nargs="+", default=LOSSES)
    parser.add_argument("--configurations", type=int, default=8, help="of each loss")
    parser.add_argument("--rotations", type=int, choices=ROTATIONS, default=ROTATIONS[-1])
    parser.add_argument("--seeds", type=int, default=2, help="of each test score")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--runs-dir", default="runs-selection")
    parser.add_argument("--data-root", default="")
    parser.add_argument("--cache-dir", default=RunConfig().cache_dir)
    options = parser.parse_args()
    where: dict[str, Any] = {
        "runs_dir": options.runs_dir,
        "results_dir": str(Path(options.runs_dir, "results")),  # for its own ledger of openings
        "data_root": options.data_root,
        "cache_dir": options.cache_dir,
        "device": "cpu",
        "workers": options.workers,
        "allow_missing": True,  # as the records of the table have it
    }
    tasks = []
    for loss in options.losses:
        if options.records:
            config, pool = recorded_pool(options.records, loss, options.configurations)
            config = config.updated(where)
        else:
            asked = {"loss": loss, "dataset": options.dataset, "protocol": options.protocol}
            config = RunConfig().updated({**asked, **where})
            pool = planned_pool(config, options.configurations)
        tasks.append((config, pool))
    pools = measure_pools(tasks, options.rotations, options.seeds, Lines(verbose=False))
    print("\n".join(describe(pools, options.rotations)))


if __name__ == "__main__":
    main()
