"""How large the page of a whole benchmark is, how long it takes, and when a browser shows it.

Makes records of 31 methods on 5 data sets, 10 reproductions each, in the sizes of real ones (100
test classes, 50 trials of 5 parameters, 20 validations of 4 models), and reports on them. The last
line needs a browser (chromium and chromedriver).

$ python -m benchmarks.report
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from browser import resize, start  # noqa: E402
from made_records import make_record, put  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402

from harness.records.classes import note_test_classes  # noqa: E402
from harness.records.records import rounded  # noqa: E402
from harness.report.page import read_report, render  # noqa: E402

CLASSES, TRIALS, PARAMS, VALIDATIONS = 100, 50, 5, 20


def values(rng: np.random.Generator, count: int) -> list[float]:
    return [rounded(value) for value in rng.random(count)]


def search(rng: np.random.Generator) -> dict[str, Any]:
    names = [f"parameter_{i}" for i in range(PARAMS)]
    return {
        **{"trials": TRIALS, "failed": 0, "best_trial": 3, "dimensions": PARAMS, "on_bound": {}},
        **{
            "validation": 0.4,
            "validation_folds": values(rng, 4),
            "trial_scores": values(rng, TRIALS),
        },
        "trial_params": {name: values(rng, TRIALS) for name in names},
        "trial_seconds": values(rng, TRIALS),
        "importance": {name: 1 / PARAMS for name in names},
        "ranges": {name: {"low": 0.0, "high": 1.0, "log": False} for name in names},
        "asked": {"trials": TRIALS, "reproductions": 10},
    }


def fold(rng: np.random.Generator, number: int) -> dict[str, Any]:
    steps = list(range(100, 100 * VALIDATIONS + 1, 100))
    return {
        **{"fold": number, "best_step": steps[-3], "steps": steps[-1], "device": "cpu"},
        **{"train_seconds": 8.0 + rng.random(), "peak_memory": 2**30, "stopped_by": "patience"},
        "history": {
            "steps": steps,
            "loss": values(rng, VALIDATIONS),
            "score": values(rng, VALIDATIONS),
        },
    }


def fill(results: Path, methods: int, datasets: int, reproductions: int) -> None:
    for d in range(datasets):
        for m in range(methods):
            rng = np.random.default_rng([d, m])
            found = search(rng)
            for repetition in range(1, reproductions + 1):
                score = 0.2 + 0.003 * m + 0.002 * rng.random()
                of_classes = {k: values(rng, CLASSES) for k in ("map_at_r", "p_at_1")}
                changes: dict[str, Any] = {
                    **{"dataset": f"set{d}", "search": found, "class_queries": [48] * CLASSES},
                    "per_class": dict.fromkeys(("concatenated", "separated"), of_classes),
                    "folds": [fold(rng, number) for number in range(4)],
                }
                path = put(results, make_record(f"method-{m:02d}", repetition, score, **changes))
        note_test_classes(
            path.parents[2], "s1", [f"class of a bird, number {i}" for i in range(CLASSES)]
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--methods", type=int, default=31)
    parser.add_argument("--datasets", type=int, default=5)
    parser.add_argument("--reproductions", type=int, default=10)
    sizes = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results, page = Path(folder, "results"), Path(folder, "report.html")
        fill(results, sizes.methods, sizes.datasets, sizes.reproductions)
        files = list(results.glob("**/*.json"))
        kib = sum(file.stat().st_size for file in files) / len(files) / 1024
        print(f"{len(files)} files of records, {kib:.1f} KiB on average")
        began, cpu = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_utime
        page.write_text(render(read_report(results)))
        seconds = time.perf_counter() - began
        cpu = resource.getrusage(resource.RUSAGE_SELF).ru_utime - cpu
        print(
            f"page: {page.stat().st_size / 1e6:.2f} MB in {seconds:.1f} s, {cpu:.1f} s of one core"
        )
        browser = start(Path(folder, "profile"))
        try:
            resize(browser, 1200)
            began = time.perf_counter()
            browser.get(page.as_uri())
            assert browser.find_element(By.CSS_SELECTOR, "table.board").is_displayed()
            print(f"browser: loaded, first table shown after {time.perf_counter() - began:.2f} s")
            paint = "return performance.getEntriesByName('first-contentful-paint')[0].startTime"
            print(f"browser: first paint after {browser.execute_script(paint) / 1000:.2f} s")
        finally:
            browser.quit()


if __name__ == "__main__":
    main()
