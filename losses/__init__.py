"""Loss systems as pytorch-metric-learning classes, one system per file."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if __name__ == "losses":  # a second copy of every class, if it were imported
    raise ImportError("the losses are imported as `harness.losses`, not as `losses`")

if TYPE_CHECKING:
    from harness.losses._tools.ball import BallDotProductSimilarity, BallLpDistance, BallNormalizer
    from harness.losses._tools.c1 import C1Loss
    from harness.losses._tools.hooked_loop import HookCallback, HookedLoop, class_images
    from harness.losses.ccp import AlternatingProjections, CCPLoss
    from harness.losses.drml import DRML, DRMLLoss, RelationHead
    from harness.losses.hpl import HierarchicalProxyLoss
    from harness.losses.proxygml import ProxyGMLLoss
    from harness.losses.proxynca_pp import ProxyNCAPlusPlusLoss
    from harness.losses.softmax import SoftmaxLoss
    from harness.losses.xbm import XBMLoss

__all__ = [
    "DRML",
    "AlternatingProjections",
    "BallDotProductSimilarity",
    "BallLpDistance",
    "BallNormalizer",
    "C1Loss",
    "CCPLoss",
    "DRMLLoss",
    "HierarchicalProxyLoss",
    "HookCallback",
    "HookedLoop",
    "ProxyGMLLoss",
    "ProxyNCAPlusPlusLoss",
    "RelationHead",
    "SoftmaxLoss",
    "XBMLoss",
    "class_images",
]

# The module of each name: imported when it is asked for, so that `harness.losses.method` comes
# without torch.
_HOMES = {
    "AlternatingProjections": "ccp",
    "BallDotProductSimilarity": "_tools.ball",
    "BallLpDistance": "_tools.ball",
    "BallNormalizer": "_tools.ball",
    "C1Loss": "_tools.c1",
    "CCPLoss": "ccp",
    "DRML": "drml",
    "DRMLLoss": "drml",
    "HierarchicalProxyLoss": "hpl",
    "HookCallback": "_tools.hooked_loop",
    "HookedLoop": "_tools.hooked_loop",
    "ProxyGMLLoss": "proxygml",
    "ProxyNCAPlusPlusLoss": "proxynca_pp",
    "RelationHead": "drml",
    "SoftmaxLoss": "softmax",
    "XBMLoss": "xbm",
    "class_images": "_tools.hooked_loop",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'harness.losses' has no attribute '{name}'")
    return getattr(import_module(f"harness.losses.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
