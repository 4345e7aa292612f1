"""A loss that says when it trains, for tests that interrupt training at a known moment."""

from __future__ import annotations

from pathlib import Path

SAYS = "a step"

SOURCE = f"""
import sys
from optuna.distributions import FloatDistribution
from pytorch_metric_learning.losses import TripletMarginLoss

SPACE = {{"margin": FloatDistribution(0, 1)}}

class Telling(TripletMarginLoss):
    def compute_loss(self, *batch):
        sys.stderr.write("{SAYS}\\n")
        return super().compute_loss(*batch)
"""


def write_telling(folder: Path) -> Path:
    """Write the loss as a file for `--loss`."""
    path = folder / "telling.py"
    path.write_text(SOURCE)
    return path
