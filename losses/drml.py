"""DRML (Zheng, Zhang, Lu, Zhou: "Deep Relational Metric Learning", ICCV 2021)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from optuna.distributions import CategoricalDistribution, FloatDistribution
from pytorch_metric_learning.distances import BaseDistance
from pytorch_metric_learning.losses import (
    BaseMetricLossFunction,
    CosFaceLoss,
    MarginLoss,
    TripletMarginLoss,
)
from pytorch_metric_learning.miners import BaseMiner, TripletMarginMiner
from pytorch_metric_learning.reducers import BaseReducer
from pytorch_metric_learning.utils import common_functions as c_f
from pytorch_metric_learning.utils import distributed
from torch import Tensor, nn
from torch.distributed import get_world_size
from torch.nn.functional import mse_loss, normalize, one_hot

from harness.losses._tools.checks import (
    check_base_params,
    check_choice,
    check_not_negative,
    check_positive,
)
from harness.losses._tools.labelled_loss import LabelledLoss, LossDict, in_float32
from harness.losses._tools.loss_dict import reduced
from harness.losses._tools.mining import DistanceWeightedMiner
from harness.losses._tools.normalize import SMALLEST_NORM
from harness.losses._tools.proxy_anchor import ProxyAnchorLoss, group_losses
from harness.losses._tools.reducers import ReducesInBases
from harness.losses.baselines import BY_NAME
from harness.losses.method import Base, Method, Preset, Space, declared_params
from harness.losses.mined_losses import BY_NAME as MINED


def check_groups(groups: int, **sizes: int) -> None:
    """Raise ValueError unless groups divides every size."""
    check_positive(groups=groups, **sizes)
    for name, size in sizes.items():
        if size % groups:
            raise ValueError(f"groups must divide {name}, got groups={groups}, {name}={size}")


class GroupedLinear(nn.Module):
    """A linear layer of its own for each group: (batch, groups, in) -> (batch, groups, out)."""

    def __init__(self, groups: int, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(groups, out_features, in_features))
        self.bias = nn.Parameter(torch.zeros(groups, out_features))
        for weight in self.weight:
            nn.init.kaiming_normal_(weight, mode="fan_out")

    def forward(self, inputs: Tensor) -> Tensor:
        groups = inputs.transpose(0, 1)
        return torch.baddbmm(self.bias.unsqueeze(1), groups, self.weight.mT).transpose(0, 1)


@dataclass(frozen=True)
class RelationAux:
    """What the loss needs of the head's last forward besides its output.

    Attributes:
        final: (batch, embedding_size) the output itself.
        nodes: (batch, groups, embedding_size / groups) unit vectors, one per group.
        errors: (batch, groups) mean squared error of each chunk rebuilt from its node.
    """

    final: Tensor
    nodes: Tensor
    errors: Tensor

    @property
    def assignment(self) -> Tensor:
        """(batch,) the group whose node describes its chunk of a sample best."""
        return self.errors.argmin(dim=1)

    def is_of(self, embeddings: Tensor) -> bool:
        """Whether these are the output; equal values will do, for it may be cast or moved."""
        return self.final is embeddings or (
            self.final.shape == embeddings.shape
            and torch.equal(self.final.detach().to(embeddings), embeddings.detach())
        )

    def of_all_processes(self, embeddings: Tensor) -> RelationAux:
        """The same for the rows of PML's DistributedLossWrapper: those of this process first."""
        others = (distributed.all_gather(own.detach()) for own in (self.nodes, self.errors))
        nodes, errors = map(torch.cat, zip((self.nodes, self.errors), others, strict=True))
        return RelationAux(embeddings, nodes, errors)


class RelationHead(nn.Module):
    """Embeds contiguous chunks of a feature one by one, then mixes them along learned relations.

    The output is not normalised; it starts as the concatenation of unit vectors. `aux` holds
    what DRMLLoss needs of the last forward, and is not copied or pickled. Half precision is safe,
    in autocast or throughout.
    """

    def __init__(self, in_features: int, embedding_size: int, groups: int = 4) -> None:
        super().__init__()
        check_groups(groups, in_features=in_features, embedding_size=embedding_size)
        self.in_features = in_features
        self.embedding_size = embedding_size
        self.groups = groups
        chunk, dim = in_features // groups, embedding_size // groups
        self.node = GroupedLinear(groups, chunk, dim)
        self.edge_out = GroupedLinear(groups, chunk, dim)
        self.edge_in = GroupedLinear(groups, chunk, dim)
        self.edge_score = nn.Linear(dim, 1)
        nn.init.kaiming_normal_(self.edge_score.weight, mode="fan_out")
        nn.init.zeros_(self.edge_score.bias)
        self.integrator = nn.Linear(2 * dim, dim)
        # Starts by passing each node on, whatever its neighbours say.
        nn.init.eye_(self.integrator.weight)
        nn.init.zeros_(self.integrator.bias)
        self.decoder = GroupedLinear(groups, dim, chunk)
        self.aux: RelationAux | None = None

    def forward(self, features: Tensor) -> Tensor:
        if features.ndim != 2 or features.shape[1] != self.in_features:
            shape = tuple(features.shape)
            raise ValueError(f"features must have shape (batch, {self.in_features}), got {shape}")
        chunks = features.unflatten(1, (self.groups, -1))
        nodes = self.node(chunks)
        nodes = normalize(nodes, dim=2, eps=_least_divisor(nodes))
        # Relations and decoders do not train the trunk; decoders do not train the nodes.
        detached = chunks.detach()
        messages = self.relations(detached).transpose(1, 2) @ nodes
        final = self.integrator(torch.cat([nodes, messages], dim=2)).flatten(1)
        # In half precision many errors would tie.
        rebuilt, original = in_float32(self.decoder(nodes.detach())), in_float32(detached)
        errors = mse_loss(rebuilt, original, reduction="none").mean(dim=2)
        self.aux = RelationAux(final, nodes, errors)
        return final

    def relations(self, chunks: Tensor) -> Tensor:
        """(batch, from, to) what part of each group's message comes from which group.

        Columns sum to 1, or to 0 where no score is above zero.
        """
        differences = self.edge_out(chunks).unsqueeze(2) - self.edge_in(chunks).unsqueeze(1)
        scores = self.edge_score(differences).squeeze(-1).relu()
        return scores / scores.sum(dim=1, keepdim=True).clamp_min(_least_divisor(scores))

    def __getstate__(self) -> dict[str, Any]:
        # Tensors with a graph can be neither copied nor pickled.
        return {**self.__dict__, "aux": None}


def _least_divisor(values: Tensor) -> float:
    """What sums and norms are raised to before a division; float16 would round 1e-12 to zero."""
    return max(SMALLEST_NORM, torch.finfo(values.dtype).tiny)


class _CosFaceLoss(CosFaceLoss):
    """PML's, but for an index that it makes on the default device."""

    def get_target_mask(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return one_hot(labels, self.num_classes).to(embeddings.dtype)


@dataclass(frozen=True)
class _BaseLoss:
    """A loss that DRML can be built on.

    Attributes:
        alone: the method that is this loss alone, mined likewise.
        takes: what its constructor is handed besides its parameters.
    """

    alone: Method
    loss: Callable[..., BaseMetricLossFunction]
    defaults: Mapping[str, float]
    takes: tuple[str, ...] = ()

    @property
    def has_proxies(self) -> bool:
        return "weight_init_func" in self.takes


_PROXIES = ("num_classes", "embedding_size", "weight_init_func")

# Defaults are the authors': Proxy-Anchor's from the README, the others from the code.
BASES = {
    "triplet": _BaseLoss(MINED["triplet-semihard"], TripletMarginLoss, {"margin": 1.0}),
    "proxyanchor": _BaseLoss(
        BY_NAME["proxyanchor"], ProxyAnchorLoss, {"margin": 0.2, "alpha": 64.0}, _PROXIES
    ),
    "cosface": _BaseLoss(
        BY_NAME["cosface"], _CosFaceLoss, {"margin": 0.35, "scale": 64.0}, _PROXIES
    ),
    "margin": _BaseLoss(
        MINED["margin-dw"],
        partial(MarginLoss, learn_beta=True),
        {"margin": 0.8, "beta": 0.4},
        ("num_classes",),
    ),
}


class DRMLLoss(ReducesInBases, LabelledLoss):
    """A base loss for each group of a RelationHead, and one for its output.

    A group's loss sees the nodes of the samples assigned to that group; every loss has
    parameters of its own. Call `attach(head)` first, then the loss with the head's last output, in
    the same process. Copies and files of both together keep them attached; a loss that is copied
    or loaded alone must be attached to its new head. The module `DRML` holds both. A miner's
    `indices_tuple` concerns the loss on the output alone.

    PML's DistributedLossWrapper works without `efficient`: nodes and errors of the other processes
    are gathered along with their embeddings.

    Args:
        repre_weight: of the loss on the output.
        recon_weight: of the reconstruction error, which trains the decoders only.
        base_params: margin; alpha for "proxyanchor", scale for "cosface", beta for "margin",
            where it is the start of a learned value.
        miner: a PML miner for a pair base: mines within each group, and on the output.
        distance: for the base losses, where it is not their usual one.
        reducer: for the base losses, likewise. PML's DoNothingReducer returns the three terms.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        base: str = "proxyanchor",
        groups: int = 4,
        repre_weight: float = 10.0,
        recon_weight: float = 1.0,
        base_params: Mapping[str, float] | None = None,
        miner: BaseMiner | None = None,
        distance: BaseDistance | None = None,
        reducer: BaseReducer | None = None,
        **kwargs: Any,
    ) -> None:
        check_groups(groups, embedding_size=embedding_size)
        check_not_negative(repre_weight=repre_weight, recon_weight=recon_weight)
        build = _base_builder(base, num_classes, base_params, distance)
        super().__init__(num_classes, embedding_size, distance=distance, **kwargs)
        self.base = base
        self.groups = groups
        self.repre_weight = repre_weight
        self.recon_weight = recon_weight
        self.miner = miner
        # The authors' initialisations; the branches' are normal, the output's uniform.
        self.branch_losses = nn.ModuleList(
            build(embedding_size // groups, nn.init.kaiming_normal_) for _ in range(groups)
        )
        self.repre_loss = build(embedding_size, nn.init.kaiming_uniform_)
        self.distance = self.repre_loss.distance
        self.set_reducer(reducer)
        self._head: RelationHead | None = None
        self.record("groups", "repre_weight", "recon_weight")
        self.add_to_recordable_attributes(
            list_of_names=[f"branch{group}_size" for group in range(groups)], is_stat=True
        )

    def bases(self) -> list[BaseMetricLossFunction]:
        return [*self.branch_losses, self.repre_loss]

    def attach(self, head: RelationHead) -> None:
        """Take nodes and assignments from this head from now on."""
        sizes = (head.embedding_size, head.groups)
        if sizes != (self.embedding_size, self.groups):
            raise ValueError(
                f"the head must have embedding_size={self.embedding_size} and "
                f"groups={self.groups}, got {sizes[0]} and {sizes[1]}"
            )
        # Not as a submodule: its parameters would be the loss's too, and be optimised twice.
        object.__setattr__(self, "_head", head)

    def batch_losses(
        self, embeddings: Tensor, labels: Tensor, indices_tuple: tuple[Tensor, ...] | None
    ) -> LossDict:
        aux = self._last_forward(embeddings)
        branch_loss = self._branch_loss(in_float32(aux.nodes), aux.assignment, labels)
        repre_loss = self._mined_loss(self.repre_loss, embeddings, labels, indices_tuple)
        losses = {
            "branch_loss": branch_loss,
            "repre_loss": self.repre_weight * repre_loss,
            "recon_loss": self.recon_weight * in_float32(aux.errors).mean(),
        }
        return {name: reduced(loss) for name, loss in losses.items()}

    def _last_forward(self, embeddings: Tensor) -> RelationAux:
        aux = None if self._head is None else self._head.aux
        if aux is not None and aux.is_of(embeddings):
            return aux
        if aux is not None and distributed.is_distributed():
            own = embeddings[: len(aux.final)]
            if len(embeddings) == len(own) * get_world_size() and aux.is_of(own):
                return aux.of_all_processes(embeddings)
        raise ValueError(
            "DRMLLoss must be called with the last output of its RelationHead: call attach(head) "
            "first, again if the loss was copied or loaded without the head, and the loss after "
            "each call of the head. The module DRML does all of this"
        )

    def _branch_loss(self, nodes: Tensor, assignment: Tensor, labels: Tensor) -> Tensor:
        is_member = assignment.unsqueeze(1) == torch.arange(self.groups, device=labels.device)
        masked = self._masked_losses(nodes)
        if masked is not None:
            return group_losses(masked, nodes.transpose(0, 1), labels, is_member.t())
        total = nodes.new_zeros(())
        # A base sees members alone; on a GPU it takes one wait to know how many there are.
        sizes = is_member.sum(dim=0).tolist()
        groups = assignment.argsort(stable=True).split(sizes)
        for group, (branch, members) in enumerate(zip(self.branch_losses, groups, strict=True)):
            if self.collect_stats:
                setattr(self, f"branch{group}_size", len(members))
            # A base's mean over no samples would be NaN.
            if len(members) > 0:
                total = total + self._mined_loss(branch, nodes[members, group], labels[members])
        return total

    def _masked_losses(self, nodes: Tensor) -> list[ProxyAnchorLoss] | None:
        """The groups' losses, where these leave samples out without a list of the others."""
        losses = [loss for loss in self.branch_losses if isinstance(loss, ProxyAnchorLoss)]
        possible = (
            len(losses) == self.groups
            and all(loss.has_short_form(nodes) for loss in losses)
            and len({loss.settings() for loss in losses}) == 1
        )
        return losses if possible and self.miner is None and not self.collect_stats else None

    def _mined_loss(
        self,
        loss: nn.Module,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None = None,
    ) -> Tensor:
        if indices_tuple is None and self.miner is not None:
            indices_tuple = self.miner(embeddings, labels)
        value: Tensor = loss(embeddings, labels, indices_tuple)
        return value

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """(batch, classes) the class scores of the loss on the output."""
        if not BASES[self.base].has_proxies:
            raise NotImplementedError(f"DRML over base '{self.base}' has no class scores")
        logits: Tensor = self.repre_loss.get_logits(embeddings)
        return logits

    def _sub_loss_names(self) -> list[str]:
        return ["branch_loss", "repre_loss", "recon_loss"]


class DRML(nn.Module):
    """RelationHead and DRMLLoss in one module, for training without the harness.

        drml = DRML(in_features=512, num_classes=100, embedding_size=128)
        drml(trunk(images), labels).backward()  # trains trunk, head and loss
        embeddings = drml.embed(trunk(images))

    It can be copied, saved and wrapped in DistributedDataParallel like any other module.

    Args:
        in_features: size of the trunk's features; groups must divide it and embedding_size.
        settings: further arguments of DRMLLoss.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        embedding_size: int,
        groups: int = 4,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.head = RelationHead(in_features, embedding_size, groups)
        self.loss = DRMLLoss(num_classes, embedding_size, groups=groups, **settings)
        self.loss.attach(self.head)

    def embed(self, features: Tensor) -> Tensor:
        """(batch, embedding_size) embeddings, not normalised."""
        embeddings: Tensor = self.head(features)
        return embeddings

    def forward(
        self, features: Tensor, labels: Tensor, indices_tuple: tuple[Tensor, ...] | None = None
    ) -> Any:
        """The loss of a batch of (batch, in_features) features."""
        return self.loss(self.head(features), labels, indices_tuple)


def _base_builder(
    base: str,
    num_classes: int,
    base_params: Mapping[str, float] | None,
    distance: BaseDistance | None,
) -> Callable[[int, Callable[..., Tensor]], BaseMetricLossFunction]:
    """A function of (embedding size, initialisation of proxies) that builds one base loss."""
    check_choice("base", base, BASES)
    chosen = BASES[base]
    given = base_params or {}
    check_base_params(base, given, chosen.defaults)
    params: dict[str, Any] = {**chosen.defaults, **given, "distance": distance}

    def build(size: int, init: Callable[..., Tensor]) -> BaseMetricLossFunction:
        given = {
            "num_classes": num_classes,
            "embedding_size": size,
            "weight_init_func": c_f.TorchInitWrapper(init, a=math.sqrt(5)),
        }
        return chosen.loss(**{name: given[name] for name in chosen.takes}, **params)

    return build


def _miner(base: str, base_params: Mapping[str, float]) -> BaseMiner | None:
    """The mining that goes with a pair loss in the authors' experiments."""
    if base == "triplet":
        margin = base_params.get("margin", BASES[base].defaults["margin"])
        return TripletMarginMiner(margin, type_of_triplets="semihard")
    return DistanceWeightedMiner() if base == "margin" else None


def build_loss(
    num_classes: int,
    embedding_size: int,
    *,
    base: str,
    groups: int = 4,
    repre_weight: float = 10.0,
    recon_weight: float = 1.0,
    **base_params: float,
) -> DRMLLoss:
    return DRMLLoss(
        num_classes,
        embedding_size,
        base=base,
        groups=groups,
        repre_weight=repre_weight,
        recon_weight=recon_weight,
        base_params=base_params,
        miner=_miner(base, base_params),
    )


def build_head(in_features: int, embedding_size: int, *, groups: int = 4) -> RelationHead:
    return RelationHead(in_features, embedding_size, groups)


# One group makes the head a linear layer and a remapping of its output.
GROUPS = CategoricalDistribution((1, 2, 4, 8))


def space(dataset: str, num_classes: int, *, base: str) -> Space:
    return {
        "groups": GROUPS,
        # Up to ten times the 30 that we searched to at first, which was best on glyphs.
        "repre_weight": FloatDistribution(0.3, 300.0, log=True),
        **BASES[base].alone.space(dataset, num_classes),
    }


def relation_space(dataset: str, num_classes: int, *, base: str) -> Space:
    return {"groups": GROUPS, **BASES[base].alone.space(dataset, num_classes)}


# The authors publish one configuration, Proxy-Anchor on CUB; the rest are defaults of their
# code. It stands for every data set.
_OFFICIAL_PROTOCOL = {
    "optimizer": "adamw",
    "lr": 5e-5,
    "weight_decay": 1e-4,
    "pooling": "avg+max",
    "batch_size": 180,
    "embedding_size": 512,
    "freeze_batchnorm": True,
    "clip_norm": 10.0,
    # One epoch: the 4,400 images of a fold of CUB, 180 at a time.
    "warmup_steps": 24,
}


def _presets(base: str) -> dict[str, dict[str, Preset]]:
    params: dict[str, Any] = {
        "groups": 4,
        "repre_weight": 10.0,
        "recon_weight": 1.0,
        **BASES[base].defaults,
    }
    if BASES[base].takes:
        params["loss_lr"] = 1e-2
    mlrc = {"cub": params}
    if base == "triplet":
        # Our choice: the reality check's optima. The code's margin of 1 suits no unit vectors.
        margins = {"cub": 0.0961, "cars": 0.1190, "sop": 0.0452}
        mlrc = {dataset: {**params, "margin": margin} for dataset, margin in margins.items()}
    return {
        "mlrc": {dataset: Preset(values) for dataset, values in mlrc.items()},
        "paper": {
            "cub": Preset(params, {"embedding_size": 128, "batch_size": 32}, belongs_to=("mlrc",))
        },
        "official": {
            "cub": Preset(
                {**params, "head_lr": 1e-3}, _OFFICIAL_PROTOCOL, belongs_to=("classic-drml",)
            )
        },
    }


def _method(name: str, base: str, aliases: tuple[str, ...] = ()) -> Method:
    build = partial(build_loss, base=base)
    alone = BASES[base].alone
    return Method(
        name=name,
        paper="Zheng et al., Deep Relational Metric Learning, ICCV 2021",
        build_loss=build,
        loss_params=declared_params(build, dict.fromkeys(BASES[base].defaults, float)),
        build_head=build_head,
        space=partial(space, base=base),
        presets=_presets(base),
        samples_per_class=alone.samples_per_class,
        loss_weight_decay=alone.loss_weight_decay,
        aliases=aliases,
        base=Base(alone.name, replaces_head=True),
        compared_with=(name.replace("drml", "relation"),),  # DRML's head without its loss
    )


def _relation_method(name: str, base: str) -> Method:
    """The base loss alone on DRML's head: what the head does without DRML's loss."""
    alone = BASES[base].alone
    return replace(
        alone,
        name=name,
        paper="Zheng et al., ICCV 2021: the head of DRML under its base loss alone",
        build_head=build_head,
        space=partial(relation_space, base=base),
        presets={
            "mlrc": {
                dataset: Preset({"groups": 4, **preset.params})
                for dataset, preset in alone.presets["mlrc"].items()
            }
        },
        base=Base(alone.name, replaces_head=True),
    )


METHODS = (
    _method("drml-triplet", "triplet"),
    _method("drml-pa", "proxyanchor", aliases=("drml",)),
    _method("drml-cosface", "cosface"),
    _method("drml-margin", "margin"),
    _relation_method("relation-triplet", "triplet"),
    _relation_method("relation-pa", "proxyanchor"),
    _relation_method("relation-cosface", "cosface"),
    _relation_method("relation-margin", "margin"),
)
