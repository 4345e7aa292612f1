"""Weights of a model before training and at the best of each stage of it: CCP's instances."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.errors import HarnessError
from harness.losses.method import Hook
from harness.records.layout import STAGES
from harness.system.files import make_folder
from harness.training.saved import load, save
from harness.training.trainer import Trainer
from harness.training.unit import Unit
from harness.training.wrapped_hook import WrappedHook


@dataclass(frozen=True)
class Stage:
    """A moment of training.

    Attributes:
        step: 0 before training; else that of the best validation within the stage.
        weights: of the model.
        proxies: (classes, n, dim) of each class, where the loss tells which are whose.
        first: those that the stage began with.
    """

    step: int
    weights: dict[str, Tensor]
    proxies: Tensor | None
    first: Tensor | None


class StageWeights(WrappedHook):
    """Writes down the best weights of each stage; of the training itself nothing changes."""

    def __init__(self, hook: Hook, folder: Path) -> None:
        super().__init__(hook)
        self.folder = folder
        self.best: float | None = None
        self.first: Tensor | None = None

    def on_train_begin(self, context: Any) -> None:
        super().on_train_begin(context)
        self._write(0, context)
        self.first = _proxies(context)

    def on_validation_end(self, context: Any, score: float) -> None:
        ended = self.stages_ended()
        if self.best is None or score > self.best:
            self.best = score
            self._write(ended + 1, context)
        super().on_validation_end(context, score)
        if self.stages_ended() != ended:
            self.best, self.first = None, _proxies(context)

    def _write(self, number: int, context: Any) -> None:
        make_folder(self.folder)
        state = {
            "step": context.step,
            "weights": {k: v.detach().cpu() for k, v in context.model.state_dict().items()},
            "proxies": _proxies(context),
            "first": self.first,
        }
        save(state, self.folder / f"{number:03d}.pt")

    def state_dict(self) -> dict[str, Any]:
        return {"hook": super().state_dict(), "best": self.best, "first": self.first}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state["hook"])
        self.best, self.first = state["best"], state["first"]


def _proxies(context: Any) -> Tensor | None:
    by_class = getattr(context.loss, "class_proxies", None)
    return None if by_class is None else by_class().cpu()


def build_staged_trainer(unit: Unit, device: torch.device) -> Trainer:
    """A trainer that leaves the stages of its model behind."""
    return unit.build_trainer(
        device, wrap_hook=lambda hook: StageWeights(hook, unit.folder / STAGES)
    )


def read_stages(unit: Unit) -> list[Stage]:
    """Of a finished unit: before training, then one after the other."""
    paths = sorted((unit.folder / STAGES).glob("*.pt"))
    if not paths:
        raise HarnessError(
            f"the weights of the stages are gone from {unit.folder}; with that folder moved away, "
            "the same command trains them again"
        )
    return [Stage(**load(path, torch.device("cpu"))) for path in paths]
