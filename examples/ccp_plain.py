"""CCP in a training loop of your own: k-center proxies and alternating problems, no orchestrator.

python examples/ccp_plain.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from harness.datasets import glyphs
from harness.losses import AlternatingProjections, BallNormalizer, CCPLoss, HookedLoop, class_images

TRAINED, CLASSES = 40, 60  # the other classes validate


def train(
    model: nn.Module,
    loss: CCPLoss,
    projections: HookedLoop,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[tuple[Tensor, Tensor]],
    validate: Callable[[], float],
    every: int = 50,
) -> list[float]:
    """The score of every validation; the projections hear of it and of every backward."""
    scores = []
    for step, (images, labels) in enumerate(batches, start=1):
        optimizer.zero_grad()
        value = loss(model(images), labels)
        value.backward()
        projections.step(value)
        optimizer.step()
        if step % every == 0:
            scores.append(validate())
            projections.validated(scores[-1])
    return scores


def precision_at_1(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """How often the nearest other image is of the same class."""
    with torch.no_grad():
        embeddings = BallNormalizer()(model.eval()(images))
    model.train()
    nearest = torch.cdist(embeddings, embeddings).fill_diagonal_(torch.inf).argmin(dim=1)
    return (labels[nearest] == labels).float().mean().item()


def main(steps: int = 400) -> None:
    torch.manual_seed(0)
    pixels, classes = (torch.from_numpy(part) for part in glyphs.arrays(CLASSES))
    pixels, seen = pixels.unsqueeze(1) / 255, classes < TRAINED
    images, labels = pixels[seen], classes[seen]
    layers = [nn.Conv2d(1, 32, 3, 2), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, 2)]
    model = nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(64 * 36, 64))
    loss = CCPLoss(TRAINED, 64, proxies_per_class=4)
    optimizer = torch.optim.Adam([*model.parameters(), *loss.parameters()], lr=1e-3)
    chosen = AlternatingProjections(pool_size=6, start=100)  # 100 steps of the base loss first
    projections = chosen.in_loop(model, loss, class_images(images, labels))
    picks = (torch.randint(len(labels), (64,)) for _ in range(steps))
    batches = ((images[pick], labels[pick]) for pick in picks)

    def validate() -> float:
        return precision_at_1(model, pixels[~seen], classes[~seen])

    untrained, scores = validate(), train(model, loss, projections, optimizer, batches, validate)
    print(f"P@1 of new classes: {untrained:.1%} untrained, {max(scores):.1%} at best")
    print(f"problems: {chosen.instance + 1}, new proxies after steps {chosen.renewed}")


if __name__ == "__main__":
    main()
