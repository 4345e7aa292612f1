"""Embeddings of some classes, a panel for each stage of training (CCP supplement, Fig. 1 and 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from sklearn.manifold import TSNE
from torch import Tensor

from harness.evaluation.geometry import StageView
from harness.report.figures import COLORS, MARKERS, paper_figure
from harness.tables.geometry import MEASURED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLASSES = 10  # that are told apart by colour and mark
EACH = 40  # images of a class
PANELS = 6  # the first stages and the last one
ACROSS = 3


def draw_stages(views: Sequence[StageView], columns: int = 2, serif: bool = False) -> Figure:
    """One panel before training and one for each stage; of many, the last stands for the rest."""
    # Beside its own proxies a panel has those that the next stage begins with.
    pairs = list(zip(views, [*(view.first for view in views[1:]), None], strict=True))
    if len(pairs) > PANELS:
        pairs = [*pairs[: PANELS - 1], pairs[-1]]
    across = min(ACROSS, len(pairs))
    rows = -(-len(pairs) // across)
    with paper_figure(columns, serif, height=(rows + 0.2) / across) as figure:
        for place, (view, picked) in enumerate(pairs, start=1):
            _panel(figure.add_subplot(rows, across, place), view, picked)
    return figure


def _panel(axes: Axes, view: StageView, picked: Tensor | None) -> None:
    """Points of some classes; squares: the trained proxies, circles: those picked next."""
    seen = view.seen
    (embedding,) = (one.cpu().numpy() for one in seen.embeddings["concatenated"])
    labels = np.unique(seen.labels)[:CLASSES]
    groups = [embedding[seen.labels == label][:EACH] for label in labels]
    groups += [_those_of(proxies, len(labels)) for proxies in (view.proxies, picked)]
    groups = _in_two_dimensions(groups)
    colors = [COLORS[i % len(COLORS)] for i in range(len(labels))]
    for i, points in enumerate(groups[:-2]):
        marker = MARKERS[(i + i // len(COLORS)) % len(MARKERS)]  # no colour twice with one mark
        x, y = points.T
        axes.scatter(x, y, s=4, color=colors[i], marker=marker)
    for marker, points in zip("so", groups[-2:], strict=True):
        edges = np.repeat(colors, len(points) // len(labels)).tolist()
        x, y = points.T
        axes.scatter(x, y, s=16, facecolors="none", edgecolors=edges, marker=marker)
    numbers = "/".join(f"{view.values[metric]:.2f}" for metric in MEASURED)
    axes.set_title(f"{view.name}: {numbers}", size=7)
    axes.set_xticks([])
    axes.set_yticks([])


def _those_of(proxies: Tensor | None, classes: int) -> np.ndarray:
    if proxies is None:
        return np.empty((0, 0))
    return proxies[:classes].flatten(0, 1).cpu().numpy()


def _in_two_dimensions(groups: Sequence[np.ndarray]) -> list[np.ndarray]:
    """All groups together, as they are or by t-SNE."""
    together = np.concatenate([group for group in groups if len(group)])
    if together.shape[1] != 2:
        perplexity = min(30.0, (len(together) - 1) / 3)
        together = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(together)
    ends = np.cumsum([len(group) for group in groups])
    return np.split(together, ends[:-1])
