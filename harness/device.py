"""The one place that decides where tensors live."""

from __future__ import annotations

import torch

from harness.errors import HarnessError


def choose_device(name: str) -> torch.device:
    """The device called `name`; "auto" is the first of cuda, mps and cpu that is there."""
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return torch.device(next(kind for kind, there in available.items() if there))
    kind, _, number = name.partition(":")
    if kind not in available:
        raise HarnessError(f"no device named '{name}'; one of auto, cuda, cuda:N, mps, cpu")
    if not available[kind]:
        raise HarnessError(f"device '{name}' is not available here; use --device auto or cpu")
    if number and not (number.isdigit() and int(number) < torch.cuda.device_count()):
        raise HarnessError(f"device '{name}' does not exist; there are {torch.cuda.device_count()}")
    return torch.device(name)


def device_count(name: str) -> int:
    """How many devices of that kind can train at the same time; 0 for the CPU."""
    device = choose_device(name)
    if device.type == "cuda":
        return 1 if device.index is not None else torch.cuda.device_count()
    return 1 if device.type == "mps" else 0


def device_name(device: torch.device) -> str:
    """What a record says of the device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
