"""What the losses cost, as ratios against a peer timed in the same run.

python -m benchmarks.losses            # about five minutes on two cores
python -m benchmarks.losses --quick    # tiny sizes, to see that it runs
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import torch
import torchvision
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.losses import ContrastiveLoss, ProxyAnchorLoss, ProxyNCALoss
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize, one_hot

from harness.losses._tools.k_center import farthest_points
from harness.losses.ball_losses import PAIR_LOSSES, build_pair_loss
from harness.losses.ccp import AlternatingProjections, CCPLoss
from harness.losses.hpl import HierarchicalProxyLoss
from harness.losses.proxygml import ProxyGMLLoss, num_selected
from harness.losses.proxynca_pp import ProxyNCAPlusPlusLoss


@dataclass(frozen=True)
class Size:
    """The size of a problem, and how often it is timed."""

    name: str
    num_classes: int
    dim: int
    batch: int
    repeats: int
    num_coarse: int = 10


CUB = Size("CUB", 100, 512, 32, repeats=200)
SOP = Size("SOP", 11_318, 512, 128, repeats=8, num_coarse=500)
TINY_CUB = Size("tiny CUB", 40, 16, 8, repeats=3)
TINY_SOP = Size("tiny SOP", 60, 16, 16, repeats=2, num_coarse=6)

RATIO = 0.05  # of ProxyGML's proxies that a sample is compared with, as published


@dataclass(frozen=True)
class Row:
    """One comparison: seconds of ours and of its peer, and what is asked of their ratio."""

    name: str
    ours: float
    peer: float
    limit: float
    faster: bool  # the limit is on peer/ours and from below; otherwise ours/peer, from above

    def line(self, judged: bool) -> str:
        ratio = self.peer / self.ours if self.faster else self.ours / self.peer
        met = ratio >= self.limit if self.faster else ratio <= self.limit
        asked = f"{'>=' if self.faster else '<='} {self.limit:g}"
        return (
            f"{self.name:<58}{self.ours * 1e3:>10.2f}{self.peer * 1e3:>10.2f}"
            f"{ratio:>8.2f}  {asked:<10}{verdict(met, judged)}"
        )


def verdict(met: bool, judged: bool) -> str:
    """Whether the limit is kept; none at sizes for which it was not set."""
    if not judged:
        return "-"
    return "yes" if met else "NO"


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def interleaved(repeats: int, *runs: Callable[[], object]) -> list[float]:
    """Median seconds of each, taken in turns so that a busy spell of the machine hits all."""
    for run in runs:
        run()
    rounds = [[seconds(run) for run in runs] for _ in range(repeats)]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def batch_of(size: Size) -> tuple[Tensor, Tensor]:
    embeddings = torch.randn(size.batch, size.dim, requires_grad=True)
    return embeddings, torch.randint(size.num_classes, (size.batch,))


def forward_backward(loss: nn.Module, size: Size) -> Callable[[], None]:
    embeddings, labels = batch_of(size)

    def run() -> None:
        embeddings.grad = None
        loss.zero_grad()
        loss(embeddings, labels).backward()

    return run


class DenseProxyGML(nn.Module):
    """ProxyGML as the textbook has it: masks and one-hot products over all proxies."""

    def __init__(self, size: Size, proxies_per_class: int, ratio: float, reg_weight: float) -> None:
        super().__init__()
        labels = torch.arange(size.num_classes).repeat_interleave(proxies_per_class)
        self.proxies = nn.Parameter(torch.randn(len(labels), size.dim))
        self.proxy_labels = labels
        self.one_hot = one_hot(labels, size.num_classes).float()
        self.k = num_selected(ratio, size.num_classes, proxies_per_class)
        self.reg_weight = reg_weight

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        proxies = normalize(self.proxies)
        similarities = normalize(embeddings) @ proxies.t()
        own = (labels.unsqueeze(1) == self.proxy_labels).float()
        nearest = (similarities + 1000 * own).topk(self.k, dim=1).indices
        mask = torch.zeros_like(similarities).scatter_(1, nearest, 1.0)
        sums = (mask * similarities) @ self.one_hot
        exponentials = sums.exp() * (sums != 0)
        probabilities = exponentials / (1e-8 + exponentials.sum(dim=1, keepdim=True))
        own_probability = probabilities.gather(1, labels.unsqueeze(1))
        loss = -(own_probability + 1e-20).log().mean()
        if self.reg_weight > 0:
            proxy_logits = (proxies @ proxies.t()) @ self.one_hot
            loss = loss + self.reg_weight * cross_entropy(proxy_logits, self.proxy_labels)
        return loss


def proxygml(cub: Size, sop: Size) -> Iterator[Row]:
    # Each with its data set's published proxies per class and weight of the proxy term.
    for size, per_class, reg_weight, limit in ((cub, 12, 0.3, 3.0), (sop, 1, 0.0, 5.0)):
        loss = ProxyGMLLoss(size.num_classes, size.dim, per_class, RATIO, reg_weight)
        ours, peer = interleaved(
            max(size.repeats // 2, 1),
            forward_backward(loss, size),
            forward_backward(DenseProxyGML(size, per_class, RATIO, reg_weight), size),
        )
        name = f"ProxyGML / dense form, {size.name}, N={per_class}, lambda={reg_weight}"
        yield Row(name, ours, peer, limit, faster=True)


def proxynca(cub: Size, sop: Size) -> Iterator[Row]:
    for size, limit in ((cub, 1.3), (sop, 1.0)):
        ours, peer = interleaved(
            size.repeats,
            forward_backward(ProxyNCAPlusPlusLoss(size.num_classes, size.dim), size),
            forward_backward(ProxyNCALoss(size.num_classes, size.dim, softmax_scale=9), size),
        )
        yield Row(f"ProxyNCA++ / PML's ProxyNCALoss, {size.name}", ours, peer, limit, faster=True)


def hpl(size: Size) -> Iterator[Row]:
    update_every = 20
    peers = {"nca": ProxyNCALoss, "anchor": ProxyAnchorLoss}
    # Classes in groups, as they are late in a training: what is moved by a small step stays
    # in its cluster.
    groups = torch.randn(size.num_coarse, size.dim)
    classes = groups.repeat(-(-size.num_classes // size.num_coarse), 1)[: size.num_classes]
    start = classes + 0.5 * torch.randn(size.num_classes, size.dim)
    for base, peer_class in peers.items():
        runs = []
        for loss in (
            HierarchicalProxyLoss(
                size.num_classes,
                size.dim,
                base=base,
                num_coarse=(size.num_coarse,),
                update_every=update_every,
            ),
            HierarchicalProxyLoss(size.num_classes, size.dim, base=base, num_coarse=()),
            peer_class(size.num_classes, size.dim),
        ):
            loss.proxies.data.copy_(start)
            runs.append(moving(loss, size))
        # The first clustering starts from nothing; two more and it is in the steady state.
        for _ in range(2 * update_every):
            runs[0]()
        rounds = [[run() for run in runs] for _ in range(2 * update_every)]
        # Means, not medians: one step in twenty clusters.
        ours, alone, peer = (statistics.mean(times) for times in zip(*rounds, strict=True))
        name = f"HPL over {base} / %s, {size.name}, {size.num_coarse} coarse"
        yield Row(name % "its base alone", ours, alone, 1.3, faster=False)
        yield Row(name % f"PML's {peer_class.__name__}", ours, peer, 1.3, faster=False)


def moving(loss: nn.Module, size: Size) -> Callable[[], float]:
    """Seconds of forward and backward on a new batch; then, untimed, a small step."""
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)

    def run() -> float:
        elapsed = seconds(forward_backward(loss, size))
        optimizer.step()
        return elapsed

    return run


def ccp(size: Size) -> Iterator[Row]:
    def loss(base: str | ContrastiveLoss) -> nn.Module:
        return CCPLoss(size.num_classes, size.dim, base)

    margins = PAIR_LOSSES["c2"].published["cub"]
    pml = ContrastiveLoss(**margins, distance=LpDistance(normalize_embeddings=False))
    ours, peer = interleaved(
        size.repeats, forward_backward(loss("c2"), size), forward_backward(loss(pml), size)
    )
    name = f"CCP over c2 / over PML's ContrastiveLoss, {size.name}"
    yield Row(name, ours, peer, 1.5, faster=True)


def training_step(
    loss: nn.Module, size: Size, pixels: int, hook: AlternatingProjections | None = None
) -> Callable[[], None]:
    """Forward, backward and optimizer step of a resnet18 with an embedding layer."""
    trunk = torchvision.models.resnet18(weights=None)
    trunk.fc = nn.Linear(trunk.fc.in_features, size.dim)
    optimizer = torch.optim.Adam([*trunk.parameters(), *loss.parameters()], lr=1e-5)
    images = torch.randn(size.batch, 3, pixels, pixels)
    labels = torch.arange(size.batch) // 4
    context = SimpleNamespace(model=trunk, loss=loss, step=0)
    if hook is not None:
        # In the first instance there are no reference weights yet.
        hook.instance = 1
        hook.reference = {name: value.clone() for name, value in trunk.state_dict().items()}

    def run() -> None:
        optimizer.zero_grad()
        loss(trunk(images), labels).backward()
        if hook is not None:
            hook.after_backward(context)
        optimizer.step()

    return run


def whole_steps(size: Size, pixels: int, repeats: int) -> Iterator[Row]:
    gml, nca, ccp, base = interleaved(
        repeats,
        training_step(ProxyGMLLoss(size.num_classes, size.dim), size, pixels),
        training_step(ProxyNCALoss(size.num_classes, size.dim), size, pixels),
        training_step(
            CCPLoss(size.num_classes, size.dim), size, pixels, hook=AlternatingProjections()
        ),
        training_step(build_pair_loss("c2"), size, pixels),
    )
    yield Row("whole step, ProxyGML / ProxyNCA", gml, nca, 1.35, faster=False)
    yield Row("whole step, CCP over c2 / c2", ccp, base, 1.08, faster=False)


def selection(size: Size, judged: bool) -> str:
    pool = torch.randn(size.num_classes, 7, size.dim)
    centres = torch.randn(size.num_classes, 4, size.dim)
    (elapsed,) = interleaved(3, lambda: farthest_points(pool, centres))
    return (
        f"{'CCP selects 4 proxies of 7 for ' + format(size.num_classes, ',') + ' classes':<58}"
        f"{elapsed * 1e3:>10.2f}{'':>18}  {'< 400 ms':<10}{verdict(elapsed < 0.4, judged)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    quick = parser.parse_args().quick
    cub, sop = (TINY_CUB, TINY_SOP) if quick else (CUB, SOP)
    torch.manual_seed(0)
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"{'':<58}{'ours, ms':>10}{'peer, ms':>10}{'ratio':>8}  {'asked':<10}met")
    for rows in (
        proxynca(cub, sop),
        proxygml(cub, sop),
        hpl(sop),
        ccp(cub),
        whole_steps(cub, pixels=32 if quick else 128, repeats=1 if quick else 15),
    ):
        for row in rows:
            print(row.line(judged=not quick), flush=True)
    print(selection(sop, judged=not quick))


if __name__ == "__main__":
    main()
