"""For gradients that are written out by hand, and have none of their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

import torch

Backward = TypeVar("Backward", bound=Callable[..., object])


def first_gradient_only(backward: Backward) -> Backward:
    """A `backward` that refuses `create_graph=True`.

    torch's `once_differentiable` would let it pass where the gradient that comes in is a constant,
    and the second gradient would silently be without this part.
    """

    @wraps(backward)
    def refusing(*arguments: object) -> object:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "the gradient of this loss cannot be differentiated again: create_graph=True is "
                "not supported"
            )
        return backward(*arguments)

    return refusing  # type: ignore[return-value]
