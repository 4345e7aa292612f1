"""Networks of torchvision up to their last feature map, with its ImageNet weights."""

from __future__ import annotations

from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from torch import nn

from harness.trunks.trunk import Trunk
from harness.trunks.weights import Download, load_into

# Networks that torchvision took from TensorFlow see pixels from -1 to 1. It maps ImageNet's
# normalisation to that inside the network (transform_input); here the trunk normalises so.
AROUND_ZERO: dict[str, Any] = {"mean": (0.5,), "std": (0.5,)}


# Of the trunks that protocols name. torchvision itself publishes the first eight digits alone.
SHA256 = {
    "resnet18-f37072fd.pth": "f37072fd47e89c5e827621c5baffa7500819f7896bbacec160b1a16c560e07ec",
    "resnet50-0676ba61.pth": "0676ba61b6795bbe1773cffd859882e5e297624d384b6993f7c9e683e722fb8a",
}


class FeatureMap(nn.Sequential):
    """The layers before global pooling, under their own names; they run one after another."""

    def __init__(self, network: nn.Module) -> None:
        before_pooling = takewhile(lambda child: child[0] != "avgpool", network.named_children())
        super().__init__()
        for name, layer in before_pooling:
            self.add_module(name, layer)
        self.out_features = network.get_submodule("fc").in_features


def build(channels: int, file: Path | None, name: str, **options: Any) -> FeatureMap:
    from torchvision import models

    network = FeatureMap(models.get_model(name, weights=None, **options))
    if file is not None:
        load_into(network, file, without=("fc.", "aux1.", "aux2.", "AuxLogits."))
    return network


def check_inception_side(side: int) -> None:
    if side < 75:
        raise ValueError(
            f"trunk inception_v3 takes images of 75 px or more, not of {side}\n"
            "  give a protocol with a larger +crop="
        )


def _trunk(name: str, summary: str, file: str, options: Any = None, **takes: Any) -> Trunk:
    # The digits in the file's name are those its SHA-256 begins with.
    digits = file.removesuffix(".pth").rsplit("-", 1)[1]
    sha256 = SHA256.get(file, digits)
    return Trunk(
        name,
        f"{summary}, ImageNet weights of torchvision",
        partial(build, name=name, **(options or {})),
        Download(f"https://download.pytorch.org/models/{file}", sha256),
        **takes,
    )


# No side branches; initial weights as in the papers, which torchvision wants to be asked for.
INCEPTION = {"aux_logits": False, "init_weights": True}

TRUNKS = (
    _trunk("resnet18", "ResNet-18, 512 features", "resnet18-f37072fd.pth"),
    _trunk("resnet50", "ResNet-50, 2048 features", "resnet50-0676ba61.pth"),
    _trunk(
        "googlenet",
        "GoogLeNet with batch norm, 1024 features",
        "googlenet-1378be20.pth",
        INCEPTION,
        **AROUND_ZERO,
    ),
    _trunk(
        "inception_v3",
        "Inception v3, 2048 features",
        "inception_v3_google-0cc3c7bd.pth",
        INCEPTION,
        check_side=check_inception_side,
        **AROUND_ZERO,
    ),
)
