"""Loss systems as pytorch-metric-learning classes, one system per file."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from losses._tools.ball import BallDotProductSimilarity, BallLpDistance, BallNormalizer
    from losses._tools.c1 import C1Loss
    from losses.ccp import CCPLoss
    from losses.drml import DRMLLoss, RelationHead
    from losses.hpl import HierarchicalProxyLoss
    from losses.proxygml import ProxyGMLLoss
    from losses.proxynca_pp import ProxyNCAPlusPlusLoss
    from losses.softmax import SoftmaxLoss
    from losses.xbm import XBMLoss

__all__ = [
    "BallDotProductSimilarity",
    "BallLpDistance",
    "BallNormalizer",
    "C1Loss",
    "CCPLoss",
    "DRMLLoss",
    "HierarchicalProxyLoss",
    "ProxyGMLLoss",
    "ProxyNCAPlusPlusLoss",
    "RelationHead",
    "SoftmaxLoss",
    "XBMLoss",
]

# The module of each name: imported when it is asked for, so that `losses.method` comes without
# torch.
_HOMES = {
    "BallDotProductSimilarity": "_tools.ball",
    "BallLpDistance": "_tools.ball",
    "BallNormalizer": "_tools.ball",
    "C1Loss": "_tools.c1",
    "CCPLoss": "ccp",
    "DRMLLoss": "drml",
    "HierarchicalProxyLoss": "hpl",
    "ProxyGMLLoss": "proxygml",
    "ProxyNCAPlusPlusLoss": "proxynca_pp",
    "RelationHead": "drml",
    "SoftmaxLoss": "softmax",
    "XBMLoss": "xbm",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'losses' has no attribute '{name}'")
    return getattr(import_module(f"losses.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
