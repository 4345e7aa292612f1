"""One CSV file with a line for each number, for pandas and spreadsheets."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.loggers.logger import Logger, Run

COLUMNS = ("group", "run", "kind", "name", "step", "value")


class CSVLog:
    """Appends to log.csv, which several processes may share: each writes whole lines."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = open(folder / "log.csv", "a", newline="", encoding="utf-8")  # noqa: SIM115
        self.described: set[str] = set()
        if not self.file.tell():
            csv.writer(self.file).writerow(COLUMNS)

    def _write(self, run: Run, kind: str, values: Mapping[str, Any], step: int | None) -> None:
        rows = [(run.group, run.name, kind, name, step, value) for name, value in values.items()]
        csv.writer(self.file).writerows(rows)
        self.file.flush()

    def _describe(self, run: Run) -> None:
        if run.group not in self.described:
            self.described.add(run.group)
            self._write(Run(run.group, ""), "config", run.config, None)

    def add_score(self, run: Run, name: str, score: float, step: int) -> None:
        self._describe(run)
        self._write(run, "curve", {name: score}, step)

    def end_run(
        self, run: Run, params: Mapping[str, Any], scores: Mapping[str, float], failure: str
    ) -> None:
        self._describe(run)
        self._write(run, "param", params, None)
        self._write(run, "score", scores, None)
        if failure:
            self._write(run, "failure", {"reason": failure}, None)

    def close(self) -> None:
        self.file.close()


LOGGERS = (Logger("csv", "one CSV file, log.csv", CSVLog),)
