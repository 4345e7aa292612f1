"""A method's hook in training loops other than the harness's: your own, PML's or Lightning's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from harness.losses.method import Hook

# Called with a number of images per class and the number of steps that are done. Returns that many
# training images of every class, class by class in the order of the labels.
ClassImages = Callable[[int, int], Tensor]

# Images that pass the model at once when proxies are picked.
AT_ONCE = 256


def class_images(
    images: Sequence[Any] | np.ndarray | Tensor, labels: Sequence[int] | Tensor, seed: int = 0
) -> ClassImages:
    """A function that draws images of every class from those in memory.

    Each image of a class is drawn once before any is repeated.

    Args:
        images: (n, ...) numbers, as the model takes them.
        labels: (n,) from 0 to the number of classes - 1.
        seed: of the draws, which also depend on the step; no other generator is used.
    """
    known = np.asarray(labels)
    members = [np.flatnonzero(known == label) for label in range(int(known.max()) + 1)]

    def draw(images_per_class: int, step: int) -> Tensor:
        rng = np.random.default_rng([seed, step])
        drawn = []
        for own in members:
            rounds = math.ceil(images_per_class / len(own))
            order = np.concatenate([rng.permutation(own) for _ in range(rounds)])
            drawn += order[:images_per_class].tolist()
        return torch.stack([torch.as_tensor(images[index]) for index in drawn])

    return draw


@dataclass
class _Run:
    """What the hook sees of a training run (`HookContext`)."""

    model: nn.Module
    loss: nn.Module
    class_images: ClassImages
    step: int = 0
    losses: list[Tensor] = field(default_factory=list)

    @property
    def train_loss(self) -> float:
        """Mean of the losses since the last validation, NaN if none was told."""
        return float(torch.stack(self.losses).mean()) if self.losses else math.nan

    @torch.no_grad()
    def embed_class_pool(self, images_per_class: int) -> Tensor:
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        images = self.class_images(images_per_class, self.step)
        device = next(self.model.parameters()).device
        parts = [self.model(some.to(device)).float() for some in images.split(AT_ONCE)]
        for module, training in modes:
            module.training = training
        pool = torch.cat(parts)
        return pool.view(-1, images_per_class, pool.shape[1])


class HookedLoop:
    """Calls a hook at the right points of a training loop.

        projections = AlternatingProjections().in_loop(model, loss, class_images(images, labels))
        for inputs, labels in batches:
            optimizer.zero_grad()
            value = loss(model(inputs), labels)
            value.backward()
            projections.step(value)  # before gradients are clipped, after they are unscaled
            optimizer.step()
            ...
            projections.validated(score)  # now and then

    Args:
        hook: of the method.
        model: images to embeddings, not normalised. It is in training mode.
        loss: the loss that the hook belongs to.
        class_images: draws training images; see the function of that name.
        state: `state_dict()` of the loop to continue. Training starts afresh without it, and the
            hook may then set the parameters of the loss: load a checkpoint with its state.
    """

    def __init__(
        self,
        hook: Hook,
        model: nn.Module,
        loss: nn.Module,
        class_images: ClassImages,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self.hook = hook
        self.run = _Run(model, loss, class_images)
        if state is None:
            hook.on_train_begin(self.run)
        else:
            hook.load_state_dict(state["hook"])
            self.run.step = state["step"]

    def step(self, value: Tensor | None = None) -> None:
        """Act on the gradients of a step: after backward, before they are clipped and used.

        Args:
            value: of the loss; only hooks that watch the training loss need it.
        """
        self.hook.after_backward(self.run)
        self.run.step += 1
        if value is not None:
            self.run.losses.append(value.detach())

    def validated(self, score: float = math.nan) -> None:
        """Tell the hook the score of a validation, which is larger for a better model."""
        self.hook.on_validation_end(self.run, score)
        self.run.losses.clear()

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint, together with those of model, loss and optimizer."""
        return {"hook": self.hook.state_dict(), "step": self.run.step}

    def pml_hooks(self, score: Callable[[Any], float]) -> dict[str, Any]:
        """Arguments for a trainer of pytorch-metric-learning, such as MetricLossOnly.

        PML calls gradient clippers between backward and the optimizer's step: put one of your own
        behind this one.

        Args:
            score: called with the trainer after every epoch; larger is better.
        """

        def end_of_iteration(trainer: Any) -> None:
            self.run.losses.append(trainer.losses["total_loss"].detach())

        return {
            "gradient_clippers": {"metric_loss_grad_clipper": self.step},
            "end_of_iteration_hook": end_of_iteration,
            "end_of_epoch_hook": lambda trainer: self.validated(score(trainer)),
        }


class HookCallback:
    """A hook in the shape of a Lightning callback, to be combined with Lightning's class.

        class Projections(HookCallback, lightning.pytorch.Callback):
            pass

        trainer = Trainer(callbacks=[Projections(AlternatingProjections(), draw, "val_map")])

    The LightningModule has the attributes `model` and `loss`, as HookedLoop takes them.

    Args:
        hook: of the method.
        class_images: draws training images; see the function of that name.
        metric: name of the validation score that the module logs; larger is better.
    """

    def __init__(self, hook: Hook, class_images: ClassImages, metric: str) -> None:
        self.hook = hook
        self.class_images = class_images
        self.metric = metric
        self.loop: HookedLoop | None = None
        self.state: Mapping[str, Any] | None = None

    def on_train_start(self, trainer: Any, module: Any) -> None:
        del trainer
        self.loop = HookedLoop(self.hook, module.model, module.loss, self.class_images, self.state)

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        """Lightning calls it with unscaled gradients, before it clips them."""
        del trainer, module, optimizer
        self._started().step()

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        del trainer, module, batch, batch_idx
        value = outputs["loss"] if isinstance(outputs, Mapping) else outputs
        self._started().run.losses.append(value.detach())

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        del module
        if not trainer.sanity_checking:
            self._started().validated(float(trainer.callback_metrics[self.metric]))

    def state_dict(self) -> dict[str, Any]:
        return {} if self.loop is None else self.loop.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.state = state_dict or None

    def _started(self) -> HookedLoop:
        assert self.loop is not None, "Lightning calls on_train_start before any step"
        return self.loop
