"""Two moons told apart at several temperatures: what they do to a boundary (ProxyNCA++, Fig. 3).

The paper does not say what it trained. Here it is a small network under its own loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.datasets import make_moons
from torch import Tensor, nn

from harness import registry
from harness.report.figures import COLORS, MARKERS, paper_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOSS = "proxynca++"
TEMPERATURES = {"1": 1.0, "1/3": 1 / 3, "1/9": 1 / 9}
POINTS, NOISE = 300, 0.1
HIDDEN, SIZE = 32, 8
STEPS, RATE = 300, 1e-2
GRID = 120  # points of the shading along each side
MARGIN = 0.4  # around the moons


def moons() -> tuple[Tensor, Tensor]:
    """(n, 2) points and the moon that each is of."""
    points, labels = make_moons(POINTS, noise=NOISE, random_state=0)
    return torch.from_numpy(points).float(), torch.from_numpy(labels).long()


def certainty(temperature: float, at: Tensor) -> Tensor:
    """(n,) probability of the second moon at some points, after training at a temperature."""
    points, labels = moons()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the same start for every temperature
        layers = (nn.Linear(2, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU())
        network = nn.Sequential(*layers, nn.Linear(HIDDEN, SIZE))
        params = {"inverse_temperature": 1 / temperature}
        loss: Any = registry.load_method(LOSS).make_loss(2, SIZE, params)
    optimizer = torch.optim.Adam([*network.parameters(), *loss.parameters()], lr=RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss(network(points), labels).backward()
        optimizer.step()
    with torch.no_grad():
        return loss.logits(network(at)).softmax(dim=1)[:, 1]


def draw_moons(columns: int = 1, serif: bool = False) -> Figure:
    """A panel for each temperature: points, shading by probability, and the boundary."""
    points, labels = (tensor.numpy() for tensor in moons())
    low, high = points.min(axis=0) - MARGIN, points.max(axis=0) + MARGIN
    across, up = (np.linspace(low[i], high[i], GRID) for i in (0, 1))
    grid = torch.from_numpy(np.stack(np.meshgrid(across, up), axis=-1)).float()
    with paper_figure(columns, serif, height=0.4) as figure:
        for place, (name, temperature) in enumerate(TEMPERATURES.items(), start=1):
            axes = figure.add_subplot(1, len(TEMPERATURES), place)
            shares = certainty(temperature, grid.view(-1, 2)).view(GRID, GRID).numpy()
            levels = np.linspace(0, 1, 11)
            axes.contourf(across, up, shares, levels=levels, cmap="Greys", alpha=0.6)
            axes.contour(across, up, shares, levels=[0.5], colors="black", linewidths=1)
            for moon in (0, 1):
                x, y = points[labels == moon].T
                axes.scatter(x, y, s=2, color=COLORS[moon], marker=MARKERS[moon])
            axes.set_title(f"T = {name}", size=7)
            axes.set_xticks([])
            axes.set_yticks([])
    return figure
