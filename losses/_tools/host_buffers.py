"""Counters that a loss looks at in every step, where looking costs nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self


class HostBuffers:
    """For a module, before its other bases: some buffers stay on the host when it moves to a GPU.

    The CPU would have to wait for the GPU to read one. In a state_dict they are as any other.
    """

    host_buffers: ClassVar[tuple[str, ...]] = ()
    _buffers: dict[str, Any]

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        kept = {name: self._buffers[name] for name in self.host_buffers}
        super()._apply(fn, recurse)  # type: ignore[misc]
        self._buffers.update(kept)
        return self
