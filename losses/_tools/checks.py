"""Refusals shared by the losses: each states the rule and the value that broke it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from pytorch_metric_learning.distances import BaseDistance, CosineSimilarity
from torch import Tensor

from harness.errors import unknown

_VALUES_ARE_CHECKED = ContextVar("values are checked", default=False)


@contextmanager
def values_are_checked() -> Iterator[None]:
    """With losses that do not look at the values of a batch, but still at its shape.

    To look at them a CPU must wait for its GPU, in every step. Within this, whoever calls a loss
    answers for labels in range, and for looking at the loss now and then: it is not finite where
    embeddings are not.
    """
    token = _VALUES_ARE_CHECKED.set(True)
    try:
        yield
    finally:
        _VALUES_ARE_CHECKED.reset(token)


def check_embeddings(embeddings: Tensor, embedding_size: int | None = None) -> None:
    """Raise ValueError unless these are some finite vectors, of embedding_size if it is given."""
    expected = "dim" if embedding_size is None else embedding_size
    if embeddings.ndim != 2 or embedding_size not in (None, embeddings.shape[1]):
        shape = tuple(embeddings.shape)
        raise ValueError(f"embeddings must have shape (batch, {expected}), got {shape}")
    if len(embeddings) == 0:
        raise ValueError("a batch must hold at least one embedding, got none")
    if _VALUES_ARE_CHECKED.get():
        return
    # A sum is finite only if every term is; four times cheaper than looking at each, which is
    # left for a sum that is not (large finite values may overflow).
    if not (math.isfinite(embeddings.detach().sum()) or torch.isfinite(embeddings).all()):
        bad = int((~torch.isfinite(embeddings)).any(dim=1).sum())
        raise ValueError(f"embeddings must be finite, {bad} of {len(embeddings)} rows are not")


def check_batch(embeddings: Tensor, labels: Tensor, num_classes: int, embedding_size: int) -> None:
    """Raise ValueError unless this is a batch of (n, embedding_size) with labels in range."""
    check_embeddings(embeddings, embedding_size)
    check_labels(labels, num_classes)


def check_labels(labels: Tensor, num_classes: int) -> None:
    """Raise ValueError unless all labels are in range."""
    if _VALUES_ARE_CHECKED.get():
        return
    low, high = (int(value) for value in torch.aminmax(labels))
    if low < 0 or high >= num_classes:
        raise ValueError(f"labels must lie in 0..{num_classes - 1}, got {low}..{high}")


def check_positive(**values: float) -> None:
    """Raise ValueError for the first value that is not above zero."""
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name} must be positive, got {value}")


def check_not_negative(**values: float) -> None:
    """Raise ValueError for the first value below zero."""
    for name, value in values.items():
        if not value >= 0:
            raise ValueError(f"{name} must not be negative, got {value}")


def check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """Raise ValueError unless the value is one of the choices."""
    known = tuple(choices)
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")


def check_base_params(base: str, given: Mapping[str, float], known: Iterable[str]) -> None:
    """Raise UnknownName for the first parameter that the base loss does not have."""
    names = tuple(known)
    for name in given:
        if name not in names:
            raise unknown(f"parameter of base '{base}'", name, names)


def check_cosine(system: str, distance: BaseDistance) -> None:
    """Raise ValueError unless the distance is PML's cosine."""
    if not isinstance(distance, CosineSimilarity):
        name = type(distance).__name__
        raise ValueError(f"{system} is defined on CosineSimilarity, got distance={name}")
