"""CCP (Gürbüz, Can, Alatan: "Deep Metric Learning with Chance Constraints", WACV 2024)."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from optuna.distributions import FloatDistribution, IntDistribution
from pytorch_metric_learning.distances import BaseDistance
from pytorch_metric_learning.losses import BaseMetricLossFunction, TripletMarginLoss
from pytorch_metric_learning.reducers import BaseReducer, MeanReducer
from pytorch_metric_learning.utils import common_functions as c_f
from torch import Tensor, nn

from harness.losses._tools.all_pairs import AllPairsContrastiveLoss
from harness.losses._tools.ball import ball_normalize, ball_normalizes
from harness.losses._tools.ccp_settings import CCP_PROTOCOL, CCP_PROTOCOLS
from harness.losses._tools.checks import check_choice, check_not_negative, check_positive
from harness.losses._tools.hooked_loop import ClassImages, HookedLoop
from harness.losses._tools.host_buffers import HostBuffers
from harness.losses._tools.k_center import farthest_points
from harness.losses._tools.labelled_loss import LossDict, ProxyLoss
from harness.losses._tools.loss_dict import reduced
from harness.losses._tools.reducers import ReducesInBases, check_not_per_anchor
from harness.losses._tools.short_form import as_it_comes
from harness.losses.ball_losses import PAIR_LOSSES, build_pair_loss
from harness.losses.baselines import by_dataset
from harness.losses.method import (
    LOSS_LR,
    STANDS_FOR,
    Base,
    Hook,
    HookContext,
    Method,
    NamedSpace,
    Params,
    Preset,
    Space,
    declared_params,
)
from harness.losses.shown_facts import INSTANCES

logger = logging.getLogger(__name__)


class CCPLoss(HostBuffers, ReducesInBases, ProxyLoss):
    """A pair loss between the batch and trainable proxies, plus a little of it within the batch.

    Embeddings and proxies are ball-normalised; proxies are kept raw. Proxy p of class c is row
    p * num_classes + c. They start random: `AlternatingProjections`, or `set_proxies`, sets them to
    embeddings. A miner's `indices_tuple` concerns the batch term alone.

    Args:
        base: "c1", "c2", "ms", "triplet", or any PML loss that takes `ref_emb`. What its
            distance normalises comes on top of the ball.
        batch_share: s in (1 - s) times the loss against the proxies plus s times the loss within
            the batch. 0 is the paper, 1/11 the authors' code but for a factor of 10/11 on the
            whole, 1 the base loss alone.
        batch_loss_weight: w in the first plus w times the second, as the authors' code has it;
            in place of a share, and 0.1 if there is none.
        base_params: of a base given by name: its margins; alpha, beta and base for "ms".
        distance: of a base given by name, where it is not the usual one.
        reducer: of the base loss, if that should not reduce as usual. PML's DoNothingReducer
            returns the sum of both terms.
    """

    proxy_labels: Tensor
    base_alone: Tensor
    host_buffers = ("base_alone",)

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        base: str | BaseMetricLossFunction = "c2",
        proxies_per_class: int = 8,
        batch_loss_weight: float | None = None,
        base_params: Mapping[str, float] | None = None,
        distance: BaseDistance | None = None,
        batch_share: float | None = None,
        reducer: BaseReducer | None = None,
        **kwargs: Any,
    ) -> None:
        check_positive(proxies_per_class=proxies_per_class)
        proxy_weight, batch_weight = term_weights(batch_loss_weight, batch_share)
        if isinstance(base, str):
            base = build_pair_loss(base, base_params, distance)
        elif base_params is not None or distance is not None:
            raise ValueError("base_params and distance belong to a base given by name")
        super().__init__(
            num_classes,
            embedding_size,
            num_proxies=num_classes * proxies_per_class,
            distance=base.distance,
            **kwargs,
        )
        self.base = base
        self.set_reducer(reducer)
        self.proxies_per_class = proxies_per_class
        self.proxy_weight = proxy_weight
        self.batch_weight = batch_weight
        labels = torch.arange(num_classes).repeat(proxies_per_class)
        self.register_buffer("proxy_labels", labels, persistent=False)
        # Until there are embeddings to pick proxies from, the base loss trains alone.
        self.register_buffer("base_alone", torch.tensor(False))
        self.record("proxies_per_class", "proxy_weight", "batch_weight")

    def bases(self) -> list[BaseMetricLossFunction]:
        return [self.base]

    def set_reducer(self, reducer: BaseReducer | None) -> None:
        check_not_per_anchor("CCP", reducer)
        super().set_reducer(reducer)

    def has_short_form(
        self, embeddings: Tensor, indices_tuple: tuple[Tensor, ...] | None = None
    ) -> bool:
        return as_it_comes(self, MeanReducer, indices_tuple)

    def reduced_loss(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return self._loss(embeddings, labels, None)

    def batch_losses(
        self, embeddings: Tensor, labels: Tensor, indices_tuple: tuple[Tensor, ...] | None
    ) -> LossDict:
        return {"loss": reduced(self._loss(embeddings, labels, indices_tuple))}

    def _loss(
        self, embeddings: Tensor, labels: Tensor, indices_tuple: tuple[Tensor, ...] | None
    ) -> Tensor:
        base, weights = self.base, (self.proxy_weight, self.batch_weight)
        if self.base_alone:
            weights = (0.0, 1.0)
        proxies, proxy_labels = self.proxies.to(embeddings), self.proxy_labels.to(labels.device)
        if not ball_normalizes(self.distance):
            embeddings, proxies = ball_normalize(embeddings), ball_normalize(proxies)
        if weights[0] == 0:
            loss: Tensor = base(embeddings, labels, indices_tuple)
            return weights[1] * loss
        if isinstance(base, AllPairsContrastiveLoss) and base.as_it_comes(indices_tuple):
            return base.with_references(embeddings, labels, proxies, proxy_labels, weights)
        triplets = self._proxy_triplets(labels)
        loss = weights[0] * base(embeddings, labels, triplets, proxies, proxy_labels)
        if weights[1] > 0:
            loss = loss + weights[1] * base(embeddings, labels, indices_tuple)
        return loss

    def _proxy_triplets(self, labels: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """All triplets, for a base that takes them all; None lets a base find its pairs.

        PML would look for them in a batch x proxies x proxies mask: 2 GB at a thousand classes.
        """
        takes_all = isinstance(self.base, TripletMarginLoss) and (
            self.base.triplets_per_anchor == "all"
        )
        if not takes_all:
            return None
        # Counted out, as torch.where would list them, but for its wait until a GPU has counted.
        others = torch.arange(self.num_classes - 1, device=labels.device)
        others = others + (others >= labels.unsqueeze(1))  # (batch, classes - 1) all but the own
        firsts = torch.arange(self.proxies_per_class, device=labels.device) * self.num_classes
        positives = (labels.unsqueeze(1) + firsts).unsqueeze(2)
        negatives = (firsts.unsqueeze(1) + others.unsqueeze(1)).flatten(1).unsqueeze(1)
        anchors = c_f.torch_arange_from_size(labels).view(-1, 1, 1)
        shape = (len(labels), positives.shape[1], negatives.shape[2])
        a, p, n = (part.expand(shape).flatten() for part in (anchors, positives, negatives))
        return a, p, n

    def logits(self, embeddings: Tensor) -> Tensor:
        """(batch, classes) the largest similarity (or -distance) to any proxy of the class."""
        proxies = self.proxies.to(embeddings)
        matrix = self.distance(ball_normalize(embeddings), ball_normalize(proxies))
        similarities = matrix if self.distance.is_inverted else -matrix
        return similarities.view(-1, self.proxies_per_class, self.num_classes).amax(dim=1)

    def class_proxies(self) -> Tensor:
        """(classes, proxies per class, dim) a copy of the raw proxies."""
        shape = (self.proxies_per_class, self.num_classes, self.embedding_size)
        return self.proxies.detach().view(shape).transpose(0, 1).clone()

    @torch.no_grad()
    def set_proxies(self, proxies: Tensor) -> None:
        """Overwrite the proxies in place with (classes, proxies per class, dim) vectors."""
        expected = (self.num_classes, self.proxies_per_class, self.embedding_size)
        if tuple(proxies.shape) != expected:
            raise ValueError(f"proxies must have shape {expected}, got {tuple(proxies.shape)}")
        if not torch.isfinite(proxies).all():
            raise ValueError("proxies must be finite, some are not")
        self.proxies.copy_(proxies.transpose(0, 1).reshape(self.proxies.shape))

    def get_default_weight_init_func(self) -> c_f.TorchInitWrapper:
        return c_f.TorchInitWrapper(torch.nn.init.kaiming_normal_)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *args: Any) -> None:
        # A state of before there was a start had its proxies from the first step on.
        state.setdefault(f"{prefix}base_alone", torch.tensor(False))
        super()._load_from_state_dict(state, prefix, *args)


def term_weights(batch_loss_weight: float | None, batch_share: float | None) -> tuple[float, float]:
    """What the loss against the proxies counts for, and that within the batch."""
    if batch_share is None:
        weight = 0.1 if batch_loss_weight is None else batch_loss_weight
        check_not_negative(batch_loss_weight=weight)
        return 1.0, weight
    if batch_loss_weight is not None:
        raise ValueError(
            "batch_share and batch_loss_weight say the same in two ways: give one of them, got "
            f"{batch_share} and {batch_loss_weight}"
        )
    if not 0 <= batch_share <= 1:
        raise ValueError(f"batch_share must lie between 0 and 1, got {batch_share}")
    return 1 - batch_share, batch_share


class AlternatingProjections(Hook):
    """CCP's sequence of proxy problems.

    Each instance trains against proxies picked from fresh embeddings, far from the proxies
    that served the previous instance best. When `patience` validations in a row bring no
    improvement, the next instance starts: from the current weights, with new proxies, and with
    (weight / 2) |weights - best weights of the last instance|^2 added to the objective. The
    first instance has no such term.

    Proxies are picked from embeddings, and a network with random weights has none to speak of:
    its first `start` steps train the base loss alone, and the first instance begins after them.

    The harness calls it as a hook. `in_loop` serves training loops of your own and PML's trainers,
    `HookCallback` serves Lightning.

    Args:
        start: steps of the base loss alone.
        pool_size: images per class to pick proxies from. If it is smaller than the number of
            proxies, that many images per proxy; if it is 1, the drawn images are the proxies.
        reference_weight: of the pull towards the last instance's best weights.
        decay: multiplies the weight with each further instance.
        monitor: "score" judges by the validation score; "loss", for training without
            validation, by the mean training loss since the last call.
    """

    def __init__(
        self,
        pool_size: int = 12,
        reference_weight: float = 2e-4,
        decay: float = 1.0,
        patience: int = 3,
        min_improvement: float = 1e-5,
        monitor: str = "score",
        start: int = 0,
    ) -> None:
        check_positive(pool_size=pool_size, decay=decay, patience=patience)
        check_not_negative(reference_weight=reference_weight, start=start)
        check_choice("monitor", monitor, ("score", "loss"))
        self.pool_size = pool_size
        self.reference_weight = reference_weight
        self.decay = decay
        self.patience = patience
        self.min_improvement = min_improvement
        self.monitor = monitor
        self.start = start
        self.instance = 0
        self.best = -math.inf
        self.wait = 0
        # None stands for zeros, of a shape that only the model knows.
        self.reference: dict[str, Tensor] | None = None
        self.best_weights: dict[str, Tensor] | None = None
        self.best_proxies: Tensor | None = None
        self.renewed: list[int] = []  # steps that were done when new proxies were picked

    def in_loop(
        self,
        model: nn.Module,
        loss: CCPLoss,
        class_images: ClassImages,
        state: Mapping[str, Any] | None = None,
    ) -> HookedLoop:
        """Pick the first proxies, and return what a training loop calls; see HookedLoop."""
        return HookedLoop(self, model, loss, class_images, state)

    @property
    def current_weight(self) -> float:
        """The reference weight of the running instance."""
        if self.instance == 0:
            return 0.0
        return self.reference_weight * self.decay**self.instance

    def on_train_begin(self, context: HookContext) -> None:
        if self.start == 0:
            self._renew_proxies(context)
        else:
            _ccp_loss(context).base_alone.fill_(True)

    @torch.no_grad()
    def after_backward(self, context: HookContext) -> None:
        if context.step == self.start - 1:  # the last step of the base alone
            self._renew_proxies(context)
            _ccp_loss(context).base_alone.fill_(False)
        weight = self.current_weight
        if weight == 0:
            return
        parameters: list[Tensor] = []
        gradients: list[Tensor] = []
        references: list[Tensor] = []
        for name, parameter in context.model.named_parameters():
            if parameter.requires_grad and parameter.grad is not None:
                parameters.append(parameter)
                gradients.append(parameter.grad)
                references.append(self._reference(name, parameter))
        if parameters:  # all in two calls: a network has hundreds of them
            torch._foreach_add_(gradients, torch._foreach_sub(parameters, references), alpha=weight)

    def _reference(self, name: str, parameter: Tensor) -> Tensor:
        if self.reference is None:
            return torch.zeros_like(parameter)
        # Moves once, after a checkpoint was loaded to another device.
        self.reference[name] = self.reference[name].to(parameter.device)
        return self.reference[name]

    def on_validation_end(self, context: HookContext, score: float) -> None:
        if self.start > 0 and context.step <= self.start:
            return  # of the base's weights
        value = score if self.monitor == "score" else -context.train_loss
        if value > self.best + self.min_improvement:
            self.best = value
            self.wait = 0
            self.best_weights = _snapshot(context.model)
            self.best_proxies = _ccp_loss(context).class_proxies()
        else:
            self.wait += 1
        if self.wait == self.patience:
            self._next_instance(context)

    def _next_instance(self, context: HookContext) -> None:
        logger.info("ccp: instance %d ends at step %d", self.instance, context.step)
        self.reference = self.best_weights
        self.instance += 1
        self._renew_proxies(context)
        self.best = -math.inf
        self.wait = 0

    def _renew_proxies(self, context: HookContext) -> None:
        loss = _ccp_loss(context)
        self.renewed.append(context.step)
        if self.pool_size == 1:
            loss.set_proxies(context.embed_class_pool(loss.proxies_per_class))
            return
        size = self.pool_size
        if size < loss.proxies_per_class:
            size *= loss.proxies_per_class
        pool = context.embed_class_pool(size)
        centres = self.best_proxies
        if centres is None:
            centres = torch.zeros_like(loss.class_proxies())
        loss.set_proxies(farthest_points(pool, centres))

    def stages_ended(self) -> int:
        return self.instance

    def facts(self) -> dict[str, Any]:
        return {
            INSTANCES.name: self.instance + 1,
            **({"start": self.start} if self.start else {}),
            "events": {"new proxies": self.renewed},
        }

    def state_dict(self) -> dict[str, Any]:
        state = {name: getattr(self, name) for name in self._STATE}
        return {**state, "renewed": list(self.renewed)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name in self._STATE:
            setattr(self, name, state[name])
        self.renewed = list(state.get("renewed", []))  # which older checkpoints do not have

    _STATE = ("instance", "best", "wait", "reference", "best_weights", "best_proxies")


def _snapshot(model: nn.Module) -> dict[str, Tensor]:
    # All of them, for those that are frozen now may not be in the next instance.
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def _ccp_loss(context: HookContext) -> CCPLoss:
    if not isinstance(context.loss, CCPLoss):
        name = type(context.loss).__name__
        raise ValueError(f"alternating projections train a CCPLoss, got {name}")
    return context.loss


def build_loss(
    num_classes: int,
    embedding_size: int,
    *,
    pair_loss: str,
    proxies_per_class: int = 8,
    batch_share: float | None = None,
    batch_loss_weight: float | None = None,
    **base_params: float,
) -> CCPLoss:
    return CCPLoss(
        num_classes,
        embedding_size,
        base=pair_loss,
        proxies_per_class=proxies_per_class,
        batch_loss_weight=batch_loss_weight,
        base_params=base_params,
        batch_share=batch_share,
    )


def build_hook(
    *,
    proxies_per_class: int = 8,
    reference_weight: float = 2e-4,
    pool_ratio: float = 1.5,
    pool_size: int | None = None,
    decay: float = 1.0,
    patience: int = 3,
    min_improvement: float = 1e-5,
    monitor: str = "score",
    start: int = 0,
) -> AlternatingProjections:
    """The hook; the pool holds pool_ratio images for each proxy, or pool_size for all."""
    check_positive(pool_ratio=pool_ratio)
    if pool_size is None:
        pool_size = max(1, round(pool_ratio * proxies_per_class))
    return AlternatingProjections(
        pool_size, reference_weight, decay, patience, min_improvement, monitor, start
    )


def paper_space(dataset: str, num_classes: int) -> Space:
    """The paper keeps each base loss's published parameters, and its own batch term."""
    del num_classes
    many_classes = STANDS_FOR.get(dataset, dataset) == "sop"
    return {
        "reference_weight": FloatDistribution(1e-5, 1e-1, log=True),
        # From a single proxy, which was best on glyphs, there is no way down.
        "proxies_per_class": IntDistribution(1, 4 if many_classes else 12),
        "pool_ratio": FloatDistribution(1.0, 2.0),
    }


def space(dataset: str, num_classes: int, *, pair_loss: str) -> Space:
    """All that the base loss searches, the paper's but for the pool, and what the two share.

    The ratio of the pool hardly mattered in our searches.
    """
    own = dict(paper_space(dataset, num_classes))
    del own["pool_ratio"]
    return {
        **PAIR_LOSSES[pair_loss].space(dataset, num_classes),
        **own,
        "batch_share": FloatDistribution(0.0, 1.0),
        "loss_lr": LOSS_LR,
    }


# Pools of 12 images for 8 proxies, 7 for 4.
_PROXIES_AND_POOL = by_dataset(proxies_per_class=(8, 8, 4, 4), pool_ratio=(1.5, 1.5, 1.75, 1.75))


def _presets(pair_loss: str, authors: Params, paper: Params) -> dict[str, dict[str, Preset]]:
    """Presets that differ in how the batch counts: as in the authors' code, and in the paper."""

    def published(batch_term: Params, protocol: Mapping[str, Any]) -> dict[str, Preset]:
        return {
            dataset: Preset(
                {
                    "reference_weight": 2e-4,
                    **_PROXIES_AND_POOL[dataset],
                    **batch_term,
                    **base_params,
                },
                protocol,
                belongs_to=CCP_PROTOCOLS if protocol else (),
            )
            for dataset, base_params in PAIR_LOSSES[pair_loss].published.items()
        }

    return {
        "mlrc": published(authors, {}),
        "paper": published(paper, CCP_PROTOCOL),
        "official": published(authors, CCP_PROTOCOL),
    }


# The paper's proxies have the network's learning rate.
_PROXY_LR = {"loss_lr": CCP_PROTOCOL["lr"]}


def _method(pair_loss: str, aliases: tuple[str, ...] = ()) -> Method:
    base = PAIR_LOSSES[pair_loss]
    build = partial(build_loss, pair_loss=pair_loss)
    as_published = _presets(pair_loss, {"batch_loss_weight": 0.1}, {"batch_loss_weight": 0.0})
    return Method(
        name=f"ccp-{pair_loss}",
        paper="Gürbüz et al., Deep Metric Learning with Chance Constraints, WACV 2024",
        build_loss=build,
        loss_params=declared_params(build, base.types),
        build_hook=build_hook,
        space=partial(space, pair_loss=pair_loss),
        presets=_presets(
            pair_loss, {"batch_share": 1 / 11, **_PROXY_LR}, {"batch_share": 0.0, **_PROXY_LR}
        ),
        normalizer="ball",
        aliases=aliases,
        base=Base(base.alone, almost_base_at={"batch_share": 1.0, "reference_weight": 1e-5}),
        compared_with=(f"{pair_loss}-xbm",) if pair_loss in ("c1", "c2") else (),
        spaces={"paper": NamedSpace(paper_space, as_published)},
    )


METHODS = (_method("c1"), _method("c2", aliases=("ccp",)), _method("ms"), _method("triplet"))
