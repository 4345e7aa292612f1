"""ProxyGML (Zhu, Yang, Deng, Wei: "Fewer is More: A Deep Graph Metric Learning Perspective
Using Fewer Proxies", NeurIPS 2020)."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from optuna.distributions import FloatDistribution, IntDistribution
from pytorch_metric_learning.reducers import MeanReducer
from pytorch_metric_learning.utils import common_functions as c_f
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from harness.losses._tools.checks import check_cosine, check_not_negative, check_positive
from harness.losses._tools.cosine import Formula, cosine_similarities, plain_cosine
from harness.losses._tools.first_gradient import first_gradient_only
from harness.losses._tools.labelled_loss import LossDict, ProxyLoss
from harness.losses._tools.loss_dict import elements, reduced, weighted
from harness.losses._tools.nca import cross_entropy_and_slopes
from harness.losses._tools.normalize import divided, through_division_
from harness.losses._tools.short_form import as_it_comes
from harness.losses.method import LOSS_LR, STANDS_FOR, Method, Preset, Space, note_adjusted

# Similarities of the proxy term held at a time (16 MB in float32).
CHUNK_ELEMENTS = 2**22


def num_selected(ratio: float, num_classes: int, proxies_per_class: int) -> int:
    """How many proxies each sample is compared with: ceil(ratio * all proxies), at least 1."""
    total = num_classes * proxies_per_class
    # 0.07 * 100 is 7.000000000000001 in floating point, which must not become 8.
    return min(max(math.ceil(ratio * total - 1e-9), 1), total)


def select_proxies(
    similarities: Tensor, labels: Tensor, k: int, positive_mask: bool = True
) -> Tensor:
    """(batch, classes, proxies per class) 1 for each sample's k nearest, 0 for others.

    Of floats: arithmetic on them is several times as fast as on booleans.

    Args:
        positive_mask: whether a sample's own proxies come first.
    """
    ranked = similarities.detach()
    if positive_mask:
        own = labels.unsqueeze(1) == torch.arange(ranked.shape[1], device=labels.device)
        # Above any difference of cosines, yet small enough to keep their order among own proxies.
        ranked = ranked.add(own.unsqueeze(2), alpha=4)
    flat = ranked.flatten(1)
    nearest = flat.topk(k, dim=1, sorted=False).indices
    return torch.zeros_like(flat).scatter_(1, nearest, 1).view_as(ranked)


class _ShortForm(torch.autograd.Function):
    """The means of both terms added up, with their gradients along with them.

    Both go through the same unit proxies, and what is as large as these is seldom written.
    """

    @staticmethod
    def forward(
        ctx: Any, embeddings: Tensor, proxies: Tensor, formula: Formula, reg: tuple[float, int]
    ) -> Tensor:
        unit, inverse = divided(embeddings)
        unit_proxies, proxy_inverse = divided(proxies)
        loss, slopes = formula(unit @ unit_proxies.t())
        by_unit, by_unit_proxies = slopes @ unit_proxies, slopes.t() @ unit
        reg_weight, num_classes = reg
        if reg_weight > 0:
            by_class = unit_proxies.view(num_classes, -1, unit.shape[1])
            sums = by_class.sum(dim=1)
            labels = torch.arange(len(proxies), device=proxies.device) // by_class.shape[1]
            proxy_loss, slopes = cross_entropy_and_slopes(unit_proxies @ sums.t(), labels)
            by_unit_proxies.addmm_(slopes, sums, alpha=reg_weight)
            by_sums = torch.mm(slopes.t(), unit_proxies).mul_(reg_weight)
            by_unit_proxies.view_as(by_class).add_(by_sums.unsqueeze(1))
            loss = torch.add(loss, proxy_loss, alpha=reg_weight)
        ctx.save_for_backward(
            through_division_(by_unit, unit, inverse),
            through_division_(by_unit_proxies, unit_proxies, proxy_inverse),
        )
        return loss

    @staticmethod
    @first_gradient_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        of_embeddings, of_proxies = ctx.saved_tensors
        return of_embeddings * grad, of_proxies * grad, None, None


def _rows_cross_entropy(rows: Tensor, class_sums: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(rows @ class_sums.t(), labels, reduction="none")


def proxy_losses(proxies: Tensor, num_classes: int) -> Tensor:
    """(all proxies,) cross-entropy of each unit proxy's similarity sums with every class.

    The sums are taken before the product, P (P^T Y) instead of (P P^T) Y, and the product goes
    over a few rows at a time that backward computes again: no matrix of all pairs, not even
    with one proxy per class.
    """
    class_sums = proxies.view(num_classes, -1, proxies.shape[1]).sum(dim=1)
    labels = torch.arange(num_classes, device=proxies.device)
    labels = labels.repeat_interleave(len(proxies) // num_classes)
    rows_at_a_time = max(1, CHUNK_ELEMENTS // num_classes)
    if len(proxies) <= rows_at_a_time:
        return _rows_cross_entropy(proxies, class_sums, labels)
    parts = [
        checkpoint(
            _rows_cross_entropy,
            rows,
            class_sums,
            rows_labels,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for rows, rows_labels in zip(
            torch.split(proxies, rows_at_a_time), torch.split(labels, rows_at_a_time), strict=True
        )
    ]
    return torch.cat(parts)


class ProxyGMLLoss(ProxyLoss):
    """Softmax over class sums of the similarities to each sample's k nearest proxies.

    Proxies of class c are rows c*N to c*N+N-1. Classes without a selected proxy are left out
    of a sample's softmax. There is no temperature: the number of proxies per class acts as one.
    A reducer applies to the losses of the samples; the proxy term is always a mean.

    Args:
        ratio: k is this part of all proxies, rounded up. With ratio * num_classes <= 1 only
            own proxies are selected, and the sample term is zero.
        reg_weight: weight of the proxy term, which classifies the proxies among themselves;
            0 leaves it out.
        scale: multiplies the class sums.
        positive_mask: select a sample's own proxies before all others; off, the nearest alone.
        masked_softmax: leave classes without a selected proxy out of a sample's softmax; off,
            they stand in it with a sum of zero, as a sample's own class always does.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        proxies_per_class: int = 12,
        ratio: float = 0.05,
        reg_weight: float = 0.3,
        scale: float = 1.0,
        positive_mask: bool = True,
        masked_softmax: bool = True,
        **kwargs: Any,
    ) -> None:
        check_positive(proxies_per_class=proxies_per_class, ratio=ratio, scale=scale)
        check_not_negative(reg_weight=reg_weight)
        if ratio > 1:
            raise ValueError(f"ratio is a part of all proxies and must be at most 1, got {ratio}")
        # Before super().__init__: PML asks for the names of the sub-losses in there.
        self.reg_weight = reg_weight
        super().__init__(
            num_classes, embedding_size, num_proxies=num_classes * proxies_per_class, **kwargs
        )
        check_cosine("ProxyGML", self.distance)
        self.proxies_per_class = proxies_per_class
        self.ratio = ratio
        self.scale = scale
        self.positive_mask = positive_mask
        self.masked_softmax = masked_softmax
        self.num_selected = num_selected(ratio, num_classes, proxies_per_class)
        self.record("proxies_per_class", "ratio", "num_selected")
        if positive_mask and num_classes > 1 and self.num_selected <= proxies_per_class:
            warnings.warn(
                f"ratio={ratio} of {num_classes} x {proxies_per_class} proxies selects "
                f"{self.num_selected}, all of them a sample's own: the sample term is zero. "
                f"Above 1/num_classes = {1 / num_classes:.3g} it is not.",
                stacklevel=2,
            )

    def has_short_form(
        self, embeddings: Tensor, indices_tuple: tuple[Tensor, ...] | None = None
    ) -> bool:
        return (
            self.num_classes * len(self.proxies) <= CHUNK_ELEMENTS
            and as_it_comes(self, MeanReducer, indices_tuple)
            and plain_cosine(self.distance)
        )

    def reduced_loss(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        proxies = self.proxies.to(embeddings)

        def formula(cosines: Tensor) -> tuple[Tensor, Tensor]:
            similarities = cosines.view(len(cosines), self.num_classes, -1)
            sums, selected = self._class_sums(similarities, labels)
            loss, by_sums = cross_entropy_and_slopes(sums, labels)
            return loss, (selected * by_sums.mul_(self.scale).unsqueeze(2)).view_as(cosines)

        return _ShortForm.apply(embeddings, proxies, formula, (self.reg_weight, self.num_classes))

    def batch_losses(
        self, embeddings: Tensor, labels: Tensor, indices_tuple: tuple[Tensor, ...] | None
    ) -> LossDict:
        losses = self._sample_losses(embeddings, labels)
        loss_dict = {"loss": elements(weighted(losses, labels, indices_tuple))}
        if self.reg_weight > 0:
            unit = self.distance.normalize(self.proxies.to(embeddings))
            proxy_term = self.reg_weight * proxy_losses(unit, self.num_classes)
            # One loss per proxy, not per sample: reducers that look up labels cannot read it.
            loss_dict["proxy_reg_loss"] = reduced(proxy_term.mean())
        return loss_dict

    def logits(self, embeddings: Tensor) -> Tensor:
        """(batch, classes) similarity sums over all of a class's proxies.

        Without labels there is no telling a sample's own proxies, so nothing is left out.
        """
        return self.scale * self._similarities(embeddings).sum(dim=2)

    def _similarities(self, embeddings: Tensor) -> Tensor:
        proxies = self.proxies.to(embeddings)
        similarities = cosine_similarities(self.distance, embeddings, proxies)
        return similarities.view(len(embeddings), self.num_classes, self.proxies_per_class)

    def _sample_losses(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        similarities = self._similarities(embeddings)
        sums, _ = self._class_sums(similarities, labels)
        return cross_entropy(sums, labels, reduction="none")

    def _class_sums(self, similarities: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """(batch, classes) what the softmax is taken of, and which proxies it was summed over."""
        selected = select_proxies(similarities, labels, self.num_selected, self.positive_mask)
        sums = self.scale * (similarities * selected).sum(dim=2)
        if self.masked_softmax:
            # By count, not by sum: selected similarities may well add up to zero.
            absent = selected.amax(dim=2) == 0
            if not self.positive_mask:
                absent = absent.scatter(1, labels.unsqueeze(1), False)
            sums = sums.masked_fill(absent, -torch.inf)
        return sums, selected

    def _sub_loss_names(self) -> list[str]:
        return ["loss", "proxy_reg_loss"] if self.reg_weight > 0 else ["loss"]

    def get_default_weight_init_func(self) -> c_f.TorchInitWrapper:
        # Uniform within 1/sqrt(number of proxies): the authors hold proxies as columns, so
        # their fan-in is our fan-out.
        return c_f.TorchInitWrapper(torch.nn.init.kaiming_uniform_, a=math.sqrt(5), mode="fan_out")


def build_loss(
    num_classes: int,
    embedding_size: int,
    *,
    ratio: float = 0.05,
    reg_weight: float = 0.3,
    proxies_per_class: int = 12,
    scale: float = 1.0,
    positive_mask: bool = True,
    masked_softmax: bool = True,
) -> ProxyGMLLoss:
    """The loss from its parameters, made to suit few classes and very many."""
    few = num_classes < FEW_CLASSES
    many = num_classes * proxies_per_class > MANY_PROXIES
    used_ratio = max(ratio, _least_ratio(num_classes)) if few else ratio
    used_weight = 0.0 if many else reg_weight
    loss = ProxyGMLLoss(
        num_classes,
        embedding_size,
        proxies_per_class,
        used_ratio,
        used_weight,
        scale,
        positive_mask=positive_mask,
        masked_softmax=masked_softmax,
    )
    fewest = f"of {num_classes} classes a smaller part selects a sample's own proxies alone"
    note_adjusted(loss, "ratio", ratio, used_ratio, fewest)
    most = f"more than {MANY_PROXIES:,} proxies: classifying them costs more than the network"
    note_adjusted(loss, "reg_weight", reg_weight, used_weight, most)
    return loss


# The published ratio of 0.05 was chosen with 98 classes and more. From 30 classes down it
# selects next to nothing but a sample's own proxies, so there the ratio is raised; above, a
# ratio is taken as it is, even one that leaves no negatives.
FEW_CLASSES = 30
# Proxies from which the proxy term costs more than the network; the authors leave it out on
# their largest data set too.
MANY_PROXIES = 20_000


def _least_ratio(num_classes: int) -> float:
    return 1.5 / num_classes


def space(dataset: str, num_classes: int) -> Space:
    large = STANDS_FOR.get(dataset, dataset) == "sop"
    lowest = min(max(0.02, _least_ratio(num_classes)), 0.05)
    return {
        "proxies_per_class": IntDistribution(1, 4 if large else 16),
        "ratio": FloatDistribution(lowest, 0.5, log=True),
        # Up to 1 at first, which was best on glyphs.
        "reg_weight": FloatDistribution(0.0, 4.0),
        "loss_lr": LOSS_LR,
    }


def _params(proxies_per_class: int, reg_weight: float, loss_lr: float) -> dict[str, Any]:
    return {
        "proxies_per_class": proxies_per_class,
        "ratio": 0.05,
        "reg_weight": reg_weight,
        "loss_lr": loss_lr,
    }


def _published(params: dict[str, Any], freeze_batchnorm: bool) -> Preset:
    # eps = 0.01 tames the large learning rates of the proxies: one does not go without the other.
    protocol = {
        "optimizer": "adam",
        "optimizer_eps": 0.01,
        "lr": 1e-4,
        "weight_decay": 1e-4,
        "pooling": "avg",
        "batch_size": 32,
        "samples_per_class": 1,
        "embedding_size": 512,
        "freeze_batchnorm": freeze_batchnorm,
    }
    return Preset(params, protocol, belongs_to=("classic-proxygml",))


# The authors' learning rates, 0.03 (SOP: 0.3), go with Adam's eps = 0.01; with an ordinary eps such
# a step is longer than a proxy at its start. These are the reality check's best for SoftTriple,
# whose proxies start alike.
MLRC = {
    "cub": Preset(_params(12, 0.3, 5.376e-5)),
    "cars": Preset(_params(12, 0.3, 1.4034e-4)),
    "sop": Preset(_params(1, 0.0, 8.6885e-5)),
}
# Picked among nine rates on glyphs' validation folds, after 400 steps of `convnet`: mean MAP@R
# 0.195, against 0.071 at 1e-3.
OURS = {**MLRC, "glyphs": Preset(_params(12, 0.3, 2e-5), tuned_by_us=True)}
# The paper's settings as the authors' run script has them, under both names.
PUBLISHED = {
    "cub": _published(_params(12, 0.3, 0.03), freeze_batchnorm=True),
    "cars": _published(_params(12, 0.3, 0.03), freeze_batchnorm=True),
    "sop": _published(_params(1, 0.0, 0.3), freeze_batchnorm=False),
}

METHODS = (
    Method(
        name="proxygml",
        paper="Zhu et al., Fewer is More: A Deep Graph Metric Learning Perspective Using Fewer "
        "Proxies, NeurIPS 2020",
        build_loss=build_loss,
        space=space,
        presets={"mlrc": MLRC, "paper": PUBLISHED, "official": PUBLISHED, "ours": OURS},
        samples_per_class=1,
        compared_with=("softtriple", "proxynca"),
    ),
)
