"""The frozen track: the reality check's splits and tables, on features computed once.

A search takes minutes on two CPU cores: for foundation trunks, and for people without a GPU.
"""

from __future__ import annotations

from dataclasses import replace

from harness.protocols.mlrc import GLYPHS, MLRC, selected_by_pairs

# How images are seen there; training is the same for all data sets.
IMAGES = ("trunk", "resize", "crop")

FROZEN = replace(
    MLRC,
    name="frozen",
    summary="the same on frozen features: only head and loss train, with Adam",
    frozen=True,
    optimizer="adam",
    lr=1e-3,
    search_head_lr=(1e-5, 1e-1),
    validate_every=100,
    # What CCP needs, which changes its proxies after 3 validations in vain; a limit that no run
    # of our own met.
    patience=20,
    max_steps=20_000,
    datasets={"glyphs": {field: GLYPHS[field] for field in IMAGES}},
)

FROZEN_PAIRS = selected_by_pairs(FROZEN)

PROTOCOLS = (FROZEN, FROZEN_PAIRS)
