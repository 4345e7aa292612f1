"""A hook around a method's own, to add something to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.losses.method import Hook


class WrappedHook(Hook):
    """Hands everything on to the hook within."""

    def __init__(self, hook: Hook) -> None:
        self.hook = hook

    def on_train_begin(self, context: Any) -> None:
        self.hook.on_train_begin(context)

    def after_backward(self, context: Any) -> None:
        self.hook.after_backward(context)

    def on_validation_end(self, context: Any, score: float) -> None:
        self.hook.on_validation_end(context, score)

    def stages_ended(self) -> int:
        return self.hook.stages_ended()

    def facts(self) -> dict[str, Any]:
        return self.hook.facts()

    def state_dict(self) -> dict[str, Any]:
        return self.hook.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.hook.load_state_dict(state)
