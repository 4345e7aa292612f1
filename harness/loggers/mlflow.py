"""MLflow: one experiment for each search, one run for each trial.

MLFLOW_TRACKING_URI names the server. Without it, an SQLite file is written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.loggers.logger import Logger, Run

# A server that does not answer must not hold up a search for long. MLflow's own values are 120
# seconds and 7 attempts, each of which waits twice as long as the one before.
PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}


class MLflowLog:
    """Writes by the client alone, which leaves MLflow's active run to the user's script."""

    def __init__(self, folder: Path) -> None:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            folder.mkdir(parents=True, exist_ok=True)
            uri = f"sqlite:///{(folder / 'mlflow.db').absolute()}"
        self.error = MlflowException
        self.client = MlflowClient(uri)
        self.runs: dict[Run, str] = {}
        try:
            self.client.search_experiments(max_results=1)
        except Exception as error:  # of MLflow, requests or a database
            first = str(error).partition("\n")[0]
            raise ValueError(f"the tracking server {uri} does not answer: {first}") from None

    def _experiment(self, name: str) -> str:
        found = self.client.get_experiment_by_name(name)
        if found is None:
            try:
                return self.client.create_experiment(name)
            except self.error:  # another process was faster
                found = self.client.get_experiment_by_name(name)
                if found is None:
                    raise
        return found.experiment_id

    def _run(self, run: Run) -> str:
        if run not in self.runs:
            config = {_key(name): str(value) for name, value in run.config.items()}
            begun = self.client.create_run(
                self._experiment(run.group), run_name=run.name, tags=config
            )
            self.runs[run] = begun.info.run_id
        return self.runs[run]

    def add_score(self, run: Run, name: str, score: float, step: int) -> None:
        self.client.log_metric(self._run(run), _key(name), score, step=step)

    def end_run(
        self, run: Run, params: Mapping[str, Any], scores: Mapping[str, float], failure: str
    ) -> None:
        run_id = self._run(run)
        for name, value in params.items():
            self.client.log_param(run_id, _key(name), value)
        for name, score in scores.items():
            self.client.log_metric(run_id, _key(name), score)
        if failure:
            self.client.set_tag(run_id, "failure", failure)
        self.client.set_terminated(run_id, "FAILED" if failure else "FINISHED")
        del self.runs[run]

    def close(self) -> None:
        for run_id in self.runs.values():
            self.client.set_terminated(run_id, "KILLED")


def _key(name: str) -> str:
    """A name in the letters that MLflow takes: recall@1 becomes recall_at_1."""
    return re.sub(r"[^\w\-. /]", "_", name.replace("@", "_at_"))


LOGGERS = (Logger("mlflow", "a server of MLflow, or an SQLite file", MLflowLog),)
