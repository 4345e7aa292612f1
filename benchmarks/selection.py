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
import json
import multiprocessing
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from harness.config import RunConfig
from harness.evaluation.kept_models import embed_test
from harness.experiment import build_experiment, check_tested, check_validated, digest_of
from harness.protocols.protocol import with_change
from harness.records.layout import find_records
from harness.records.records import TestRecord
from harness.searching.samplers import planned
from harness.system.files import read_json, write_json
from harness.training.fold import run_fold
from harness.training.opened import open_experiment
from harness.training.trainer import TrainingFailed
from harness.training.trial import run_trial, trial_units, units_of
from harness.training.trial_score import score_trial

LOSSES = ("proxyanchor", "contrastive", "proxynca++", "ms", "softtriple")
FINALISTS = 5
ROTATIONS = (0, 2, 4)  # other partitions that finalists are scored on
SMOOTHED = 5  # validations that a smoothed score is the mean of
DRAWS = 2000  # of the bootstrap
TARGETS = {"concatenated": "concatenated test MAP@R", "separated": "single-model test MAP@R"}


@dataclass(frozen=True)
class Outcome:
    """What one configuration scored.

    Attributes:
        folds: mean over folds of the best validation score of a single model.
        smoothed: the same, of scores that are means over neighbouring validations.
        partitions: score by pairs of models on each partition, the first one first.
        test: embedding -> mean test score over seeds.
    """

    loss: str
    params: dict[str, Any]
    folds: float
    smoothed: float
    partitions: list[float]
    test: dict[str, float]


Pool = Sequence[Outcome]


def by_folds(pool: Pool) -> list[float]:
    return [one.folds for one in pool]


def by_smoothed_folds(pool: Pool) -> list[float]:
    return [one.smoothed for one in pool]


def by_pairs(pool: Pool, rotations: int) -> list[float]:
    return [float(np.mean(one.partitions[: 1 + rotations])) for one in pool]


@dataclass(frozen=True)
class Rule:
    """A way to choose among configurations.

    Attributes:
        score: of each configuration of a pool.
        finalists: only so many, the best on the first partition, may be chosen; 0 is no limit.
    """

    name: str
    score: Callable[[Pool], list[float]]
    finalists: int = 0

    def choice(self, pool: Pool) -> int:
        """Position of the configuration that the rule picks."""
        scores, first = self.score(pool), by_pairs(pool, 0)
        order = sorted(range(len(pool)), key=lambda i: -first[i])
        allowed = order[: self.finalists] if self.finalists else order
        return max(sorted(allowed), key=lambda i: scores[i])


def rules_for(rotations: int) -> list[Rule]:
    """All rules that can be compared with so many other partitions."""
    several = [count for count in ROTATIONS[1:] if count <= rotations]
    return [
        Rule("folds", by_folds),
        Rule("folds, smoothed", by_smoothed_folds),
        Rule("pairs", partial(by_pairs, rotations=0)),
        *(
            Rule(f"pairs, {count} rotations", partial(by_pairs, rotations=count), FINALISTS)
            for count in several
        ),
    ]


def correlation(rule: Rule, pools: Sequence[Pool], target: str) -> float:
    """Mean over losses of the rank correlation of a rule's scores with the test scores."""
    found = [
        spearmanr(rule.score(pool), [one.test[target] for one in pool]).statistic
        for pool in pools
        if len({one.test[target] for one in pool}) > 1 and len(set(rule.score(pool))) > 1
    ]
    return float(np.mean(found)) if found else float("nan")


def regret(rule: Rule, pools: Sequence[Pool], target: str) -> float:
    """Mean over losses of the test score that a rule loses against the best of its pool."""
    lost = []
    for pool in pools:
        test = [one.test[target] for one in pool]
        lost.append(max(test) - test[rule.choice(pool)])
    return float(np.mean(lost))


def random_regret(pools: Sequence[Pool], target: str) -> float:
    """What a random choice loses on average."""
    tests = [[one.test[target] for one in pool] for pool in pools]
    return float(np.mean([max(test) - np.mean(test) for test in tests]))


def interval(
    measure: Callable[[Sequence[Pool]], float], pools: Sequence[Pool], draws: int = DRAWS
) -> tuple[float, float]:
    """95% bootstrap interval: configurations of each loss are drawn with replacement."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(draws):
        drawn = [[pool[i] for i in rng.integers(len(pool), size=len(pool))] for pool in pools]
        found.append(measure(drawn))
    low, high = np.nanpercentile(found, [2.5, 97.5])
    return float(low), float(high)


def smoothed_best(history: Iterable[tuple[int, float, float]]) -> float:
    """The best mean over neighbouring validations."""
    scores = np.array([score for _, _, score in history])
    width = min(SMOOTHED, len(scores))
    return float(np.convolve(scores, np.ones(width) / width, mode="valid").max())


def recorded_pool(table: Path, loss: str, count: int) -> tuple[RunConfig, list[dict[str, Any]]]:
    """Configurations that a recorded search tried: some of its better half, evenly by rank."""
    records = [TestRecord.read(path) for path in find_records(table) if path.parent.name == loss]
    if not records:
        raise SystemExit(f"error: no records of {loss} in {table}; give other --losses")
    record = max(records, key=lambda record: record.search.get("trials", 0))
    search, identity = record.search, record.identity
    scores = search["trial_scores"]
    done = [i for i, score in enumerate(scores) if score is not None]
    better = sorted(done, key=lambda i: -(scores[i] or 0))[: max(count, len(done) // 2)]
    places = np.linspace(0, len(better) - 1, min(count, len(better))).round().astype(int)
    searched = [
        {name: values[better[place]] for name, values in search["trial_params"].items()}
        for place in dict.fromkeys(places.tolist())
    ]
    config = RunConfig(
        loss=loss,
        dataset=identity["dataset"],
        protocol=str(identity["protocol"]["name"]),
        trunk=identity["trunk"],
    )
    return config, [{**record.params, **params} for params in searched]


def planned_pool(config: RunConfig, count: int) -> list[dict[str, Any]]:
    """The published configuration and points that fill the search space."""
    experiment = build_experiment(config)
    points = planned("random", experiment.space, experiment.published_params, seed=0)
    return [{**experiment.published_params, **point} for point in points[:count]]


def measure(
    config: RunConfig, params: Mapping[str, Any], rotations: int, seeds: int
) -> Outcome | str:
    """Train and test one configuration, or say why it failed; finished work is read back."""
    values = dict(params)
    what = [config.loss, config.dataset, config.protocol, config.trunk, values, rotations, seeds]
    path = Path(config.runs_dir, "outcomes", f"{config.loss}-{digest_of(what)}.json")
    if path.exists():
        return Outcome(**read_json(path))
    try:
        outcome = _measured(config, values, rotations, seeds)
    except TrainingFailed as failure:
        return f"{config.loss} {json.dumps(values)} failed and is left out: {failure}"
    write_json(path, asdict(outcome))
    return outcome


def _measured(config: RunConfig, values: dict[str, Any], rotations: int, seeds: int) -> Outcome:
    opened = open_experiment(build_experiment(config))
    check_tested(opened.experiment)
    check_validated(opened.experiment)
    folds = run_trial(trial_units(opened.experiment, opened.trainval, values))
    protocol = config.protocol
    # The same protocol for any number of rotations, so that more of them reuse what is there.
    for field, value in {"selection": "pairs", "rotations": ROTATIONS[-1]}.items():
        protocol = with_change(protocol, field, value)
    paired = open_experiment(build_experiment(config.updated({"protocol": protocol})))
    partitions = []
    for number in range(1 + rotations):
        units = trial_units(
            paired.experiment, paired.trainval, values, of_search=True, partition=number
        )
        partitions.append(float(np.mean(score_trial(units, run_trial(units)))))
    tests: dict[str, list[float]] = {target: [] for target in TARGETS}
    for repetition in range(1, 1 + seeds):
        models = units_of(opened.experiment, opened.trainval, values, repetition)
        for unit in models:
            run_fold(unit, keep_weights=True)
        scores = embed_test(opened, models).scores()
        for target in TARGETS:
            tests[target].append(scores[target]["map_at_r"])
    return Outcome(
        loss=config.loss,
        params=values,
        folds=float(np.mean([fold.best_score for fold in folds])),
        smoothed=float(np.mean([smoothed_best(fold.history) for fold in folds])),
        partitions=partitions,
        test={target: float(np.mean(scores)) for target, scores in tests.items()},
    )


def print_tables(pools: Mapping[str, Pool], rotations: int) -> None:
    """One table per target: each rule over all losses, then its regret for every loss."""
    everything = list(pools.values())
    sizes = ", ".join(f"{loss} {len(pool)}" for loss, pool in pools.items())
    print(f"configurations: {sizes}; points of MAP@R, 95% bootstrap intervals")
    for target, title in TARGETS.items():
        chance = 100 * random_regret(everything, target)
        print(f"\n{title}: a random choice loses {chance:.2f} points")
        print(f"{'rule':<22}{'rank correlation':>26}{'regret':>24}  by loss: {' '.join(pools)}")
        for rule in rules_for(rotations):
            ranked = partial(correlation, rule, target=target)
            lost = partial(regret, rule, target=target)
            low, high = interval(ranked, everything)
            least, most = interval(lost, everything)
            by_loss = " ".join(f"{100 * lost([pool]):.2f}" for pool in everything)
            print(
                f"{rule.name:<22}{ranked(everything):>10.2f} [{low:>5.2f}, {high:>5.2f}]"
                f"{100 * lost(everything):>10.2f} [{100 * least:.2f}, {100 * most:.2f}]"
                f"  {by_loss}"
            )


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
    where = {
        "runs_dir": options.runs_dir,
        "results_dir": str(Path(options.runs_dir, "results")),  # for its own ledger of openings
        "data_root": options.data_root,
        "cache_dir": options.cache_dir,
        "device": "cpu",
        "allow_missing": True,  # as the records of the table have it
    }
    tasks: list[tuple[RunConfig, dict[str, Any]]] = []
    for loss in options.losses:
        if options.records:
            config, pool = recorded_pool(options.records, loss, options.configurations)
            config = config.updated(where)
        else:
            asked = {"loss": loss, "dataset": options.dataset, "protocol": options.protocol}
            config = RunConfig().updated({**asked, **where})
            pool = planned_pool(config, options.configurations)
        tasks += [(config, params) for params in pool]
    for config in {task[0].loss: task[0] for task in tasks}.values():
        open_experiment(build_experiment(config))  # features are made once, not in each worker
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, mp_context=context) as workers:
        futures = [
            workers.submit(measure, *task, options.rotations, options.seeds) for task in tasks
        ]
        pools: dict[str, list[Outcome]] = {}
        for number, future in enumerate(futures, start=1):
            outcome = future.result()
            if isinstance(outcome, str):
                print(f"{number}/{len(futures)} {outcome}", flush=True)
                continue
            pools.setdefault(outcome.loss, []).append(outcome)
            print(
                f"{number}/{len(futures)} {json.dumps(asdict(outcome), sort_keys=True)}", flush=True
            )
    print_tables(pools, options.rotations)


if __name__ == "__main__":
    main()
