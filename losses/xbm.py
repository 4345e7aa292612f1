"""Cross-batch memory (Wang, Zhang, Huang, Scott: "Cross-Batch Memory for Embedding Learning",
CVPR 2020) and the two contrastive losses, C1 and C2, that the CCP paper runs with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from optuna.distributions import FloatDistribution, IntDistribution
from pytorch_metric_learning.losses import BaseMetricLossFunction, ContrastiveLoss
from pytorch_metric_learning.utils import common_functions as c_f
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
from torch import Tensor

from losses.ball import BallDotProductSimilarity, BallLpDistance
from losses.checks import check_embeddings, check_positive
from losses.loss_dict import elements, reduced
from losses.method import STANDS_FOR, Method, Preset, Space


class C1Loss(BaseMetricLossFunction):
    """Contrastive loss on dot products of ball-normalised vectors.

    Each anchor adds up 1 - s - epsilon over its positives and s - margin over its negatives,
    both where above zero; the mean is over anchors, with or without pairs. Sums, not means:
    an anchor with more pairs weighs more.
    """

    def __init__(self, margin: float = 0.5, epsilon: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not self.distance.is_inverted:
            name = type(self.distance).__name__
            raise ValueError(f"C1 is defined on a similarity, got distance={name}")
        self.margin = margin
        self.epsilon = epsilon
        self.add_to_recordable_attributes(list_of_names=["margin", "epsilon"], is_stat=False)

    def compute_loss(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor | None,
    ) -> dict[str, dict[str, Any]]:
        c_f.labels_or_indices_tuple_required(labels, indices_tuple)
        check_embeddings(embeddings)
        # Sums over a memory of thousands of pairs need float32 at least.
        dtype = torch.promote_types(embeddings.dtype, torch.float32)
        with torch.autocast(embeddings.device.type, enabled=False):
            similarities = self.distance(embeddings.to(dtype), ref_emb.to(dtype))
        a1, p, a2, n = lmu.convert_to_pairs(indices_tuple, labels, ref_labels)
        positive = torch.zeros_like(similarities, dtype=torch.bool)
        negative = torch.zeros_like(similarities, dtype=torch.bool)
        positive[a1, p] = True
        negative[a2, n] = True
        pull = (1 - similarities - self.epsilon).relu().where(positive, 0)
        push = (similarities - self.margin).relu().where(negative, 0)
        return {"loss": elements((pull + push).sum(dim=1))}

    def get_default_distance(self) -> BallDotProductSimilarity:
        return BallDotProductSimilarity()


def c2_loss(pos_margin: float = 0.0, neg_margin: float = 0.3841) -> ContrastiveLoss:
    """C2: PML's contrastive loss, its distance taken between ball-normalised vectors."""
    return ContrastiveLoss(pos_margin, neg_margin, distance=BallLpDistance())


class XBMLoss(BaseMetricLossFunction):
    """A pair loss on the batch, plus the same loss between the batch and a queue of past ones.

    The first `start` training batches are neither compared with the queue nor put into it.
    From then on a batch enters the queue before it is compared with it, so that pairs within
    the batch count in both terms; an embedding is never compared with its own copy. In
    eval mode the queue is read but not written.

    A miner's `indices_tuple` and `ref_emb` concern the batch term alone.

    Args:
        base: a PML loss that takes pairs and `ref_emb`.
        memory_size: embeddings in the queue (not batches).
        memory_weight: of the memory term; the batch term has weight 1.
    """

    memory: Tensor
    memory_labels: Tensor
    step: Tensor
    num_enqueued: Tensor

    def __init__(
        self,
        base: BaseMetricLossFunction,
        embedding_size: int,
        memory_size: int = 8192,
        start: int = 2000,
        memory_weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        check_positive(embedding_size=embedding_size, memory_size=memory_size)
        if start < 0 or memory_weight < 0:
            raise ValueError(
                f"start and memory_weight must not be negative, got {start} and {memory_weight}"
            )
        super().__init__(distance=base.distance, **kwargs)
        self.base = base
        self.embedding_size = embedding_size
        self.memory_size = memory_size
        self.start = start
        self.memory_weight = memory_weight
        self.register_buffer("memory", torch.zeros(memory_size, embedding_size))
        self.register_buffer("memory_labels", torch.zeros(memory_size, dtype=torch.long))
        # Training batches seen and embeddings ever put into the queue.
        self.register_buffer("step", torch.tensor(0))
        self.register_buffer("num_enqueued", torch.tensor(0))
        self.add_to_recordable_attributes(
            list_of_names=["memory_size", "start", "memory_weight"], is_stat=False
        )

    def compute_loss(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor | None,
    ) -> dict[str, dict[str, Any]]:
        c_f.labels_required(labels)
        check_embeddings(embeddings, self.embedding_size)
        if len(embeddings) > self.memory_size:
            raise ValueError(
                f"a batch must fit into memory_size={self.memory_size}, got {len(embeddings)}"
            )
        dtype = torch.promote_types(embeddings.dtype, torch.float32)
        with torch.autocast(embeddings.device.type, enabled=False):
            anchors = embeddings.to(dtype)
            if ref_emb is embeddings:
                batch_loss = self.base(anchors, labels, indices_tuple)
            else:
                batch_loss = self.base(
                    anchors, labels, indices_tuple, ref_emb.to(dtype), ref_labels
                )
            memory_loss = self._memory_loss(anchors, labels)
        return {"batch_loss": reduced(batch_loss), "memory_loss": reduced(memory_loss)}

    def _memory_loss(self, embeddings: Tensor, labels: Tensor) -> Tensor | int:
        own_slots = None
        if self.training:
            self.step += 1
            if self.step > self.start:
                own_slots = self._enqueue(embeddings.detach(), labels)
        filled = min(int(self.num_enqueued), self.memory_size)
        if filled == 0:
            return 0
        # A copy: the next batch overwrites slots that this batch's backward may still need.
        memory = self.memory[:filled].clone().to(embeddings)
        memory_labels = self.memory_labels[:filled].to(embeddings.device)
        same = labels.unsqueeze(1) == memory_labels
        different = ~same
        if own_slots is not None:
            same[c_f.torch_arange_from_size(labels), own_slots] = False
        pairs = (*torch.where(same), *torch.where(different))
        return self.memory_weight * self.base(embeddings, labels, pairs, memory, memory_labels)

    def _enqueue(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Overwrite the oldest slots; (batch,) the slots that now hold this batch."""
        dtype = torch.promote_types(self.memory.dtype, embeddings.dtype)
        self.memory = self.memory.to(device=embeddings.device, dtype=dtype)
        self.memory_labels = self.memory_labels.to(labels.device)
        first = int(self.num_enqueued)
        slots = torch.arange(first, first + len(labels), device=labels.device) % self.memory_size
        self.memory[slots] = embeddings.to(dtype)
        self.memory_labels[slots] = labels.long()
        self.num_enqueued += len(labels)
        return slots

    def _sub_loss_names(self) -> list[str]:
        return ["batch_loss", "memory_loss"]


# The reality check's optima, which the CCP paper keeps; it changes CUB's pos_margin from -0.2
# to 0 and gives SOP's values to In-Shop.
C2_MARGINS = {
    "cub": {"pos_margin": 0.0, "neg_margin": 0.3841},
    "cars": {"pos_margin": 0.2652, "neg_margin": 0.5409},
    "sop": {"pos_margin": 0.2858, "neg_margin": 0.5130},
    "inshop": {"pos_margin": 0.2858, "neg_margin": 0.5130},
}
C1_MARGINS = {dataset: {"margin": 0.5} for dataset in C2_MARGINS}

# Embeddings in the smaller and the larger memory of the CCP paper: 3 and 25 batches of 32 on
# CUB and Cars, 400 and 1400 on SOP, 100 and 400 on In-Shop.
MEMORY_SIZES = {
    "cub": (3 * 32, 25 * 32),
    "cars": (3 * 32, 25 * 32),
    "sop": (400 * 32, 1400 * 32),
    "inshop": (100 * 32, 400 * 32),
}


def build_c1(num_classes: int, embedding_size: int, margin: float = 0.5) -> C1Loss:
    del num_classes, embedding_size
    return C1Loss(margin)


def build_c2(
    num_classes: int, embedding_size: int, pos_margin: float = 0.0, neg_margin: float = 0.3841
) -> ContrastiveLoss:
    del num_classes, embedding_size
    return c2_loss(pos_margin, neg_margin)


def build_c1_xbm(
    num_classes: int,
    embedding_size: int,
    margin: float = 0.5,
    memory_size: int = 8192,
    start: int = 2000,
) -> XBMLoss:
    del num_classes
    return XBMLoss(C1Loss(margin), embedding_size, memory_size, start)


def build_c2_xbm(
    num_classes: int,
    embedding_size: int,
    pos_margin: float = 0.0,
    neg_margin: float = 0.3841,
    memory_size: int = 8192,
    start: int = 2000,
) -> XBMLoss:
    del num_classes
    return XBMLoss(c2_loss(pos_margin, neg_margin), embedding_size, memory_size, start)


def space_c1(dataset: str, num_classes: int) -> Space:
    del dataset, num_classes
    return {"margin": FloatDistribution(0.0, 1.0)}


def space_c2(dataset: str, num_classes: int) -> Space:
    # The reality check's bounds for its contrastive loss.
    del dataset, num_classes
    return {"pos_margin": FloatDistribution(-0.2, 2.0), "neg_margin": FloatDistribution(-0.2, 2.0)}


def _memory_space(dataset: str) -> Space:
    key = dataset if dataset in MEMORY_SIZES else STANDS_FOR.get(dataset, "cub")
    small, large = MEMORY_SIZES[key]
    return {"memory_size": IntDistribution(small, large, log=True)}


def space_c1_xbm(dataset: str, num_classes: int) -> Space:
    return {**space_c1(dataset, num_classes), **_memory_space(dataset)}


def space_c2_xbm(dataset: str, num_classes: int) -> Space:
    return {**space_c2(dataset, num_classes), **_memory_space(dataset)}


# What the CCP paper trains with, for the losses it is compared with as for itself.
CCP_PROTOCOL: Mapping[str, Any] = {
    "optimizer": "adam",
    "lr": 1e-5,
    "weight_decay": 1e-4,
    "pooling": "avg",
    "batch_size": 32,
    "samples_per_class": 4,
    "embedding_size": 128,
    "freeze_batchnorm": True,
    "clip_norm": 10.0,
    "clip_value": 10.0,
}


def _plain_presets(margins: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, Preset]]:
    return {
        "mlrc": {dataset: Preset(values) for dataset, values in margins.items()},
        "paper": {dataset: Preset(values, CCP_PROTOCOL) for dataset, values in margins.items()},
    }


def _memory_presets(margins: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, Preset]]:
    params = {
        dataset: {**values, "memory_size": MEMORY_SIZES[dataset][1], "start": 1000}
        for dataset, values in margins.items()
    }
    mlrc = {dataset: Preset(values) for dataset, values in params.items()}
    # Our choice: a run on glyphs may end before its thousandth step, and an untrained network
    # changes too fast for a long memory.
    glyphs = {"memory_size": MEMORY_SIZES["cub"][0], "start": 100}
    mlrc["glyphs"] = Preset({**params["cub"], **glyphs})
    released = {
        dataset: Preset({**values, "memory_size": 8192, "start": 2000})
        for dataset, values in margins.items()
    }
    return {
        "mlrc": mlrc,
        "paper": {dataset: Preset(values, CCP_PROTOCOL) for dataset, values in params.items()},
        # The memory of the XBM authors' code.
        "official": released,
    }


_XBM_PAPER = "Wang et al., Cross-Batch Memory for Embedding Learning, CVPR 2020"
_C2_PAPER = "Hadsell et al., Dimensionality Reduction by Learning an Invariant Mapping, CVPR 2006"

METHODS = (
    Method(
        name="c1",
        paper=_XBM_PAPER + " (its contrastive loss)",
        build_loss=build_c1,
        space=space_c1,
        presets=_plain_presets(C1_MARGINS),
        normalizer="ball",
    ),
    Method(
        name="c2",
        paper=_C2_PAPER,
        build_loss=build_c2,
        space=space_c2,
        presets=_plain_presets(C2_MARGINS),
        normalizer="ball",
    ),
    Method(
        name="c1-xbm",
        paper=_XBM_PAPER,
        build_loss=build_c1_xbm,
        space=space_c1_xbm,
        presets=_memory_presets(C1_MARGINS),
        normalizer="ball",
    ),
    Method(
        name="c2-xbm",
        paper=_XBM_PAPER,
        build_loss=build_c2_xbm,
        space=space_c2_xbm,
        presets=_memory_presets(C2_MARGINS),
        normalizer="ball",
    ),
)
