"""The reality check (Musgrave, Belongie, Lim, ECCV 2020) and the papers' variants of it."""

from __future__ import annotations

from dataclasses import replace

from harness.protocols.protocol import EvaluationProtocol
from harness.protocols.selection import SCHEMES

# One epoch of the reality check is 100 steps; it stops when the best validation lies more than
# 9, 14 or 39 epochs back, which is 5, 3 or 2 validations.
CARS = {"validate_every": 500, "patience": 3}
SOP = {"validate_every": 2000, "patience": 2}

# The embedded data set trains a small network that has seen other characters, until it gets no
# better. Fixed before losses were compared, by how soon eight of them stood still on the first fold
# (harness train --loss NAME --folds 1). With random crops of 24 px out of 28 they rose for 2,000
# steps and more; at twice the rate they rose no faster. No flip: b is not d. Patience is what CCP
# needs, as under `frozen`.
GLYPHS = {
    "trunk": "glyphnet",
    "freeze_batchnorm": False,
    "resize": 24,
    "crop": 24,
    "crop_scale": None,
    "flip": False,
    "optimizer": "adam",
    "lr": 1e-3,
    "validate_every": 25,
    "patience": 20,
    "max_steps": 4000,
}

MLRC = EvaluationProtocol(
    name="mlrc",
    summary="the reality check: 4-fold class splits, 50 trials, 10 reproductions",
    datasets={
        "cars": CARS,
        "sop": SOP,
        "inshop": SOP,
        "inaturalist": SOP,
        "imagenet": SOP,
        "glyphs": GLYPHS,
    },
)


def selected_by_pairs(protocol: EvaluationProtocol) -> EvaluationProtocol:
    """The same protocol with trials scored by pairs of models, and five finalists."""
    return replace(
        protocol,
        name=f"{protocol.name}-pairs",
        summary=f"{protocol.name}, with trials scored by concatenated pairs of models",
        selection="pairs",
        finalists=SCHEMES["pairs"].finalists,
    )


MLRC_PAIRS = selected_by_pairs(MLRC)

MLRC_CCP = replace(
    MLRC,
    name="mlrc-ccp",
    summary="as the CCP paper runs it: Adam 1e-5, clipped gradients, evenly cut folds",
    folds="ccp",
    optimizer="adam",
    lr=1e-5,
    clip_norm=10.0,
    clip_value=10.0,
    validate_every=25,
    patience=60,
    datasets={name: {"validate_every": 250} for name in ("inshop", "inaturalist", "imagenet")}
    | {"sop": {"validate_every": 250, "split": "official"}}
    | {"glyphs": {**GLYPHS, "patience": 60}},
)

MLRC_HPL = replace(
    MLRC,
    name="mlrc-hpl",
    summary="as the HPL paper runs it: batches of 128",
    batch_size=128,
    datasets={**MLRC.datasets, "sop": {**SOP, "trials": 10}},
)

PROTOCOLS = (MLRC, MLRC_PAIRS, MLRC_CCP, MLRC_HPL)
