"""What long work says about itself while it runs, in whatever process it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """One thing that happened.

    Attributes:
        kind: "decoding" or "encoding" (units are images), "validation" (of a fold in training),
            "trial" or "model" (one is finished, or failed if there is a message), "pruned" (a
            trial), "tested", "waiting" (for other workers), "stopping" (after Ctrl-C).
        unit, units: number of the trial, model or image, and how many there are.
        scores: of the folds, where the unit has folds.
    """

    kind: str
    method: str = ""
    unit: int = 0
    units: int = 0
    fold: int = 0
    step: int = 0
    max_steps: int = 0
    score: float | None = None
    best: float | None = None
    scores: tuple[float, ...] = ()
    seconds: float = 0.0
    message: str = ""
    worker: int = 0


Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The listener of who does not listen."""
