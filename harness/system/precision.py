"""How exactly float32 numbers are multiplied: in full for scores, else as a protocol says."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

# With any value but 0, NVIDIA's libraries may use TF32 whatever they are asked for.
TF32_VARIABLE = "NVIDIA_TF32_OVERRIDE"
TF32_SINCE = (8, 0)  # of the cards that have it

# What torch's settings are while a model trains, by the precision that its protocol names.
# Convolutions use TF32 unless one asks otherwise: torch's default, so that of everybody's results.
WHILE_TRAINING = {"fp32": ("tf32", "ieee"), "tf32": ("tf32", "tf32"), "bf16": ("tf32", "ieee")}


def multiply_in_float32(first: Tensor, second: Tensor) -> Tensor:
    """The product of two float32 matrices in full precision, whatever the process set for speed."""
    if os.environ.get(TF32_VARIABLE, "0") != "0":
        return (first.double() @ second.double()).float()
    with full_float32(first.device):
        return first @ second


@contextmanager
def full_float32(device: torch.device) -> Iterator[None]:
    """Without TF32, bfloat16 or autocast in the products of float32 matrices."""
    mkldnn: Any = torch.backends.mkldnn  # whose types leave this out
    settings = torch.backends.cuda.matmul, mkldnn.matmul
    with _set(settings, ("ieee", "ieee")), torch.autocast(device.type, enabled=False):
        yield


@contextmanager
def own_defaults() -> Iterator[None]:
    """Numbers are float32 unless somebody says otherwise; who does so, does so for itself alone."""
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def training_precision(name: str, device: torch.device) -> Iterator[list[str]]:
    """As a protocol names it; yields which operations of float32 numbers may use TF32.

    Nothing is changed on a CPU, which has none.
    """
    if device.type != "cuda":
        yield []
        return
    cudnn: Any = torch.backends.cudnn  # whose types leave this out
    settings = cudnn.conv, torch.backends.cuda.matmul
    with _set(settings, WHILE_TRAINING[name]):
        yield _tf32_operations(settings, device)


def _tf32_operations(settings: Sequence[Any], device: torch.device) -> list[str]:
    if torch.cuda.get_device_capability(device) < TF32_SINCE:
        return []
    forced = os.environ.get(TF32_VARIABLE)
    if forced is not None:
        return [] if forced == "0" else ["convolutions", "products"]
    operations = zip(("convolutions", "products"), settings, strict=True)
    return [name for name, setting in operations if setting.fp32_precision == "tf32"]


@contextmanager
def _set(settings: Sequence[Any], values: Sequence[str]) -> Iterator[None]:
    before = [setting.fp32_precision for setting in settings]
    for setting, value in zip(settings, values, strict=True):
        setting.fp32_precision = value
    try:
        yield
    finally:
        for setting, precision in zip(settings, before, strict=True):
            # "none" takes it from torch's general settings: if that was so, it stays so.
            setting.fp32_precision = "none"
            if setting.fp32_precision != precision:
                setting.fp32_precision = precision
