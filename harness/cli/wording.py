"""Parameters and numbers as people read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def spell(params: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={short(value)}" for name, value in params.items()) or "none"


def short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
