"""Loss systems as pytorch-metric-learning classes, one system per file."""

from losses.ball import BallDotProductSimilarity, BallLpDistance, BallNormalizer
from losses.ccp import CCPLoss
from losses.drml import DRMLLoss, RelationHead
from losses.hpl import HierarchicalProxyLoss
from losses.proxygml import ProxyGMLLoss
from losses.proxynca_pp import ProxyNCAPlusPlusLoss
from losses.xbm import C1Loss, XBMLoss

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
    "XBMLoss",
]
