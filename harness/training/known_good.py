"""A short training that is known to work: `python -m harness.training.known_good DEVICE`.

It trains proxy anchor for six steps on glyphs, which need no download, and takes some seconds. If
it fails, the machine is broken.
"""

from __future__ import annotations

import sys
import tempfile

from harness.config import RunConfig
from harness.errors import EnvironmentFault
from harness.training.trial import train

PROTOCOL = "mlrc+max_steps=6+validate_every=3"
LEAST_SCORE = 0.1  # MAP@R of the validation classes; it is 0.27 where all is well


def train_known_good(device: str) -> None:
    """Train; raise EnvironmentFault if the validation score is too low."""
    with tempfile.TemporaryDirectory(prefix="known-good-") as place:
        config = RunConfig(
            loss="proxyanchor",
            dataset="glyphs",
            trunk="glyphnet",
            protocol=PROTOCOL,
            device=device,
            workers=1,
            runs_dir=f"{place}/runs",
            results_dir=f"{place}/results",
            cache_dir=f"{place}/cache",
        )
        _, (record,) = train(config, count=1)
    if not record.best_score > LEAST_SCORE:
        raise EnvironmentFault(
            f"its score is {record.best_score:.2%} instead of at least {LEAST_SCORE:.0%}"
        )


if __name__ == "__main__":
    train_known_good(sys.argv[1])
