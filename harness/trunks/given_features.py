"""What stands where the trunk would for features that were computed elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from harness.trunks.trunk import Trunk
from harness.trunks.weights import check_digest


@dataclass(frozen=True)
class GivenFile:
    """The features, in the place of weights: results depend on them in the same way."""

    file: Path
    sha256: str

    def find(self) -> Path:
        check_digest(self.file, self.sha256, "import the features again")
        return self.file


def given_trunk(computed_by: str, file: Path, sha256: str) -> Trunk:
    """A trunk that says where features come from, and that no image can pass."""
    return Trunk(
        f"{computed_by}@{sha256[:8]}",
        "features that were computed elsewhere",
        _no_network,
        GivenFile(file, sha256),
    )


def _no_network(channels: int, file: Path | None) -> nn.Module:
    raise ValueError("imported features have no network; only what learns from them can be used")
