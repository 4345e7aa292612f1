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
from pytorch_metric_learning.regularizers import ZeroMeanRegularizer
from torch import Tensor, nn

from harness.losses._tools.all_pairs import AllPairsContrastiveLoss
from harness.losses._tools.ccp_settings import CCP_EPOCHS, proxies_in_ccp
from harness.losses._tools.mining import MinedLoss
from harness.losses._tools.proxy_anchor import ProxyAnchorLoss
from harness.losses._tools.proxy_nca import ProxyNCALoss
from harness.losses._tools.soft_triple import SoftTripleLoss, WithinClassCenters
from harness.losses.method import (
    LOSS_LR,
    OPTIMIZER_PARAMS,
    STANDS_FOR,
    Method,
    ParamTypes,
    Preset,
    Space,
    note_adjusted,
    type_of,
)


def uniform(low: float, high: float) -> FloatDistribution:
    return FloatDistribution(low, high)


def log_uniform(low: float, high: float) -> FloatDistribution:
    return FloatDistribution(low, high, log=True)


MARGIN = uniform(-0.2, 2)  # of a distance between unit vectors


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


def build_margin(
    num_classes: int, embedding_size: int, margin: float, beta: float
) -> pml.MarginLoss:
    del num_classes, embedding_size
    return pml.MarginLoss(margin=margin, beta=beta, learn_beta=True)


def build_margin_class(
    num_classes: int, embedding_size: int, margin: float, beta: float
) -> pml.MarginLoss:
    del embedding_size
    return pml.MarginLoss(margin=margin, beta=beta, learn_beta=True, num_classes=num_classes)


def build_softtriple(
    num_classes: int,
    embedding_size: int,
    la: float,
    gamma: float,
    margin: float,
    reg_weight: float = 0.0,
    centers_per_class: int = 10,
) -> nn.Module:
    several = centers_per_class > 1
    sparse = WithinClassCenters(num_classes, centers_per_class) if several else None
    loss = SoftTripleLoss(
        num_classes,
        embedding_size,
        centers_per_class=centers_per_class,
        la=la,
        gamma=gamma,
        margin=margin,
        weight_regularizer=sparse,
        weight_reg_weight=reg_weight,
    )
    if not several:
        note_adjusted(loss, "reg_weight", reg_weight, 0.0, "a single centre is near no other")
    return loss


def build_ms_miner(alpha: float, beta: float, base: float, epsilon: float) -> nn.Module:
    return MinedLoss(pml.MultiSimilarityLoss(alpha, beta, base), MultiSimilarityMiner(epsilon))


def by_dataset(**values: tuple[Any, ...]) -> dict[str, dict[str, Any]]:
    """Parameters by data set, from their values on CUB, Cars, SOP and perhaps In-Shop.

    Where one is None, the parameter is left out.
    """
    rows = zip(*values.values(), strict=True)
    return {
        dataset: {name: value for name, value in zip(values, row, strict=True) if value is not None}
        for dataset, row in zip(("cub", "cars", "sop", "inshop"), rows, strict=False)
    }


def baseline(
    name: str,
    paper: str,
    build: Callable[..., nn.Module],
    space: Space,
    best: Mapping[str, Mapping[str, Any]],
    elsewhere: Mapping[str, Mapping[str, BaseDistribution | None]] | None = None,
    further: ParamTypes | None = None,
    ours: Mapping[str, Preset] | None = None,
    papers: Mapping[str, Mapping[str, Preset]] | None = None,
    **rest: Any,
) -> Method:
    """One row of the table below.

    Args:
        build: takes the parameters, and for a loss with class weights the two sizes first.
        best: data set -> best published parameters.
        elsewhere: data set -> bounds that differ from `space` there; None removes one.
        further: parameters that are not searched.
        ours: data set -> what we found better there.
        papers: further presets: as other papers run it that compare with it, and its own.
    """
    has_weights = "loss_lr" in space

    def build_loss(num_classes: int, embedding_size: int, **params: Any) -> nn.Module:
        return build(num_classes, embedding_size, **params) if has_weights else build(**params)

    def space_on(dataset: str, num_classes: int) -> dict[str, BaseDistribution]:
        del num_classes
        bounds = {**space, **(elsewhere or {}).get(STANDS_FOR.get(dataset, dataset), {})}
        return {param: dist for param, dist in bounds.items() if dist is not None}

    types = {param: type_of(dist) for param, dist in space.items() if param not in OPTIMIZER_PARAMS}
    presets = {"mlrc": {dataset: Preset(params) for dataset, params in best.items()}}
    presets |= {name: dict(values) for name, values in (papers or {}).items()}
    presets |= {"ours": {**presets["mlrc"], **ours}} if ours else {}
    rest.setdefault("samples_per_class", 1 if has_weights else 4)
    return Method(
        name,
        paper,
        build_loss,
        space_on,
        presets,
        loss_params={**types, **(further or {})},
        **rest,
    )


def margin_loss(
    name: str,
    build: Callable[..., nn.Module],
    paper: str = "Wu et al., ICCV 2017",
    **best: tuple[float, ...],
) -> Method:
    """A row whose only weights are boundaries: distances, which decay would pull towards 0."""
    return baseline(
        name,
        paper,
        build,
        {"margin": MARGIN, "beta": MARGIN, "loss_lr": LOSS_LR},
        by_dataset(**best),
        samples_per_class=4,
        loss_weight_decay=0.0,
    )


def softtriple_in_ccp(**centers: int) -> dict[str, Preset]:
    """The CCP paper's SoftTriple, whose number of centres it does not say.

    Args:
        centers: of each class, by data set.
    """
    values = by_dataset(
        la=(20.0, 17.69, 100.0, 20.0),
        gamma=(0.1, 19.18, 47.9, 0.1),
        reg_weight=(0.2, 0.0669, 0.2, 0.2),
        margin=(0.01, 0.3588, 0.3145, 0.01),
    )
    return proxies_in_ccp({d: {**values[d], "centers_per_class": n} for d, n in centers.items()})


# What SoftTriple's authors train with; theirs is no protocol here.
_SOFTTRIPLE_OFFICIAL = Preset(
    {
        **{"la": 20.0, "gamma": 0.1, "reg_weight": 0.2, "margin": 0.01},
        **{"centers_per_class": 10, "loss_lr": 1e-2},
    },
    {"optimizer": "adam", "optimizer_eps": 0.01, "lr": 1e-4},
)

# What Proxy Anchor's authors train with, on which HPL builds; DRML runs it so, too.
_ANCHOR_PROTOCOL = {
    "optimizer": "adamw",
    "lr": 1e-4,
    "weight_decay": 1e-4,
    "pooling": "avg+max",
    "batch_size": 180,
    "embedding_size": 512,
    "clip_value": 10.0,
}
_ANCHOR = {"margin": 0.1, "alpha": 32.0}


def _anchor_official(lr: float) -> Preset:
    rates = {"loss_lr": 100 * lr, "head_lr": lr, "trunk_lr": lr}
    return Preset(
        {**_ANCHOR, **rates}, {**_ANCHOR_PROTOCOL, "lr": lr}, belongs_to=("classic-drml",)
    )


METHODS = (
    baseline(
        "contrastive",
        "Hadsell, Chopra, LeCun, CVPR 2006",
        AllPairsContrastiveLoss,
        {"pos_margin": MARGIN, "neg_margin": MARGIN},
        by_dataset(pos_margin=(-0.2, 0.26523, 0.28503), neg_margin=(0.38412, 0.54094, 0.51301)),
    ),
    baseline(
        "triplet",
        "Weinberger, Saul, JMLR 2009",
        pml.TripletMarginLoss,
        {"margin": MARGIN},
        by_dataset(margin=(0.096101, 0.11903, 0.045192)),
    ),
    baseline(
        "ntxent",
        "Sohn, NeurIPS 2016; van den Oord, Li, Vinyals 2018; Chen et al., ICML 2020",
        pml.NTXentLoss,
        {"temperature": log_uniform(1e-4, 100)},
        by_dataset(temperature=(0.0091033, 0.021926, 0.00024012)),
        elsewhere={
            "cars": {"temperature": log_uniform(1e-5, 100)},
            "sop": {"temperature": log_uniform(1e-5, 100)},
        },
    ),
    baseline(
        "proxynca",
        "Movshovitz-Attias et al., ICCV 2017",
        ProxyNCALoss,
        {"softmax_scale": uniform(0.01, 100), "loss_lr": LOSS_LR},
        by_dataset(
            softmax_scale=(13.984, 7.9705, 10.734), loss_lr=(0.0060417, 0.0044343, 0.0005289)
        ),
        # As the HPL paper compares with it; what that does not say is Proxy Anchor's code's.
        papers={
            "paper": {
                "cub": Preset(
                    {"softmax_scale": 32.0, "loss_lr": 1e-4},
                    {**_ANCHOR_PROTOCOL, "batch_size": 128},
                    belongs_to=("classic-hpl",),
                )
            }
        },
    ),
    margin_loss(
        "margin",
        build_margin,
        margin=(0.087807, 0.078172, 0.091578),
        beta=(0.78387, 1.3164, 1.1072),
        loss_lr=(0.0013149, 0.00011114, 0.001828),
    ),
    margin_loss(
        "margin-class",
        build_margin_class,
        margin=(0.077912, 0.077607, 0.051864),
        beta=(0.97967, 0.95989, 0.84246),
        loss_lr=(0.00026559, 4.7679e-05, 7.1075e-05),
    ),
    baseline(
        "nsoftmax",
        "Wang et al., ACM MM 2017; Zhai, Wu, BMVC 2019",
        pml.NormalizedSoftmaxLoss,
        {"temperature": log_uniform(0.01, 100), "loss_lr": LOSS_LR},
        by_dataset(
            temperature=(0.10875, 0.088633, 0.063062), loss_lr=(0.0044689, 0.011046, 0.00054683)
        ),
    ),
    baseline(
        "cosface",
        "Wang et al., CVPR 2018",
        pml.CosFaceLoss,
        {"margin": uniform(0, 1), "scale": uniform(0.01, 200), "loss_lr": LOSS_LR},
        by_dataset(
            margin=(0.61823, 0.43244, 0.33641),
            scale=(100.0, 161.6, 100.0),
            loss_lr=(0.0025347, 0.007413, 0.0021607),
        ),
    ),
    baseline(
        "arcface",
        "Deng et al., CVPR 2019; the margin is in degrees",
        pml.ArcFaceLoss,
        {"margin": uniform(0, 90), "scale": uniform(0.01, 200), "loss_lr": LOSS_LR},
        by_dataset(
            margin=(23.226, 20.522, 18.632),
            scale=(100.0, 49.502, 220.36),
            loss_lr=(0.0051384, 7.3985e-06, 0.0020187),
        ),
        elsewhere={"sop": {"scale": uniform(0.01, 300)}},
    ),
    baseline(
        "fastap",
        "Cakir et al., CVPR 2019; the reality check tries every number of bins",
        pml.FastAPLoss,
        {"num_bins": IntDistribution(2, 32)},
        by_dataset(num_bins=(17, 27, 16)),
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
        by_dataset(
            pos_margin=(0.3265, 0.16705, 0.37593),
            neg_margin=(0.84465, 0.93376, 1.0832),
            regularizer_weight=(0.13826, 0.0, 0.0),
        ),
        # With CUB's margins `convnet`, from scratch, stays where it starts.
        ours={
            "glyphs": Preset(
                {"pos_margin": 0.0, "neg_margin": 0.3, "regularizer_weight": 0.0},
                tuned_by_us=True,
            )
        },
    ),
    baseline(
        "ms",
        "Wang et al., CVPR 2019",
        pml.MultiSimilarityLoss,
        {"alpha": uniform(0.001, 100), "beta": uniform(0.01, 100), "base": uniform(0, 1)},
        by_dataset(
            alpha=(0.01, 14.359, 8.4925),
            beta=(50.602, 75.835, 57.389),
            base=(0.56248, 0.66156, 0.41674),
        ),
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
        by_dataset(
            alpha=(17.97, 7.4979, 15.947),
            beta=(75.663, 47.993, 156.62),
            base=(0.77626, 0.63148, 0.72504),
            epsilon=(0.39401, 0.72575, 0.34828),
        ),
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
        by_dataset(
            la=(78.021, 17.698, 100.0),
            gamma=(58.951, 19.187, 47.909),
            margin=(0.4308, 0.35882, 0.31453),
            reg_weight=(0.37548, 0.066982, None),
            loss_lr=(5.376e-05, 0.00014034, 8.6885e-05),
        ),
        elsewhere={
            "cars": {"gamma": uniform(0.01, 100)},
            # On SOP the reality check ran it without the regularizer.
            "sop": {"la": uniform(0.01, 200), "gamma": uniform(0.01, 100), "reg_weight": None},
        },
        further={"centers_per_class": int},
        papers={
            # The sizes of its tables, small where there are many classes; then each of them.
            "ccp": softtriple_in_ccp(cub=10, cars=10, sop=1, inshop=1),
            "ccp-s": softtriple_in_ccp(**dict.fromkeys(CCP_EPOCHS, 1)),
            "ccp-l": softtriple_in_ccp(**dict.fromkeys(CCP_EPOCHS, 10)),
            "official": {"cub": _SOFTTRIPLE_OFFICIAL},
        },
    ),
    baseline(
        "proxyanchor",
        "Kim et al., CVPR 2020; not in the reality check, bounds are ours",
        ProxyAnchorLoss,
        # Wider than the margins of 0 to 0.5 and scales from 8 on that we searched at first: best
        # were 0, 0.5 and 8.
        {"margin": uniform(-0.2, 1), "alpha": log_uniform(1, 128), "loss_lr": LOSS_LR},
        {"cub": {**_ANCHOR, "loss_lr": 0.01}},
        papers={
            "paper": {
                "cub": Preset(
                    {**_ANCHOR, "loss_lr": 0.01}, _ANCHOR_PROTOCOL, belongs_to=("classic-hpl",)
                )
            },
            "hier": {
                "cub": Preset({**_ANCHOR, "loss_lr": 0.05}, belongs_to=("classic-vit", "vit"))
            },
            "official": {"cub": _anchor_official(1e-4), "sop": _anchor_official(6e-4)},
            "ccp": proxies_in_ccp(dict.fromkeys(CCP_EPOCHS, _ANCHOR)),
        },
    ),
)

# For methods that wrap one of these and search what it does.
BY_NAME = {method.name: method for method in METHODS}
