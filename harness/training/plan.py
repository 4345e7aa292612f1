"""When things happen in a run: a protocol's epochs or steps, counted in steps."""

from __future__ import annotations

from dataclasses import dataclass

from harness.protocols.protocol import EvaluationProtocol


@dataclass(frozen=True)
class StepPlan:
    """Steps of one run.

    Attributes:
        warmup: of the warm-up.
        first: before the first epoch; those of a warm-up that is not among the epochs.
        epoch: of an epoch; without epochs, between two validations.
        last: in all.
        validated: the epochs that end with a validation, from 1; None if all do.
    """

    warmup: int
    first: int
    epoch: int
    last: int
    validated: tuple[int, ...] | None

    def epochs_at(self, step: int) -> int:
        """Epochs that are over, as far as they are counted."""
        return max(0, step - self.first) // self.epoch

    def ends_epoch(self, step: int) -> bool:
        return step > self.first and ((step - self.first) % self.epoch == 0 or step == self.last)

    def validates(self, step: int) -> bool:
        """Whether an epoch that ends here is validated; the last always is."""
        chosen = self.validated is None or self.epochs_at(step) in self.validated
        return chosen or step == self.last


def plan_of(
    protocol: EvaluationProtocol, epoch_steps: int, warmup_steps: int | None = None
) -> StepPlan:
    """The steps of a protocol.

    Args:
        epoch_steps: batches of one pass over the training images.
        warmup_steps: steps of warm-up. Default: as the protocol has it. A frozen trunk has none.
    """
    warmup = protocol.warmup_steps or protocol.warmup_epochs * epoch_steps
    if warmup_steps is not None and not protocol.frozen:
        warmup = warmup_steps
    first = warmup if protocol.warmup_extra else 0
    if protocol.epochs is None:
        return StepPlan(warmup, first, protocol.validate_every, first + protocol.max_steps, None)
    last = first + protocol.epochs * epoch_steps
    return StepPlan(warmup, first, epoch_steps, last, protocol.validate_epochs)
