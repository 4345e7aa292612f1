"""The softmax of neighbourhood component analysis, which ProxyNCA++ and HPL share."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax, nll_loss, softmax

from harness.losses._tools.checks import check_choice
from harness.losses._tools.cosine import Formula

DENOMINATORS = ("all", "negatives")


def nca_losses(logits: Tensor, labels: Tensor, denominator: str) -> Tensor:
    """(batch,) -log of each sample's softmax probability of its own class.

    With "negatives" the softmax leaves the own class out of its denominator, as the first
    ProxyNCA did; that is no probability, and the loss can be negative.
    """
    if denominator == "all":
        return cross_entropy(logits, labels, reduction="none")
    own = labels.unsqueeze(1)
    others = logits.scatter(1, own, float("-inf")).logsumexp(dim=1)
    return others - logits.gather(1, own).squeeze(1)


def nca_formula(labels: Tensor, scale: float) -> Formula:
    """The mean cross-entropy over scale * cosines, with all proxies in the denominator."""

    def formula(cosines: Tensor) -> tuple[Tensor, Tensor]:
        loss, slopes = cross_entropy_and_slopes(cosines * scale, labels)
        return loss, slopes.mul_(scale)

    return formula


def cross_entropy_and_slopes(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The mean cross-entropy, and its derivative by each logit."""
    loss = nll_loss(log_softmax(logits, dim=1), labels)
    slopes = softmax(logits, dim=1).div_(len(labels))
    own = labels.unsqueeze(1)
    slopes.scatter_add_(1, own, slopes.new_full((), -1 / len(labels)).expand(own.shape))
    return loss, slopes


def check_denominator(denominator: str, fewest_proxies: int) -> None:
    """Raise ValueError for an unknown denominator, or one that would be an empty sum."""
    check_choice("denominator", denominator, DENOMINATORS)
    if denominator == "negatives" and fewest_proxies < 2:
        raise ValueError(f"denominator='negatives' needs 2 proxies or more, got {fewest_proxies}")
