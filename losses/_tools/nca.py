"""The softmax of neighbourhood component analysis, which ProxyNCA++ and HPL share."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy

from losses._tools.checks import check_choice

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


def check_denominator(denominator: str, fewest_proxies: int) -> None:
    """Raise ValueError for an unknown denominator, or one that would be an empty sum."""
    check_choice("denominator", denominator, DENOMINATORS)
    if denominator == "negatives" and fewest_proxies < 2:
        raise ValueError(f"denominator='negatives' needs 2 proxies or more, got {fewest_proxies}")
