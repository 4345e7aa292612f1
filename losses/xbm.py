"""Cross-batch memory (Wang, Zhang, Huang, Scott: "Cross-Batch Memory for Embedding Learning",
CVPR 2020), over the two contrastive losses that the CCP paper runs it with."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from optuna.distributions import FloatDistribution, IntDistribution
from pytorch_metric_learning.losses import BaseMetricLossFunction
from pytorch_metric_learning.reducers import BaseReducer
from pytorch_metric_learning.utils import common_functions as c_f
from torch import Tensor

from harness.losses._tools.all_pairs import AllPairsContrastiveLoss
from harness.losses._tools.c1 import C1Loss
from harness.losses._tools.ccp_settings import CCP_PROTOCOL, CCP_PROTOCOLS
from harness.losses._tools.checks import check_embeddings, check_not_negative, check_positive
from harness.losses._tools.host_buffers import HostBuffers
from harness.losses._tools.labelled_loss import LossDict, in_float32
from harness.losses._tools.loss_dict import reduced
from harness.losses._tools.reducers import ReducesInBases, check_not_per_anchor
from harness.losses.ball_losses import PAIR_LOSSES, build_pair_loss
from harness.losses.method import (
    STANDS_FOR,
    Base,
    Method,
    NamedSpace,
    Preset,
    Space,
    declared_params,
)


class XBMLoss(HostBuffers, ReducesInBases):
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
        reducer: of the base loss, if that should not reduce as usual. PML's DoNothingReducer
            returns both terms.
    """

    memory: Tensor
    memory_labels: Tensor
    step: Tensor
    num_enqueued: Tensor
    host_buffers = ("step", "num_enqueued")

    def __init__(
        self,
        base: BaseMetricLossFunction,
        embedding_size: int,
        memory_size: int = 8192,
        start: int = 2000,
        memory_weight: float = 1.0,
        reducer: BaseReducer | None = None,
        **kwargs: Any,
    ) -> None:
        check_positive(embedding_size=embedding_size, memory_size=memory_size)
        check_not_negative(start=start, memory_weight=memory_weight)
        super().__init__(distance=base.distance, **kwargs)
        self.base = base
        self.set_reducer(reducer)
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

    def bases(self) -> list[BaseMetricLossFunction]:
        return [self.base]

    def set_reducer(self, reducer: BaseReducer | None) -> None:
        check_not_per_anchor("a memory", reducer)
        super().set_reducer(reducer)

    def forward(self, embeddings: Tensor, *batch: Any, **more: Any) -> Any:
        # PML's reducers give a sum of terms the precision of the embeddings.
        return super().forward(in_float32(embeddings), *batch, **more)

    def compute_loss(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor | None,
    ) -> LossDict:
        c_f.labels_required(labels)
        check_embeddings(embeddings, self.embedding_size)
        if len(embeddings) > self.memory_size:
            raise ValueError(
                f"a batch must fit into memory_size={self.memory_size}, got {len(embeddings)}"
            )
        with torch.autocast(embeddings.device.type, enabled=False):
            references: tuple[Tensor | None, Tensor | None] = (None, None)
            if ref_emb is not embeddings:
                references = (ref_emb.to(embeddings), ref_labels)
            batch_loss = self.base(embeddings, labels, indices_tuple, *references)
            memory_loss = self._memory_loss(embeddings, labels)
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
        base = self.base
        if isinstance(base, C1Loss | AllPairsContrastiveLoss) and base.as_it_comes():
            loss = base.with_references(
                embeddings, labels, memory, memory_labels, left_out=own_slots
            )
            return self.memory_weight * loss
        same = labels.unsqueeze(1) == memory_labels
        different = ~same
        if own_slots is not None:
            same[c_f.torch_arange_from_size(labels), own_slots] = False
        pairs = (*torch.where(same), *torch.where(different))
        return self.memory_weight * base(embeddings, labels, pairs, memory, memory_labels)

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


# Embeddings in the smaller and the larger memory of the CCP paper: 3 and 25 batches of 32 on
# CUB and Cars, 400 and 1400 on SOP, 100 and 400 on In-Shop.
MEMORY_SIZES = {
    "cub": (3 * 32, 25 * 32),
    "cars": (3 * 32, 25 * 32),
    "sop": (400 * 32, 1400 * 32),
    "inshop": (100 * 32, 400 * 32),
}


def build_loss(
    num_classes: int,
    embedding_size: int,
    *,
    pair_loss: str,
    memory_size: int = 8192,
    start: int = 2000,
    memory_weight: float = 1.0,
    **base_params: float,
) -> XBMLoss:
    del num_classes
    base = build_pair_loss(pair_loss, base_params)
    return XBMLoss(base, embedding_size, memory_size, start, memory_weight)


def paper_space(dataset: str, num_classes: int, *, pair_loss: str) -> Space:
    small, large = MEMORY_SIZES.get(dataset, MEMORY_SIZES[STANDS_FOR.get(dataset, "cub")])
    return {
        **PAIR_LOSSES[pair_loss].space(dataset, num_classes),
        "memory_size": IntDistribution(small, large, log=True),
    }


def space(dataset: str, num_classes: int, *, pair_loss: str) -> Space:
    return {
        **paper_space(dataset, num_classes, pair_loss=pair_loss),
        "memory_weight": FloatDistribution(1e-3, 1.0, log=True),
    }


def _with_official(dataset: str) -> tuple[int, int]:
    """The sizes of the CCP paper, stretched to hold that of the XBM authors."""
    small, large = MEMORY_SIZES[dataset]
    return min(small, 8192), max(large, 8192)


def _presets(pair_loss: str) -> dict[str, dict[str, Preset]]:
    margins = PAIR_LOSSES[pair_loss].published
    params = {
        dataset: {
            **values,
            "memory_size": MEMORY_SIZES[dataset][1],
            "memory_weight": 1.0,
            "start": 1000,
        }
        for dataset, values in margins.items()
    }
    mlrc = {dataset: Preset(values) for dataset, values in params.items()}
    # Our choice, without having tried others: a run on glyphs may end before its thousandth step.
    mlrc["glyphs"] = Preset({**params["cub"], "start": 100})
    return {
        "mlrc": mlrc,
        "paper": {
            dataset: Preset(values, CCP_PROTOCOL, belongs_to=CCP_PROTOCOLS)
            for dataset, values in params.items()
        },
        # The memory of the XBM authors' code.
        "official": {
            dataset: Preset(
                {**values, "memory_size": 8192, "start": 2000},
                space={"memory_size": IntDistribution(*_with_official(dataset), log=True)},
            )
            for dataset, values in params.items()
        },
    }


def _method(pair_loss: str) -> Method:
    base = PAIR_LOSSES[pair_loss]
    build = partial(build_loss, pair_loss=pair_loss)
    presets = _presets(pair_loss)
    return Method(
        name=f"{pair_loss}-xbm",
        paper="Wang et al., Cross-Batch Memory for Embedding Learning, CVPR 2020",
        build_loss=build,
        loss_params=declared_params(build, base.types),
        space=partial(space, pair_loss=pair_loss),
        presets=presets,
        normalizer="ball",
        base=Base(base.alone, almost_base_at={"memory_weight": 1e-3}),
        spaces={"paper": NamedSpace(partial(paper_space, pair_loss=pair_loss), presets)},
    )


METHODS = (_method("c1"), _method("c2"))
