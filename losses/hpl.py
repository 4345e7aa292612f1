"""HPL (Yang, Bastan, Zhu, Gray, Samaras: "Hierarchical Proxy-based Loss for Deep Metric
Learning", WACV 2022)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from optuna.distributions import FloatDistribution, IntDistribution
from pytorch_metric_learning.reducers import BaseReducer, DivisorReducer, MeanReducer
from pytorch_metric_learning.utils import common_functions as c_f
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
from torch import Tensor, nn
from torch.nn.functional import normalize, softplus

from harness.losses._tools.checks import (
    check_choice,
    check_cosine,
    check_not_negative,
    check_positive,
)
from harness.losses._tools.cosine import cosine_loss, cosine_similarities, plain_cosine
from harness.losses._tools.host_buffers import HostBuffers
from harness.losses._tools.kmeans import cluster_means, seed_centroids, spherical_kmeans
from harness.losses._tools.labelled_loss import LossDict, ProxyLoss
from harness.losses._tools.loss_dict import elements
from harness.losses._tools.nca import check_denominator, nca_formula, nca_losses
from harness.losses._tools.proxy_anchor import anchor_formula
from harness.losses._tools.reducers import check_not_class_weighted
from harness.losses._tools.short_form import as_it_comes
from harness.losses.baselines import BY_NAME
from harness.losses.method import (
    LOSS_LR,
    STANDS_FOR,
    Base,
    Hook,
    Method,
    NamedSpace,
    Preset,
    Space,
    note_adjusted,
)

COARSE_MODES = ("kmeans", "kmeans+grad", "mean")
# Proxy Anchor's as in its paper; the NCA's is ProxyNCA++'s 1/T, for want of one in HPL's.
DEFAULT_SCALE = {"nca": 9.0, "anchor": 32.0}


def per_level(name: str, value: float | Sequence[float], num_levels: int) -> tuple[float, ...]:
    """The value once per level; ValueError if it is a sequence of another length."""
    if isinstance(value, int | float):
        return (float(value),) * num_levels
    values = tuple(float(entry) for entry in value)
    if len(values) != num_levels:
        raise ValueError(
            f"{name} must be one number or one per level, here {num_levels} "
            f"(the classes and each coarse level), got {len(values)}"
        )
    return values


def check_num_coarse(num_coarse: Sequence[int], num_classes: int) -> None:
    """Raise ValueError unless every level has at least one proxy and no more than the finer."""
    finer = num_classes
    for count in num_coarse:
        if not 1 <= count <= finer:
            raise ValueError(
                f"num_coarse must lie between 1 and the number of proxies a level below, here "
                f"{finer}, got {tuple(num_coarse)} with {num_classes} classes"
            )
        finer = count


def superclass_indices(superclasses: Sequence[int] | Tensor, num_classes: int) -> Tensor:
    """(classes,) superclasses counted from 0; ValueError unless there is one per class."""
    given = torch.as_tensor(superclasses, device="cpu")
    if given.shape != (num_classes,):
        raise ValueError(
            f"superclasses must name one for each of {num_classes} classes, "
            f"got shape {tuple(given.shape)}"
        )
    return torch.unique(given, return_inverse=True)[1]


class HierarchicalProxyLoss(HostBuffers, ProxyLoss):
    """A proxy loss at every level of a hierarchy that k-means finds among the proxies.

    Level 0 has a learnable proxy per class, in `proxies`. The proxies of level l are clusters
    of those of level l-1, and a sample's label there is its class's cluster. Clusters are found
    anew every `update_every` training steps, the first included, from where they were.

    Args:
        base: "nca", cross-entropy over 2 * scale * cosine, or "anchor", Proxy Anchor.
        num_coarse: proxies of each coarse level; () is the base loss alone.
        scale: one number, or one per level, the classes' first. By default 9 for "nca" and 32
            for "anchor".
        margin: likewise; "nca" has none and does not look at it.
        level_weights: likewise; by default 1 each.
        coarse_mode: coarse proxies are the clusters' means as of the last clustering
            ("kmeans"); parameters that are set to them at each clustering and trained between
            ("kmeans+grad", see `forget_reseeded`); or the means as of now, through which
            gradients reach the members ("mean").
        superclasses: (classes,) a superclass for each class. They are level 1 then, for good;
            of `num_coarse` only what comes after its first entry counts.
        denominator: of "nca": "all" proxies, or "negatives".
    """

    host_buffers = ("step",)

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        base: str = "nca",
        num_coarse: Sequence[int] = (10,),
        update_every: int = 20,
        scale: float | Sequence[float] | None = None,
        margin: float | Sequence[float] = 0.1,
        level_weights: float | Sequence[float] | None = None,
        coarse_mode: str = "kmeans",
        superclasses: Sequence[int] | Tensor | None = None,
        denominator: str = "all",
        **kwargs: Any,
    ) -> None:
        check_positive(num_classes=num_classes, update_every=update_every)
        check_choice("base", base, DEFAULT_SCALE)
        check_choice("coarse_mode", coarse_mode, COARSE_MODES)
        num_coarse = tuple(num_coarse)
        top: Tensor | None = None
        if superclasses is not None:
            top = superclass_indices(superclasses, num_classes)
            num_coarse = (int(top.max()) + 1, *num_coarse[1:])
        check_num_coarse(num_coarse, num_classes)
        check_denominator(denominator, min((num_classes, *num_coarse)))
        # Before super().__init__: PML asks for reducers and names of sub-losses in there.
        self.base = base
        self.num_levels = 1 + len(num_coarse)
        super().__init__(num_classes, embedding_size, num_proxies=num_classes, **kwargs)
        check_cosine("HPL", self.distance)
        self.num_coarse = num_coarse
        self.update_every = update_every
        scale = DEFAULT_SCALE[base] if scale is None else scale
        self.scale = per_level("scale", scale, self.num_levels)
        self.margin = per_level("margin", margin, self.num_levels)
        level_weights = 1.0 if level_weights is None else level_weights
        self.level_weights = per_level("level_weights", level_weights, self.num_levels)
        for level in range(self.num_levels):
            check_positive(scale=self.scale[level])
            check_not_negative(level_weights=self.level_weights[level])
        self.coarse_mode = coarse_mode
        self.denominator = denominator
        self.has_superclasses = superclasses is not None
        self.reseeded = False
        self._register_levels(top)
        self.record("update_every")

    def _register_levels(self, top: Tensor | None) -> None:
        self.register_buffer("step", torch.zeros((), dtype=torch.long))
        finer = self.num_classes
        for level, count in enumerate(self.num_coarse, start=1):
            coarse = torch.zeros(count, self.embedding_size)
            if self.coarse_mode == "kmeans+grad":
                self.register_parameter(f"coarse_{level}", nn.Parameter(coarse))
            else:
                self.register_buffer(f"coarse_{level}", coarse)
            self.register_buffer(f"assign_{level}", torch.zeros(finer, dtype=torch.long))
            finer = count
        if top is not None:
            self.get_buffer("assign_1").copy_(top)

    def has_short_form(
        self, embeddings: Tensor, indices_tuple: tuple[Tensor, ...] | None = None
    ) -> bool:
        return (
            self.denominator == "all"
            and as_it_comes(self, type(self.get_default_reducer()), indices_tuple)
            and plain_cosine(self.distance)
        )

    def reduced_loss(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        total = embeddings.new_zeros(())
        for level, (proxies, level_labels) in enumerate(self._levels(embeddings, labels)):
            scale, weight = self.scale[level], self.level_weights[level]
            if self.base == "nca":
                formula = nca_formula(level_labels, 2 * scale)
            else:
                formula = anchor_formula(level_labels, scale, self.margin[level])
            loss = cosine_loss(embeddings, proxies, formula)
            total = torch.add(total, loss, alpha=weight)
        return total

    def batch_losses(
        self, embeddings: Tensor, labels: Tensor, indices_tuple: tuple[Tensor, ...] | None
    ) -> LossDict:
        miner_weights = None
        if indices_tuple is not None:
            miner_weights = lmu.convert_to_weights(indices_tuple, labels, embeddings.dtype)
        loss_dict: LossDict = {}
        for level, (proxies, level_labels) in enumerate(self._levels(embeddings, labels)):
            cosines = cosine_similarities(self.distance, embeddings, proxies)
            losses = self._nca if self.base == "nca" else self._anchor
            loss_dict |= losses(level, cosines, level_labels, miner_weights)
        return loss_dict

    def _nca(
        self, level: int, cosines: Tensor, labels: Tensor, miner_weights: Tensor | None
    ) -> LossDict:
        losses = nca_losses(2 * self.scale[level] * cosines, labels, self.denominator)
        if miner_weights is not None:
            losses = losses * miner_weights
        return {f"level{level}": self._elements(level, losses, len(losses))}

    def _anchor(
        self, level: int, cosines: Tensor, labels: Tensor, miner_weights: Tensor | None
    ) -> LossDict:
        """log(1 + sum of exp) per proxy, over its positives and over its negatives.

        Only proxies with a positive in the batch have the first, and its mean is over them.
        """
        scale, margin = self.scale[level], self.margin[level]
        own = labels.unsqueeze(1)
        positive = -scale * (cosines.gather(1, own) - margin)
        negative = scale * (cosines + margin)
        if miner_weights is not None:
            # Proxy Anchor has no term per sample to weigh. As in PML, weights below 1 lower
            # the exponents.
            positive = positive + (miner_weights - 1).unsqueeze(1)
            negative = negative + (miner_weights - 1).unsqueeze(1)
        nothing = float("-inf")
        present, membership = torch.unique(labels, return_inverse=True)
        members = membership == torch.arange(len(present), device=labels.device).unsqueeze(1)
        positive = positive.squeeze(1).expand_as(members).masked_fill(~members, nothing)
        positive_losses = softplus(positive.logsumexp(dim=1))
        negative_losses = softplus(negative.scatter(1, own, nothing).logsumexp(dim=0))
        return {
            f"level{level}_pos": self._elements(level, positive_losses, len(present)),
            f"level{level}_neg": self._elements(level, negative_losses, cosines.shape[1]),
        }

    def _elements(self, level: int, losses: Tensor, divisor: int) -> dict[str, Any]:
        return {**elements(self.level_weights[level] * losses), "divisor": divisor}

    def _levels(self, embeddings: Tensor, labels: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Proxies of each level, and the labels of the batch there; the step is counted."""
        hierarchy = self._hierarchy()
        finer = self.proxies.to(embeddings)
        levels = [(finer, labels)]
        for coarse, assignments in hierarchy:
            # Copies, so that the next clustering changes nothing that backward still needs.
            assignments = assignments.to(embeddings.device, copy=True)
            if self.coarse_mode == "mean":
                finer = cluster_means(normalize(finer), assignments, len(coarse))
            else:
                finer = coarse.to(embeddings, copy=True)
            labels = assignments[labels]
            levels.append((finer, labels))
        if self.training:
            self.step += 1
        return levels

    def _hierarchy(self) -> list[tuple[Tensor, Tensor]]:
        """Coarse proxies and assignments per coarse level, found anew if it is time."""
        never = int(self.step) == 0
        if self.training and int(self.step) % self.update_every == 0:
            self._store(self._cluster(warm=not never))
        elif never:
            # Evaluated before it was trained: nothing to go by yet, and nothing is kept.
            return self._cluster(warm=False)
        return [self._stored(level) for level in range(1, self.num_levels)]

    def _stored(self, level: int) -> tuple[Tensor, Tensor]:
        return getattr(self, f"coarse_{level}"), self.get_buffer(f"assign_{level}")

    @torch.no_grad()
    def _store(self, hierarchy: list[tuple[Tensor, Tensor]]) -> None:
        for level, (centroids, assignments) in enumerate(hierarchy, start=1):
            coarse, assigned = self._stored(level)
            coarse.copy_(centroids)
            assigned.copy_(assignments)
        self.reseeded = self.coarse_mode == "kmeans+grad"

    @torch.no_grad()
    def _cluster(self, warm: bool) -> list[tuple[Tensor, Tensor]]:
        hierarchy = []
        dtype = torch.promote_types(self.proxies.dtype, torch.float32)
        points = normalize(self.proxies.to(dtype))
        with torch.autocast(points.device.type, enabled=False):
            for level, count in enumerate(self.num_coarse, start=1):
                coarse, assignments = self._stored(level)
                if level == 1 and self.has_superclasses:
                    points = cluster_means(points, assignments, count)
                elif warm:
                    start = normalize(coarse.to(dtype))
                    points, assignments = spherical_kmeans(points, start, assignments)
                else:
                    points, assignments = spherical_kmeans(points, seed_centroids(points, count))
                hierarchy.append((points, assignments))
        return hierarchy

    def forget_reseeded(
        self, optimizer: torch.optim.Optimizer, args: Any = None, kwargs: Any = None
    ) -> None:
        """Zero the optimizer's state of coarse proxies that were set to new values.

        In mode "kmeans+grad" old momenta would drive new proxies. A loss does not know its
        optimizer, so whoever makes it says, once:
        `optimizer.register_step_pre_hook(loss.forget_reseeded)`.
        """
        del args, kwargs
        if self.reseeded:
            for level in range(1, self.num_levels):
                for value in optimizer.state.get(getattr(self, f"coarse_{level}"), {}).values():
                    if torch.is_tensor(value):
                        value.zero_()
        self.reseeded = False

    def logits(self, embeddings: Tensor) -> Tensor:
        """(batch, classes) of the classes' own level.

        For "nca" what the softmax is taken of, for "anchor" cosines.
        """
        cosines = cosine_similarities(self.distance, embeddings, self.proxies.to(embeddings))
        return 2 * self.scale[0] * cosines if self.base == "nca" else cosines

    def _sub_loss_names(self) -> list[str]:
        suffixes = [""] if self.base == "nca" else ["_pos", "_neg"]
        return [f"level{level}{suffix}" for level in range(self.num_levels) for suffix in suffixes]

    def set_reducer(self, reducer: BaseReducer | None) -> None:
        if self.base == "anchor":
            check_not_class_weighted('HPL over "anchor"', reducer)
        super().set_reducer(reducer)

    def get_default_reducer(self) -> BaseReducer:
        return MeanReducer() if self.base == "nca" else DivisorReducer()

    def get_default_weight_init_func(self) -> c_f.TorchInitWrapper:
        if self.base == "nca":
            return c_f.TorchInitWrapper(torch.nn.init.normal_)
        return c_f.TorchInitWrapper(torch.nn.init.kaiming_normal_, mode="fan_out")


def _coarse_counts(counts: Sequence[int], num_classes: int) -> tuple[int, ...]:
    """A hierarchy of few classes has at most half as many clusters at each level."""
    finer, used = num_classes, []
    for count in counts:
        finer = max(1, min(count, finer // 2))
        used.append(finer)
    return tuple(used)


def build_loss(
    num_classes: int,
    embedding_size: int,
    *,
    base: str,
    num_coarse: int | None = 10,
    more_coarse: list[int] | None = None,
    update_every: int = 20,
    scale_fine: float | None = None,
    scale_coarse: float | None = None,
    margin_fine: float = 0.1,
    margin_coarse: float | None = None,
    coarse_weight: float = 1.0,
    level_weights: list[float] | None = None,
    coarse_mode: str = "kmeans",
    denominator: str = "all",
    superclasses: bool = False,
    hierarchy: Sequence[int] | None = None,
) -> HierarchicalProxyLoss:
    """HPL, whose coarse levels share scale and margin: the classes' unless they are given.

    Args:
        num_coarse: proxies of the first coarse level; nothing where superclasses are it.
        more_coarse: of those above it, if there are any.
        coarse_weight: of every coarse level.
        level_weights: in place of it, one for each level, the classes' first.
        superclasses: the hierarchy of the data set is the first coarse level.
        hierarchy: that of the data set.
    """
    if superclasses and hierarchy is None:
        raise ValueError("superclasses=true needs a data set that has superclasses, this has none")
    above = more_coarse or []
    if superclasses or num_coarse is None:
        first = len(set(hierarchy or ()))
        counts = (first, *_coarse_counts(above, first))
    else:
        counts = _coarse_counts([num_coarse, *above], num_classes)
    coarse_levels = len(counts)
    if scale_fine is None:
        scale_fine = DEFAULT_SCALE[base]
    scale_coarse = scale_fine if scale_coarse is None else scale_coarse
    margin_coarse = margin_fine if margin_coarse is None else margin_coarse
    loss = HierarchicalProxyLoss(
        num_classes,
        embedding_size,
        base=base,
        num_coarse=counts,
        update_every=update_every,
        scale=(scale_fine, *[scale_coarse] * coarse_levels),
        margin=(margin_fine, *[margin_coarse] * coarse_levels),
        level_weights=level_weights or (1.0, *[coarse_weight] * coarse_levels),
        coarse_mode=coarse_mode,
        superclasses=hierarchy if superclasses else None,
        denominator=denominator,
    )
    reason = (
        "the superclasses of the training classes are as many"
        if superclasses
        else f"at most half of the {num_classes} classes"
    )
    note_adjusted(loss, "num_coarse", num_coarse, counts[0], reason)
    halved = "at most half of the proxies a level below"
    note_adjusted(loss, "more_coarse", above, list(counts[1:]), halved)
    if level_weights:
        note_adjusted(loss, "coarse_weight", coarse_weight, level_weights[1], "level_weights")
    return loss


class NewClusters(Hook):
    """Says when the loss clusters its proxies anew; it does so by itself."""

    def __init__(self, update_every: int) -> None:
        self.update_every = update_every

    def facts(self) -> dict[str, Any]:
        return {"events": {"new clusters": {"every": self.update_every}}}


def build_hook(*, update_every: int = 20) -> NewClusters:
    return NewClusters(update_every)


# Each without the parameters that its base does not have.
build_nca = partial(build_loss, base="nca", margin_fine=0.0, margin_coarse=0.0)
build_anchor = partial(build_loss, base="anchor", denominator="all")

# How many proxies the first coarse level has, superclasses say themselves.
GIVEN = {"superclasses": True, "num_coarse": None}
build_nca_given = partial(build_nca, **GIVEN)
build_anchor_given = partial(build_anchor, **GIVEN)


# The base's method, and what its parameters are called here.
ALONE = {
    "nca": Base("proxynca", renamed={"softmax_scale": "scale_fine"}),
    "anchor": Base("proxyanchor", renamed={"alpha": "scale_fine", "margin": "margin_fine"}),
}

# What the paper searches at each level.
LEVEL_RANGES = {
    "nca": {"scale": FloatDistribution(1.0, 64.0, log=True)},
    "anchor": {
        "scale": FloatDistribution(8.0, 128.0, log=True),
        "margin": FloatDistribution(0.0, 0.5),
    },
}


def _num_coarse(dataset: str, num_classes: int) -> IntDistribution:
    if STANDS_FOR.get(dataset, dataset) == "sop":
        return IntDistribution(12, 1000, log=True)
    # Half of the classes was best on glyphs, but with more than that most clusters would be
    # single classes: no hierarchy. 10, the published number, is within the bounds whatever the
    # number of classes.
    return IntDistribution(2, max(num_classes // 2, 10), log=True)


def space(dataset: str, num_classes: int, *, base: str) -> Space:
    """All that the base loss searches, the number of clusters and what they count for.

    The levels share scale and margin, as in the paper's first protocol. How often clusters are
    found hardly mattered in our searches.
    """
    searched = given_space(dataset, num_classes, base=base)
    return {**searched, "num_coarse": _num_coarse(dataset, num_classes)}


def given_space(dataset: str, num_classes: int, *, base: str) -> Space:
    """The same without the number of clusters, which are superclasses."""
    alone = ALONE[base]
    searched = BY_NAME[alone.name].space(dataset, num_classes)
    return {
        **{alone.renamed.get(name, name): bounds for name, bounds in searched.items()},
        "coarse_weight": FloatDistribution(1e-3, 1.0, log=True),
    }


def paper_space(dataset: str, num_classes: int, *, base: str) -> Space:
    """As in the paper's second protocol, with scale and margin for each level."""
    return {
        "num_coarse": _num_coarse(dataset, num_classes),
        "update_every": IntDistribution(5, 200, log=True),
        "loss_lr": LOSS_LR,
        **_at_levels(LEVEL_RANGES[base], ("fine", "coarse")),
    }


def _at_levels(values: Mapping[str, Any], levels: Sequence[str]) -> dict[str, Any]:
    return {f"{name}_{level}": value for name, value in values.items() for level in levels}


# Proxies where the paper gives their number; for CUB it does not, and Cars' stands in.
NUM_COARSE = {"cub": 10, "cars": 10, "sop": 500, "inshop": 500, "inaturalist": 500}

PAPER_PROTOCOL = {
    "optimizer": "adamw",
    "lr": 1e-4,
    "pooling": "avg+max",
    "batch_size": 128,
    "embedding_size": 512,
}

# Data set -> values of a level, and the proxies' learning rate. The NCA's are the reality check's
# optima for ProxyNCA. The paper has no rate; a hundred times the network's is Proxy Anchor's.
MLRC = {
    "nca": {
        "cub": ({"scale": 13.98}, 6.0e-3),
        "cars": ({"scale": 7.97}, 4.4e-3),
        "sop": ({"scale": 10.73}, 5.3e-4),
    },
    "anchor": dict.fromkeys(("cub", "cars", "sop"), ({"scale": 32.0, "margin": 0.1}, 1e-2)),
}
# The paper does not say the NCA's scale, either: these are those of Proxy Anchor's code.
PAPER = {
    "nca": dict.fromkeys(NUM_COARSE, ({"scale": 32.0}, 1e-4)),
    "anchor": dict.fromkeys(NUM_COARSE, ({"scale": 32.0, "margin": 0.1}, 1e-2)),
}


def _presets(base: str, levels_differ: bool) -> dict[str, dict[str, Preset]]:
    # The authors released no code, hence no preset "official".
    sources = {
        "mlrc": (MLRC[base], {}, ()),
        "paper": (PAPER[base], PAPER_PROTOCOL, ("classic-hpl",)),
    }
    levels = ("fine", "coarse") if levels_differ else ("fine",)
    weight = {} if levels_differ else {"coarse_weight": 1.0}
    return {
        name: {
            dataset: Preset(
                {
                    "num_coarse": NUM_COARSE[dataset],
                    "update_every": 20,
                    "loss_lr": loss_lr,
                    **weight,
                    **_at_levels(values, levels),
                },
                protocol,
                belongs_to=protocols,
            )
            for dataset, (values, loss_lr) in by_dataset.items()
        }
        for name, (by_dataset, protocol, protocols) in sources.items()
    }


def _method(name: str, base: str, build: Callable[..., nn.Module], **rest: Any) -> Method:
    levels = NamedSpace(partial(paper_space, base=base), _presets(base, levels_differ=True))
    return Method(
        name=name,
        paper="Yang et al., Hierarchical Proxy-based Loss for Deep Metric Learning, WACV 2022",
        build_loss=build,
        build_hook=build_hook,
        space=partial(space, base=base),
        presets=_presets(base, levels_differ=False),
        samples_per_class=1,
        base=replace(ALONE[base], almost_base_at={"coarse_weight": 1e-3}),
        spaces={"paper": levels},
        **rest,
    )


def _given(name: str, base: str, build: Callable[..., nn.Module]) -> Method:
    """The method with the hierarchy of the data set instead of clusters."""
    presets = {
        source: {
            dataset: replace(preset, params=_without_count(preset.params))
            for dataset, preset in by_dataset.items()
        }
        for source, by_dataset in _presets(base, levels_differ=False).items()
    }
    method = _method(name, base, build)
    return replace(method, space=partial(given_space, base=base), presets=presets, spaces={})


def _without_count(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if name != "num_coarse"}


METHODS = (
    _method("hpl-nca", "nca", build_nca),
    _method("hpl-pa", "anchor", build_anchor, aliases=("hpl",)),
    _given("hpl-nca-gt", "nca", build_nca_given),
    _given("hpl-pa-gt", "anchor", build_anchor_given),
)
