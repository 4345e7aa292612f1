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
from harness.losses._tools.checks import values_are_checked
from harness.losses.method import Hook, Method
from harness.model.network import Model, freeze_affine, freeze_batchnorm
from harness.protocols.protocol import EvaluationProtocol
from harness.records.records import Fit
from harness.system.forks import ending_forks
from harness.system.stopping import Terminated, asked_to_stop, looking_for_sigterm
from harness.system.trouble import trouble_in
from harness.training.embed import embed
from harness.training.optimizer import Schedule, build_optimizer
from harness.training.pieces import backward_by_pieces
from harness.training.plan import plan_of
from harness.training.saved import load, save
from harness.typed import convert

logger = logging.getLogger(__name__)

# Of the time of a run that checkpoints may take: short folds are not checkpointed at every chance.
CHECKPOINT_SHARE = 0.01


# A model and the step that it is at -> a score, larger is better.
Validate = Callable[[Model, int], float]


class TrainingFailed(Exception):
    """A run that cannot go on, with the reason that its record will state.

    Attributes:
        trace: file with the traceback, once there is one.
    """

    trace: str = ""


class DamagedCheckpoint(Exception):
    """A checkpoint that cannot be gone on from."""


@dataclass
class Progress:
    """What changes while training, apart from model, loss, optimizer and hook.

    Attributes:
        max_steps: after which training ends at the latest.
        drops: epochs, from 0, that began at a lower rate than the one before.
    """

    step: int = 0
    max_steps: int = 0
    best_score: float = float("-inf")
    best_step: int = 0
    waited: int = 0
    train_seconds: float = 0.0
    seconds: float = 0.0
    history: list[tuple[int, float, float]] = field(default_factory=list)
    drops: list[int] = field(default_factory=list)


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
        micro_batch: int = 0,
    ) -> None:
        self.device = loader.device
        self.model = model.to(self.device)
        self.loss = loss.to(self.device)
        self.hook = hook
        self.batches = batches
        self.validate = validate
        self.protocol = protocol
        self.method = method
        self.params = params
        self.loader = loader
        # Products of the loss are to be exact where those of the trunk are not.
        by_pieces = micro_batch or protocol.precision == "tf32"
        self.piece = (micro_batch or protocol.batch_size) if by_pieces else None
        self.plan = plan_of(protocol, batches.epoch_steps, params.get("warmup_steps"))
        if protocol.freeze_affine:
            freeze_affine(model.trunk)
        self._start_optimizer()
        self.groups = {g["name"]: g["params"] for g in self.optimizer.param_groups}
        self.parameters = [p for own in self.groups.values() for p in own]
        clipped = [own for name, own in self.groups.items() if protocol.clip_loss or name != "loss"]
        together = [parameter for own in clipped for parameter in own]
        self.clipped_by_norm = clipped if protocol.clip_each else [together]
        self.clipped_by_value = together
        self.progress = Progress(max_steps=self.plan.last)
        self.train_loss = float("nan")
        self.since = 0  # the step after which losses are summed up
        self.loss_sum = torch.zeros((), device=self.device)
        self.best_weights: dict[str, Tensor] = {}
        self.best_proxies: dict[str, Tensor] = {}  # or whatever parameters the loss has
        self.last_weights: dict[str, Tensor] = {}  # only where the test selects the best ones
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
        on_validation: Callable[[Progress], None] = lambda progress: None,
    ) -> Fit:
        """Train until patience, epochs or steps run out; then the model holds its best weights.

        Args:
            checkpoint: written at validations; if it is there, training goes on from it.
            seed: of the global generators, which only the loss may draw from.
            on_validation: called after every validation.
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
                # Labels count the classes of the batches; the loss is looked at when validating.
                with values_are_checked(), looking_for_sigterm():
                    stopped_by = self._run(checkpoint, on_validation)
        if self.protocol.select == "test":
            self.last_weights = self._weights()
        self.model.load_state_dict(self.best_weights)
        done = self.progress
        return Fit(
            best_score=done.best_score,
            best_step=done.best_step,
            steps=done.step,
            stopped_by=stopped_by,
            history=done.history,
            drops=done.drops,
            train_seconds=done.train_seconds,
            seconds=done.seconds,
            peak_memory=_peak_memory(self.device),
            hook=self.hook.facts(),
        )

    def _run(self, checkpoint: Path, on_validation: Callable[[Progress], None]) -> str:
        self._train_mode()
        steps = range(self.step, self.plan.last)
        started = trained = time.perf_counter()
        for images, labels in self.loader.load(self.batches, steps):
            with ending_forks():
                self.loss_sum += self._train_step(images, labels)
            self.progress.step += 1
            if self.step == self.plan.warmup:
                self._end_warmup()
            if not self.plan.ends_epoch(self.step):
                if asked_to_stop():
                    now = time.perf_counter()
                    self.progress.train_seconds += now - trained
                    self.progress.seconds += now - started
                    self._save(checkpoint)
                    raise Terminated
                continue
            self.train_loss = self.loss_sum.item() / (self.step - self.since)
            if not np.isfinite(self.train_loss):
                raise TrainingFailed(
                    f"the loss became {self.train_loss} between steps {self.since} and {self.step}"
                )
            self.progress.train_seconds += time.perf_counter() - trained
            self._end_epoch(self._validate() if self.plan.validates(self.step) else None)
            now = time.perf_counter()
            self.progress.seconds += now - started
            started = trained = now
            stopped_by = self._stopped_by()
            self.loss_sum.zero_()
            self.since = self.step
            if now >= self.next_checkpoint:
                self._save(checkpoint)
            try:
                on_validation(self.progress)
                if asked_to_stop():
                    raise Terminated
            except KeyboardInterrupt:  # asked to stop: nothing up to here is lost
                self._save(checkpoint)
                raise
            if stopped_by is not None:
                return stopped_by
            trained = time.perf_counter()
        raise AssertionError("the last step always validates and stops")

    def _train_step(self, images: Tensor, labels: Tensor) -> Tensor:
        for parameter in self.parameters:  # as zero_grad does, without its profiling
            parameter.grad = None
        if self.piece is None:
            loss = self.loss(self.model(images), labels)
            loss.backward()
        else:
            loss = backward_by_pieces(self.model, self.loss, images, labels, self.piece)
        self.hook.after_backward(self)
        self._clip()
        self.optimizer.step()
        return loss.detach()

    def _clip(self) -> None:
        if self.protocol.clip_norm is not None:
            for parameters in self.clipped_by_norm:
                nn.utils.clip_grad_norm_(parameters, self.protocol.clip_norm)
        if self.protocol.clip_value is not None:
            nn.utils.clip_grad_value_(self.clipped_by_value, self.protocol.clip_value)

    def _start_optimizer(self) -> None:
        """With its schedule; once more after a warm-up that stands before the epochs."""
        self.optimizer = build_optimizer(
            self.model, self.loss, self.protocol, self.method, self.params
        )
        self.schedule = Schedule(self.optimizer, self.protocol)
        forget_reseeded = getattr(self.loss, "forget_reseeded", None)
        if forget_reseeded is not None:  # a loss that sets its parameters to new values
            self.optimizer.register_step_pre_hook(forget_reseeded)

    def _end_warmup(self) -> None:
        self._train_mode()  # from here on everything trains
        if self.protocol.warmup_extra:
            self._start_optimizer()

    def _end_epoch(self, score: float | None) -> None:
        if self.schedule.end_epoch(score):
            self.progress.drops.append(self.plan.epochs_at(self.step))

    def _validate(self) -> float:
        score = self.validate(self.model, self.step)
        if np.isnan(score):
            raise TrainingFailed(
                "the validation score is not a number: no image of the validation classes has "
                "another one of its class to be found"
            )
        progress = self.progress
        progress.history.append((self.step, self.train_loss, score))
        if score > progress.best_score + self.protocol.min_gain or self.protocol.select == "last":
            progress.best_score, progress.best_step, progress.waited = score, self.step, 0
            self.best_weights = self._weights()
            self.best_proxies = _copy_to_host(dict(self.loss.named_parameters()))
        else:
            progress.waited += 1
        self.hook.on_validation_end(self, score)
        logger.debug("step %d: loss %.4f, score %.4f", self.step, self.train_loss, score)
        return score

    def _weights(self) -> dict[str, Tensor]:
        return _copy_to_host(self.model.state_dict())

    def _stopped_by(self) -> str | None:
        progress, protocol = self.progress, self.protocol
        if protocol.patience is not None and progress.waited >= protocol.patience:
            return "patience"
        if protocol.stop_below is not None and progress.waited:
            (_, _, score), lowest = progress.history[-1], protocol.stop_below * progress.best_score
            if score <= lowest:
                return "collapse"
        if self.step < self.plan.last:
            return None
        return "max_steps" if protocol.epochs is None else "epochs"

    def _train_mode(self) -> None:
        self.model.train()
        self.loss.train()
        protocol = self.protocol
        warming_up = self.step < self.plan.warmup
        for name, parameters in self.groups.items():
            trains = not warming_up or name in protocol.warmup_groups
            for parameter in parameters:  # without a gradient they are not updated either
                parameter.requires_grad_(trains)
        if protocol.freeze_batchnorm or (warming_up and not protocol.warmup_statistics):
            freeze_batchnorm(self.model.trunk)

    def _save(self, path: Path) -> None:
        cuda = self.device.type == "cuda"
        state = {
            "model": self.model.state_dict(),
            "loss": self.loss.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "hook": self.hook.state_dict(),
            "progress": vars(self.progress),
            "since": self.since,
            "loss_sum": self.loss_sum,
            "best_weights": self.best_weights,
            "best_proxies": self.best_proxies,
            "torch_rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state(self.device) if cuda else None,
            "numpy_rng": np.random.get_state(legacy=False),
        }
        started = time.perf_counter()
        self.batches.source.check_stored(mapped_only=True)  # damage must not outlive its repair
        save(state, path)
        now = time.perf_counter()
        self.next_checkpoint = now + (now - started) / CHECKPOINT_SHARE

    def _load(self, path: Path) -> None:
        try:
            self._resume(load(path, self.device))
        except (ValueError, RuntimeError, KeyError, TypeError, AttributeError) as error:
            if trouble_in(error) is not None:
                raise
            raise DamagedCheckpoint(str(error).partition("\n")[0]) from error

    def _resume(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.loss.load_state_dict(state["loss"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state.get("schedule", {}))  # older ones have none
        self.hook.load_state_dict(state["hook"])
        self.progress = convert(
            {**state["progress"], "max_steps": self.plan.last}, Progress, "progress"
        )
        self.since = state.get("since", self.step)  # older ones were written at validations
        self.loss_sum += state.get("loss_sum", 0.0)
        self.best_weights = {name: value.cpu() for name, value in state["best_weights"].items()}
        none_yet = self.progress.best_score == float("-inf")
        if not none_yet and _shapes(self.best_weights) != _shapes(state["model"]):
            raise ValueError("its best weights are not those of the model")
        proxies = state.get("best_proxies", {})  # older ones have none
        self.best_proxies = {name: value.cpu() for name, value in proxies.items()}
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


def _copy_to_host(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A copy on the CPU; a GPU is waited for once for each type of numbers."""
    copies: dict[str, Tensor] = {}
    for dtype in {value.dtype for value in state.values()}:
        those = {name: value.detach() for name, value in state.items() if value.dtype == dtype}
        flat = torch.cat([value.flatten() for value in those.values()]).cpu()
        parts = flat.split([value.numel() for value in those.values()])
        for (name, value), part in zip(those.items(), parts, strict=True):
            copies[name] = part.view(value.shape)
    return {name: copies[name] for name in state}


def _shapes(state: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in state.items()}


def _peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux KiB
