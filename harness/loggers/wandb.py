"""Weights & Biases: one run for each trial, grouped by search; also offline.

WANDB_PROJECT, WANDB_ENTITY, WANDB_MODE and the other variables of wandb have their usual meaning.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.loggers.logger import Logger, Run

PROJECT = "metric-harness"  # unless WANDB_PROJECT names another one
TIMEOUT = 30  # seconds to wait for the server


class WandbLog:
    """Keeps one run open for each trial that is being trained: workers interleave their trials."""

    def __init__(self, folder: Path) -> None:
        import wandb

        self.wandb, self.folder = wandb, folder
        self.settings = wandb.Settings(silent=True, console="off", init_timeout=TIMEOUT)
        self.runs: dict[Run, Any] = {}
        if wandb.setup().settings.mode in ("offline", "dryrun", "disabled"):
            return
        # Only with credentials: without them, wandb would ask for some on the terminal.
        if not (wandb.api.api_key or os.environ.get("WANDB_IDENTITY_TOKEN_FILE")):
            raise ValueError(
                "no API key found; run `wandb login`, or set WANDB_MODE=offline to log to files"
            )
        try:
            wandb.login(verify=True, timeout=TIMEOUT)
        except wandb.Error as error:
            raise ValueError(f"{error}; WANDB_MODE=offline logs to files") from None

    def _run(self, run: Run) -> Any:
        if run not in self.runs:
            self.folder.mkdir(parents=True, exist_ok=True)
            opened = self.wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                group=run.group,
                name=run.name,
                config=dict(run.config),
                dir=self.folder,
                reinit="create_new",
                settings=self.settings,
            )
            # Each fold begins at step 0, and wandb's own counter of steps never goes back.
            opened.define_metric("*", step_metric="step")
            self.runs[run] = opened
        return self.runs[run]

    def add_score(self, run: Run, name: str, score: float, step: int) -> None:
        self._run(run).log({name: score, "step": step})

    def end_run(
        self, run: Run, params: Mapping[str, Any], scores: Mapping[str, float], failure: str
    ) -> None:
        opened = self._run(run)
        opened.config.update({f"params.{name}": value for name, value in params.items()})
        opened.summary.update({**scores, **({"failure": failure} if failure else {})})
        opened.finish(exit_code=1 if failure else 0)
        del self.runs[run]

    def close(self) -> None:
        for opened in self.runs.values():
            opened.finish(exit_code=1)


LOGGERS = (Logger("wandb", "Weights & Biases, online or offline", WandbLog),)
