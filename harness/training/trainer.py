"""Fit one model on one fold: early stopping, hooks, checkpoints, exact resumption."""

from __future__ import annotations

import logging
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from harness.data.batches import TrainBatches
from harness.data.loading import Loader
from harness.model.network import Model, freeze_batchnorm
from harness.results.records import Fit
from harness.system.files import replacing
from harness.training.embed import embed
from harness.training.optimizer import build_optimizer
from losses.method import Hook, Method
from protocols.protocol import EvaluationProtocol

logger = logging.getLogger(__name__)

# Of the time of a run that checkpoints may take: short folds are not checkpointed at every chance.
CHECKPOINT_SHARE = 0.01


# A model and the step that it is at -> a score, larger is better.
Validate = Callable[[Model, int], float]


class TrainingFailed(Exception):
    """A run that cannot go on, with the reason that its record will state."""


@dataclass
class Progress:
    """What changes while training, apart from model, loss, optimizer and hook."""

    step: int = 0
    best_score: float = float("-inf")
    best_step: int = 0
    waited: int = 0
    train_seconds: float = 0.0
    seconds: float = 0.0
    history: list[tuple[int, float, float]] = field(default_factory=list)


class Trainer:
    """One training run; also the context that its hook sees."""

    def __init__(
        self,
        model: Model,
        loss: nn.Module,
        hook: Hook,
        batches: TrainBatches,
        validate: Validate,
        protocol: EvaluationProtocol,
        method: Method,
        params: Mapping[str, Any],
        loader: Loader,
    ) -> None:
        self.device = loader.device
        self.model = model.to(self.device)
        self.loss = loss.to(self.device)
        self.hook = hook
        self.batches = batches
        self.validate = validate
        self.protocol = protocol
        self.loader = loader
        self.trunk_parameters = [p for p in model.trunk.parameters() if p.requires_grad]
        self.optimizer = build_optimizer(model, loss, protocol, method, params)
        forget_reseeded = getattr(loss, "forget_reseeded", None)
        if forget_reseeded is not None:  # a loss that sets its parameters to new values
            self.optimizer.register_step_pre_hook(forget_reseeded)
        self.parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.progress = Progress()
        self.train_loss = float("nan")
        self.best_weights: dict[str, Tensor] = {}
        self.next_checkpoint = 0.0  # the first one is written at once

    @property
    def step(self) -> int:
        return self.progress.step

    def embed_class_pool(self, images_per_class: int) -> Tensor:
        """(classes, images_per_class, dim) raw embeddings of augmented training images."""
        self.model.eval()
        pool = embed(self.model, self.batches.class_pool(images_per_class, self.step), self.loader)
        self._train_mode()
        return pool.view(-1, images_per_class, pool.shape[1])

    def fit(
        self,
        checkpoint: Path,
        seed: int,
        report: Callable[[Progress], None] = lambda progress: None,
    ) -> Fit:
        """Train until patience or steps run out; then the model holds its best weights.

        Args:
            checkpoint: written at validations; if it is there, training goes on from it.
            seed: of the global generators, which only the loss may draw from.
            report: called after every validation.
        """
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        with _global_generators(seed, self.device):
            if checkpoint.exists():
                self._load(checkpoint)
            else:
                self._train_mode()
                self.hook.on_train_begin(self)
            stopped_by = self._stopped_by()
            if stopped_by is None:
                stopped_by = self._run(checkpoint, report)
        self.model.load_state_dict(self.best_weights)
        done = self.progress
        return Fit(
            best_score=done.best_score,
            best_step=done.best_step,
            steps=done.step,
            stopped_by=stopped_by,
            history=done.history,
            train_seconds=done.train_seconds,
            seconds=done.seconds,
            peak_memory=_peak_memory(self.device),
            hook=self.hook.facts(),
        )

    def _run(self, checkpoint: Path, report: Callable[[Progress], None]) -> str:
        self._train_mode()
        steps = range(self.step, self.protocol.max_steps)
        total = torch.zeros((), device=self.device)
        since = self.step
        started = trained = time.perf_counter()
        for images, labels in self.loader.load(self.batches, steps):
            total += self._train_step(images, labels)
            self.progress.step += 1
            if self.step == self.protocol.warmup_steps:
                self._train_mode()  # from here on the trunk trains, too
            if self.step % self.protocol.validate_every and self.step < self.protocol.max_steps:
                continue
            self.train_loss = total.item() / (self.step - since)
            if not np.isfinite(self.train_loss):
                raise TrainingFailed(
                    f"the loss became {self.train_loss} between steps {since} and {self.step}"
                )
            self.progress.train_seconds += time.perf_counter() - trained
            self._validate()
            now = time.perf_counter()
            self.progress.seconds += now - started
            started = trained = now
            stopped_by = self._stopped_by()
            if now >= self.next_checkpoint:
                self._save(checkpoint)
            try:
                report(self.progress)
            except KeyboardInterrupt:  # asked to stop: nothing up to here is lost
                self._save(checkpoint)
                raise
            if stopped_by is not None:
                return stopped_by
            total.zero_()
            since = self.step
            trained = time.perf_counter()
        raise AssertionError("the last step always validates and stops")

    def _train_step(self, images: Tensor, labels: Tensor) -> Tensor:
        loss = self.loss(self.model(images), labels)
        for parameter in self.parameters:  # as zero_grad does, without its profiling
            parameter.grad = None
        loss.backward()
        self.hook.after_backward(self)
        self._clip()
        self.optimizer.step()
        return loss.detach()

    def _clip(self) -> None:
        if self.protocol.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.protocol.clip_norm)
        if self.protocol.clip_value is not None:
            nn.utils.clip_grad_value_(self.parameters, self.protocol.clip_value)

    def _validate(self) -> None:
        score = self.validate(self.model, self.step)
        if np.isnan(score):
            raise TrainingFailed(
                "the validation score is not a number: no image of the validation classes has "
                "another one of its class to be found"
            )
        progress = self.progress
        progress.history.append((self.step, self.train_loss, score))
        if score > progress.best_score:
            progress.best_score, progress.best_step, progress.waited = score, self.step, 0
            self.best_weights = {
                name: value.detach().cpu().clone()
                for name, value in self.model.state_dict().items()
            }
        else:
            progress.waited += 1
        self.hook.on_validation_end(self, score)
        logger.debug("step %d: loss %.4f, score %.4f", self.step, self.train_loss, score)

    def _stopped_by(self) -> str | None:
        if self.progress.waited >= self.protocol.patience:
            return "patience"
        return "max_steps" if self.step >= self.protocol.max_steps else None

    def _train_mode(self) -> None:
        self.model.train()
        self.loss.train()
        warming_up = self.step < self.protocol.warmup_steps
        for parameter in self.trunk_parameters:  # without a gradient they are not updated either
            parameter.requires_grad_(not warming_up)
        if self.protocol.freeze_batchnorm or warming_up:
            freeze_batchnorm(self.model.trunk)

    def _save(self, path: Path) -> None:
        cuda = self.device.type == "cuda"
        state = {
            "model": self.model.state_dict(),
            "loss": self.loss.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "hook": self.hook.state_dict(),
            "progress": vars(self.progress),
            "best_weights": self.best_weights,
            "torch_rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state(self.device) if cuda else None,
            "numpy_rng": np.random.get_state(legacy=False),
        }
        started = time.perf_counter()
        with replacing(path) as file:
            torch.save(state, file)
        now = time.perf_counter()
        self.next_checkpoint = now + (now - started) / CHECKPOINT_SHARE

    def _load(self, path: Path) -> None:
        # The file is our own: it holds plain Python objects beside tensors.
        state = torch.load(path, map_location=self.device, weights_only=False)
        self.model.load_state_dict(state["model"])
        self.loss.load_state_dict(state["loss"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.hook.load_state_dict(state["hook"])
        self.progress = Progress(**state["progress"])
        self.best_weights = {name: value.cpu() for name, value in state["best_weights"].items()}
        torch.set_rng_state(state["torch_rng"].cpu())
        if state["cuda_rng"] is not None:
            torch.cuda.set_rng_state(state["cuda_rng"].cpu(), self.device)
        np.random.set_state(state["numpy_rng"])


@contextmanager
def _global_generators(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the generators that a loss may draw from, and give them back as they were."""
    numpy_state = np.random.get_state(legacy=False)
    cuda_devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda_devices):
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)


def _peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux KiB
