"""The reality check's losses and Proxy Anchor, straight from pytorch-metric-learning.

Search spaces and best parameters are those that Musgrave, Belongie and Lim published with
"A Metric Learning Reality Check" (ECCV 2020): per loss, and per data set where they differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from pytorch_metric_learning import losses as pml
from pytorch_metric_learning.distances import SNRDistance
from pytorch_metric_learning.miners import MultiSimilarityMiner
from pytorch_metric_learning.regularizers import SparseCentersRegularizer, ZeroMeanRegularizer
from torch import Tensor, nn

from losses.method import LOSS_LR, STANDS_FOR, Method, Preset, Space


def uniform(low: float, high: float) -> FloatDistribution:
    return FloatDistribution(low, high)


def log_uniform(low: float, high: float) -> FloatDistribution:
    return FloatDistribution(low, high, log=True)


MARGIN = uniform(-0.2, 2)  # of a distance between unit vectors

CENTERS_PER_CLASS = 10


class MinedLoss(nn.Module):
    """A loss over the pairs that a miner picks from the batch."""

    def __init__(self, loss: nn.Module, miner: nn.Module) -> None:
        super().__init__()
        self.loss = loss
        self.miner = miner

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return self.loss(embeddings, labels, self.miner(embeddings, labels))


class UnitZeroMeanRegularizer(ZeroMeanRegularizer):
    """Pulls the sum of the coordinates of unit vectors to zero.

    PML hands a regularizer raw embeddings; when the reality check was run it handed normalised
    ones, and the published weights belong to those.
    """

    def compute_loss(self, embeddings: Tensor) -> Any:
        return super().compute_loss(nn.functional.normalize(embeddings, dim=1))


def build_snr(pos_margin: float, neg_margin: float, regularizer_weight: float) -> nn.Module:
    return pml.ContrastiveLoss(
        pos_margin=pos_margin,
        neg_margin=neg_margin,
        distance=SNRDistance(),
        embedding_regularizer=UnitZeroMeanRegularizer(),
        embedding_reg_weight=regularizer_weight,
    )


def build_softtriple(
    num_classes: int,
    embedding_size: int,
    la: float,
    gamma: float,
    margin: float,
    reg_weight: float = 0.0,
) -> nn.Module:
    return pml.SoftTripleLoss(
        num_classes,
        embedding_size,
        centers_per_class=CENTERS_PER_CLASS,
        la=la,
        gamma=gamma,
        margin=margin,
        weight_regularizer=SparseCentersRegularizer(num_classes, CENTERS_PER_CLASS),
        weight_reg_weight=reg_weight,
    )


def build_ms_miner(alpha: float, beta: float, base: float, epsilon: float) -> nn.Module:
    return MinedLoss(pml.MultiSimilarityLoss(alpha, beta, base), MultiSimilarityMiner(epsilon))


def baseline(
    name: str,
    paper: str,
    build: Callable[..., nn.Module],
    space: Space,
    best: Mapping[str, Mapping[str, Any]],
    elsewhere: Mapping[str, Mapping[str, BaseDistribution | None]] | None = None,
    **rest: Any,
) -> Method:
    """One row of the table below.

    Args:
        build: takes the parameters, and for a loss with class weights the two sizes first.
        best: data set -> best published parameters.
        elsewhere: data set -> bounds that differ from `space` there; None removes one.
    """
    has_weights = "loss_lr" in space

    def build_loss(num_classes: int, embedding_size: int, **params: Any) -> nn.Module:
        return build(num_classes, embedding_size, **params) if has_weights else build(**params)

    def space_on(dataset: str, num_classes: int) -> dict[str, BaseDistribution]:
        del num_classes
        bounds = {**space, **(elsewhere or {}).get(STANDS_FOR.get(dataset, dataset), {})}
        return {param: dist for param, dist in bounds.items() if dist is not None}

    presets = {"mlrc": {dataset: Preset(params) for dataset, params in best.items()}}
    rest.setdefault("samples_per_class", 1 if has_weights else 4)
    return Method(name, paper, build_loss, space_on, presets, **rest)


METHODS = (
    baseline(
        "contrastive",
        "Hadsell, Chopra, LeCun, CVPR 2006",
        pml.ContrastiveLoss,
        {"pos_margin": MARGIN, "neg_margin": MARGIN},
        {
            "cub": {"pos_margin": -0.2, "neg_margin": 0.38412},
            "cars": {"pos_margin": 0.26523, "neg_margin": 0.54094},
            "sop": {"pos_margin": 0.28503, "neg_margin": 0.51301},
        },
    ),
    baseline(
        "triplet",
        "Weinberger, Saul, JMLR 2009",
        pml.TripletMarginLoss,
        {"margin": MARGIN},
        {"cub": {"margin": 0.096101}, "cars": {"margin": 0.11903}, "sop": {"margin": 0.045192}},
    ),
    baseline(
        "ntxent",
        "Sohn, NeurIPS 2016; van den Oord, Li, Vinyals 2018; Chen et al., ICML 2020",
        pml.NTXentLoss,
        {"temperature": log_uniform(1e-4, 100)},
        {
            "cub": {"temperature": 0.0091033},
            "cars": {"temperature": 0.021926},
            "sop": {"temperature": 0.00024012},
        },
        elsewhere={
            "cars": {"temperature": log_uniform(1e-5, 100)},
            "sop": {"temperature": log_uniform(1e-5, 100)},
        },
    ),
    baseline(
        "proxynca",
        "Movshovitz-Attias et al., ICCV 2017",
        pml.ProxyNCALoss,
        {"softmax_scale": uniform(0.01, 100), "loss_lr": LOSS_LR},
        {
            "cub": {"softmax_scale": 13.984, "loss_lr": 0.0060417},
            "cars": {"softmax_scale": 7.9705, "loss_lr": 0.0044343},
            "sop": {"softmax_scale": 10.734, "loss_lr": 0.0005289},
        },
    ),
    baseline(
        "margin",
        "Wu et al., ICCV 2017",
        lambda num_classes, embedding_size, **params: pml.MarginLoss(learn_beta=True, **params),
        {"margin": MARGIN, "beta": MARGIN, "loss_lr": LOSS_LR},
        {
            "cub": {"margin": 0.087807, "beta": 0.78387, "loss_lr": 0.0013149},
            "cars": {"margin": 0.078172, "beta": 1.3164, "loss_lr": 0.00011114},
            "sop": {"margin": 0.091578, "beta": 1.1072, "loss_lr": 0.001828},
        },
        samples_per_class=4,
        loss_weight_decay=0.0,
    ),
    baseline(
        "margin-class",
        "Wu et al., ICCV 2017",
        lambda num_classes, embedding_size, **params: pml.MarginLoss(
            learn_beta=True, num_classes=num_classes, **params
        ),
        {"margin": MARGIN, "beta": MARGIN, "loss_lr": LOSS_LR},
        {
            "cub": {"margin": 0.077912, "beta": 0.97967, "loss_lr": 0.00026559},
            "cars": {"margin": 0.077607, "beta": 0.95989, "loss_lr": 4.7679e-05},
            "sop": {"margin": 0.051864, "beta": 0.84246, "loss_lr": 7.1075e-05},
        },
        samples_per_class=4,
        loss_weight_decay=0.0,
    ),
    baseline(
        "nsoftmax",
        "Wang et al., ACM MM 2017; Zhai, Wu, BMVC 2019",
        pml.NormalizedSoftmaxLoss,
        {"temperature": log_uniform(0.01, 100), "loss_lr": LOSS_LR},
        {
            "cub": {"temperature": 0.10875, "loss_lr": 0.0044689},
            "cars": {"temperature": 0.088633, "loss_lr": 0.011046},
            "sop": {"temperature": 0.063062, "loss_lr": 0.00054683},
        },
    ),
    baseline(
        "cosface",
        "Wang et al., CVPR 2018",
        pml.CosFaceLoss,
        {"margin": uniform(0, 1), "scale": uniform(0.01, 200), "loss_lr": LOSS_LR},
        {
            "cub": {"margin": 0.61823, "scale": 100.0, "loss_lr": 0.0025347},
            "cars": {"margin": 0.43244, "scale": 161.6, "loss_lr": 0.007413},
            "sop": {"margin": 0.33641, "scale": 100.0, "loss_lr": 0.0021607},
        },
    ),
    baseline(
        "arcface",
        "Deng et al., CVPR 2019; the margin is in degrees",
        pml.ArcFaceLoss,
        {"margin": uniform(0, 90), "scale": uniform(0.01, 200), "loss_lr": LOSS_LR},
        {
            "cub": {"margin": 23.226, "scale": 100.0, "loss_lr": 0.0051384},
            "cars": {"margin": 20.522, "scale": 49.502, "loss_lr": 7.3985e-06},
            "sop": {"margin": 18.632, "scale": 220.36, "loss_lr": 0.0020187},
        },
        elsewhere={"sop": {"scale": uniform(0.01, 300)}},
    ),
    baseline(
        "fastap",
        "Cakir et al., CVPR 2019; the reality check tries every number of bins",
        pml.FastAPLoss,
        {"num_bins": IntDistribution(2, 32)},
        {"cub": {"num_bins": 17}, "cars": {"num_bins": 27}, "sop": {"num_bins": 16}},
        elsewhere={"sop": {"num_bins": IntDistribution(3, 32)}},
        sampler="grid",
    ),
    baseline(
        "snr",
        "Yuan et al., CVPR 2019",
        build_snr,
        {
            "pos_margin": uniform(0, 2),
            "neg_margin": uniform(0, 2),
            "regularizer_weight": uniform(0, 1),
        },
        {
            "cub": {"pos_margin": 0.3265, "neg_margin": 0.84465, "regularizer_weight": 0.13826},
            "cars": {"pos_margin": 0.16705, "neg_margin": 0.93376, "regularizer_weight": 0.0},
            "sop": {"pos_margin": 0.37593, "neg_margin": 1.0832, "regularizer_weight": 0.0},
            # Our choice: with CUB's margins a network from scratch stays where it starts.
            "glyphs": {"pos_margin": 0.0, "neg_margin": 0.3, "regularizer_weight": 0.0},
        },
    ),
    baseline(
        "ms",
        "Wang et al., CVPR 2019",
        pml.MultiSimilarityLoss,
        {"alpha": uniform(0.001, 100), "beta": uniform(0.01, 100), "base": uniform(0, 1)},
        {
            "cub": {"alpha": 0.01, "beta": 50.602, "base": 0.56248},
            "cars": {"alpha": 14.359, "beta": 75.835, "base": 0.66156},
            "sop": {"alpha": 8.4925, "beta": 57.389, "base": 0.41674},
        },
        elsewhere={"cars": {"alpha": uniform(0.01, 100)}, "sop": {"alpha": uniform(0.01, 100)}},
    ),
    baseline(
        "ms-miner",
        "Wang et al., CVPR 2019, with the paper's miner",
        build_ms_miner,
        {
            "alpha": uniform(0.01, 100),
            "beta": uniform(0.01, 100),
            "base": uniform(0, 1),
            "epsilon": uniform(0, 1),
        },
        {
            "cub": {"alpha": 17.97, "beta": 75.663, "base": 0.77626, "epsilon": 0.39401},
            "cars": {"alpha": 7.4979, "beta": 47.993, "base": 0.63148, "epsilon": 0.72575},
            "sop": {"alpha": 15.947, "beta": 156.62, "base": 0.72504, "epsilon": 0.34828},
        },
        elsewhere={"sop": {"beta": uniform(0.01, 200)}},
    ),
    baseline(
        "softtriple",
        "Qian et al., ICCV 2019",
        build_softtriple,
        {
            "la": uniform(0.01, 100),
            "gamma": uniform(0.0001, 100),
            "margin": uniform(0, 1),
            "reg_weight": uniform(0, 1),
            "loss_lr": LOSS_LR,
        },
        {
            "cub": {
                "la": 78.021,
                "gamma": 58.951,
                "margin": 0.4308,
                "reg_weight": 0.37548,
                "loss_lr": 5.376e-05,
            },
            "cars": {
                "la": 17.698,
                "gamma": 19.187,
                "margin": 0.35882,
                "reg_weight": 0.066982,
                "loss_lr": 0.00014034,
            },
            "sop": {"la": 100.0, "gamma": 47.909, "margin": 0.31453, "loss_lr": 8.6885e-05},
        },
        elsewhere={
            "cars": {"gamma": uniform(0.01, 100)},
            # On SOP the reality check ran it without the regularizer.
            "sop": {"la": uniform(0.01, 200), "gamma": uniform(0.01, 100), "reg_weight": None},
        },
    ),
    baseline(
        "proxyanchor",
        "Kim et al., CVPR 2020; not in the reality check, bounds are ours",
        pml.ProxyAnchorLoss,
        {"margin": uniform(0, 0.5), "alpha": log_uniform(8, 128), "loss_lr": LOSS_LR},
        {"cub": {"margin": 0.1, "alpha": 32.0, "loss_lr": 0.01}},
    ),
)
