"""Made-up tables with all that a page can show, some of it with hostile names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from made_records import make_record, put

from harness.records.classes import note_test_classes
from harness.records.ledger import note_test_opening
from harness.records.records import TestRecord

MARKUP = "<script>alert('1')</script>"
FORMULA = '=cmd()|"x"_$y$&{z}'
METHODS = ("ccp-c2", "hpl-pa", "ms", "triplet", "contrastive", FORMULA)
CLASSES = ["Albatross", MARKUP, 'a "quoted" & `marked` class', *(f"bird {i}" for i in range(9))]

EVENTS = {"ccp-c2": {"new proxies": [0, 250]}, "hpl-pa": {"new clusters": {"every": 40}}}
TRIALS = 12


def full_record(method: str, repetition: int, base: float, **changes: Any) -> TestRecord:
    """A record as they are written today, with the course of its search and of its trainings."""
    rng = np.random.default_rng([repetition, int(1000 * base)])
    score = base + 0.01 * rng.random()
    steps = list(range(50, 401, 50))

    def fold(number: int) -> dict[str, Any]:
        return {
            **{"fold": number, "best_step": 300, "steps": 400, "device": "cpu"},
            **{"train_seconds": 4 + 10 * base, "peak_memory": 2**28 + int(2**24 * base)},
            **{"stopped_by": "max_steps", "hook": {"events": EVENTS.get(method, {})}},
            "history": {
                "steps": steps,
                "loss": [round(2 / (1 + i), 4) for i in range(len(steps))],
                "score": [round(score * (1 - 0.5**i), 4) for i in range(len(steps))],
            },
        }

    search = {
        **{"trials": TRIALS, "failed": 1, "pruned": 0, "best_trial": 7, "validation": base + 0.1},
        **{"validation_folds": [base, base + 0.2], "dimensions": 2, "on_bound": {"margin": "low"}},
        "trial_scores": [None, *(round(base * i / TRIALS, 4) for i in range(1, TRIALS))],
        "trial_params": {
            "margin": [round(i / TRIALS, 3) for i in range(TRIALS)],
            "loss_lr": [round(10.0 ** -(1 + i % 5), 6) for i in range(TRIALS)],
        },
        "trial_seconds": [None, *(10.0 + i for i in range(1, TRIALS))],
        "importance": {"margin": 0.7, "loss_lr": 0.3},
        "ranges": {
            "margin": {"low": 0.0, "high": 1.0, "log": False},
            "loss_lr": {"low": 1e-6, "high": 1.0, "log": True},
        },
        "asked": {"trials": 50, "reproductions": 10},
    }
    scores = {"map_at_r": score, "r_precision": score + 0.1, "p_at_1": score + 0.2}
    of_classes = [score - 0.1, score, score + 0.2] * 4
    per_class = {"map_at_r": of_classes, "p_at_1": of_classes}
    values: dict[str, Any] = {
        "scores": {"concatenated": scores, "separated": scores},
        "per_class": {"concatenated": per_class, "separated": per_class},
        "folds": [fold(number) for number in range(4)],
        "search": search,
        "params": {"margin": 0.0, "loss_lr": 0.001},
    }
    return make_record(method, repetition, score, **{**values, **changes})


def put_table(results: Path, dataset: str = "cub", methods: tuple[str, ...] = METHODS) -> Path:
    """A table of trained and naive rows, with its ledger and the names of its classes."""
    for place, method in enumerate(methods):
        for repetition in range(1, 6):
            record = full_record(method, repetition, 0.2 + 0.03 * place, dataset=dataset)
            path = put(results, record)
            note_test_opening(path.parents[2], method, "abc", repetition)
    naive: dict[str, Any] = {"kind": "naive", "search": {}, "folds": [], "params": {}}
    record = make_record("pretrained", 0, 0.1, dataset=dataset, **naive)
    table = put(results, record).parents[2]
    note_test_classes(table, "s1", CLASSES)
    return table
