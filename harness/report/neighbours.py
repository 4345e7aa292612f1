"""The page of `harness query`: the images of a gallery that are nearest to some images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from markupsafe import Markup

from harness.errors import HarnessError
from harness.exported.images import find_images, list_paths
from harness.exported.model import ExportedModel
from harness.records.provenance import command_line, now
from harness.report.galleries import Thumbs
from harness.report.html import asset, environment, policy, squeezed


@dataclass(frozen=True)
class Neighbour:
    """An image of the gallery.

    Attributes:
        file: its path.
        distance: between the normalised embeddings.
        thumb: the small image as a data address.
    """

    file: str
    distance: float
    thumb: str


@dataclass(frozen=True)
class Asked:
    """An image and its nearest neighbours, nearest first."""

    file: str
    thumb: str
    neighbours: list[Neighbour]


def find_neighbours(
    model: ExportedModel,
    queries: Sequence[Path],
    gallery: Path,
    count: int,
    pixels: int,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[list[Asked], int]:
    """The nearest images of a folder, for each query, and the number of images in the folder.

    A query that is in the gallery itself is not its own neighbour.
    """
    among = find_images(gallery)
    asked = torch.from_numpy(model.embed(queries))  # first: a wrong path shows at once
    found = torch.from_numpy(model.embed(among, on_progress=on_progress))
    distances = torch.cdist(asked.double(), found.double())
    places = {file.resolve(): place for place, file in enumerate(among)}
    for row, query in enumerate(queries):
        if query.resolve() in places:
            distances[row, places[query.resolve()]] = torch.inf
    thumbs = Thumbs(list_paths([*queries, *among]), pixels)

    def thumb(place: int) -> str:
        return thumbs.made[thumbs.place(place)]

    answers = []
    for row, query in enumerate(queries):
        order = distances[row].argsort(stable=True)[:count].tolist()
        near = [
            Neighbour(str(among[i]), float(distances[row, i]), thumb(len(queries) + i))
            for i in order
            if distances[row, i].isfinite()
        ]
        if not near:
            raise HarnessError(f"{gallery} has no image besides {query}; give a larger gallery")
        answers.append(Asked(str(query), thumb(row), near))
    return answers, len(among)


def render_neighbours(
    model: ExportedModel, answers: Sequence[Asked], gallery: Path, count: int, pixels: int
) -> str:
    """The page as text; it contains its images and makes no network requests."""
    page = (
        environment()
        .get_template("query.html")
        .render(
            policy=policy(()),
            style=Markup(asset("report.css")),
            model=model.description,
            gallery=gallery,
            count=count,
            queries=answers,
            pixels=pixels,
            made={"time": now(), "command": command_line()},
        )
    )
    return squeezed(page)
