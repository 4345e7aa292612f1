"""TensorBoard: event files with curves, and a table of trials in the tab "HParams"."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.loggers.logger import Logger, Run

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoardLog:
    """One folder of event files for each run."""

    def __init__(self, folder: Path) -> None:
        import tensorboard  # noqa: F401 (else torch's own message would name it)

        self.folder = folder
        self.writers: dict[Path, SummaryWriter] = {}

    def _writer(self, run: Run) -> SummaryWriter:
        from torch.utils.tensorboard import SummaryWriter

        group = self.folder / run.group
        if group not in self.writers:
            self.writers[group] = SummaryWriter(group)
            lines = [f"| {name} | {value} |" for name, value in run.config.items()]
            self.writers[group].add_text("config", "\n".join(["| key | value |", "|-|-|", *lines]))
            self.writers[group].flush()
        path = group / run.name
        if path not in self.writers:
            self.writers[path] = SummaryWriter(path)
        return self.writers[path]

    def add_score(self, run: Run, name: str, score: float, step: int) -> None:
        self._writer(run).add_scalar(name, score, step)

    def end_run(
        self, run: Run, params: Mapping[str, Any], scores: Mapping[str, float], failure: str
    ) -> None:
        writer = self._writer(run)
        if failure:
            writer.add_text("failure", failure)
        if scores:
            plain = {
                name: value if isinstance(value, bool | int | float) else str(value)
                for name, value in params.items()
            }
            writer.add_hparams(plain, dict(scores), run_name=".")
        self.writers.pop(self.folder / run.group / run.name).close()

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()


LOGGERS = (Logger("tensorboard", "event files of TensorBoard", TensorBoardLog),)
