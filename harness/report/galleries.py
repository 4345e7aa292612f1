"""Pictures of a table from models whose weights were kept, for which the page needs torch."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image, features
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE

from harness.datasets.dataset import Listing
from harness.errors import HarnessError, unknown
from harness.evaluation.kept_models import KeptModels, find_kept
from harness.evaluation.scoring import TestEmbeddings
from harness.records.records import TEST_SELECTED
from harness.report.pictures import FoundImages, Pictures, Query
from harness.report.table import Table

METRIC = "map_at_r"
REPRODUCTION = 1  # whose models are shown


@dataclass(frozen=True)
class PictureSettings:
    """How much of the data set goes onto the page.

    Attributes:
        methods: rows to show; the best ones if there are none.
        count: queries of each sort: random, best and worst.
        neighbours: of each query.
        queries: parts of the names of images that somebody wants to see.
        pixels: of the longer side of a thumbnail.
        points: of a map.
        loss_files: that the user named; no other one is imported.
    """

    methods: tuple[str, ...] = ()
    most_methods: int = 4
    count: int = 4
    neighbours: int = 8
    queries: tuple[str, ...] = ()
    pixels: int = 64
    points: int = 600
    loss_files: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, low, high in (("count", 1, 50), ("neighbours", 1, 50), ("pixels", 16, 256)):
            _check(name, getattr(self, name), low, high)
        _check("points", self.points, 10, 5000)


def _check(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise HarnessError(f"{name} must lie between {low} and {high}, got {value}")


def make_pictures(table: Table, values: Mapping[str, Any], settings: PictureSettings) -> Pictures:
    """Open the test classes once for each method shown; an error says why there are no pictures."""
    shown = _methods(table, settings)
    kept: dict[str, KeptModels] = {}
    lost = []
    for method in shown:
        record = next((r for r in table.rows[method] if r.repetition == REPRODUCTION), None)
        try:
            kept[method] = find_kept(record or table.rows[method][0], values, settings.loss_files)
        except HarnessError as error:
            lost.append(str(error))
    if not kept:
        raise HarnessError("\n".join(dict.fromkeys(lost)))
    listing = next(iter(kept.values())).experiment.listing
    if listing.features is not None:
        raise HarnessError("the data set has features and no images")
    seen = {method: models.embed() for method, models in kept.items()}
    thumbs = Thumbs(listing, settings.pixels)
    maker = Maker(listing, seen, thumbs, settings)
    queries = maker.queries()
    points, at = maker.points()
    left_out = [m for m in _there(table) if m not in kept]
    notes = [
        f"Models of reproduction {REPRODUCTION}, all folds side by side, of {', '.join(kept)}.",
        *lost,
        *([f"Not shown: {', '.join(left_out)}; --method NAME shows others."] if left_out else []),
    ]
    return Pictures(
        note=" ".join(notes),
        queries=queries,
        points=points,
        maps={method: maker.maps(method, at) for method in seen},
        similarities={method: maker.similarities(method, at) for method in seen},
        thumbs=thumbs.made,
    )


def _methods(table: Table, settings: PictureSettings) -> list[str]:
    for method in settings.methods:
        if method not in table.rows:
            raise unknown("method", method, table.rows, f"these have records in {table.folder}")
    return list(settings.methods) or _there(table)[: settings.most_methods]


def _there(table: Table) -> list[str]:
    """The rows that have a rank; where none has one, those that were selected on the test."""
    frame = table.frame
    return table.trained or [str(m) for m in frame["method"][frame["kind"] == TEST_SELECTED]]


class Thumbs:
    """Small images, each made once."""

    def __init__(self, listing: Listing, pixels: int) -> None:
        self.listing, self.pixels = listing, pixels
        self.made: list[str] = []
        self.places: dict[int, int] = {}
        self.format = "WEBP" if features.check("webp") else "JPEG"

    def place(self, index: int) -> int:
        """Of an image of the listing among those made."""
        if index not in self.places:
            self.places[index] = len(self.made)
            self.made.append(self._address(index))
        return self.places[index]

    def _address(self, index: int) -> str:
        image: Image.Image = self.listing.decode(self.listing.read(index))
        image.thumbnail((self.pixels, self.pixels))
        buffer = io.BytesIO()
        image.convert("RGB").save(buffer, self.format, quality=75)
        content = base64.b64encode(buffer.getvalue()).decode()
        return f"data:image/{self.format.lower()};base64,{content}"


@dataclass(frozen=True)
class Maker:
    """The embeddings of several methods, of the same test images."""

    listing: Listing
    seen: dict[str, TestEmbeddings]
    thumbs: Thumbs
    settings: PictureSettings

    @property
    def first(self) -> TestEmbeddings:
        return next(iter(self.seen.values()))

    def queries(self) -> list[Query]:
        """Chosen, random, best and worst ones; of each sort no class twice."""
        rows = self._query_rows()
        scores = np.mean([self._scores(test) for test in self.seen.values()], axis=0)
        counted = np.flatnonzero(~np.isnan(scores))
        order = counted[np.argsort(scores[counted], kind="stable")]
        shuffled = np.random.default_rng(0).permutation(counted)
        sorts = {
            "chosen": self._chosen(rows),
            "random": self._one_per_class(rows, shuffled),
            "best": self._one_per_class(rows, order[::-1]),
            "worst": self._one_per_class(rows, order),
        }
        return [self._query(int(rows[at]), sort) for sort, found in sorts.items() for at in found]

    def _query_rows(self) -> np.ndarray:
        """Rows of the embeddings that search."""
        test = self.first
        everybody = np.arange(len(test.labels))
        return everybody if test.queries is None else everybody[test.queries]

    def _scores(self, test: TestEmbeddings) -> np.ndarray:
        (embedding,) = test.embeddings["concatenated"]
        return np.asarray(test.evaluate(embedding, (METRIC,)).per_query[METRIC])

    def _chosen(self, rows: np.ndarray) -> list[int]:
        names = [self.listing.names[self.first.indices[row]] for row in rows]
        found = []
        for wanted in self.settings.queries:
            places = [at for at, name in enumerate(names) if wanted in name]
            if not places:
                raise unknown("query", wanted, names[:50], "a part of the name of a test image")
            found.append(places[0])
        return found

    def _one_per_class(self, rows: np.ndarray, order: np.ndarray) -> list[int]:
        classes: dict[int, int] = {}
        for at in order:
            classes.setdefault(int(self.first.labels[rows[at]]), int(at))
            if len(classes) == self.settings.count:
                break
        return list(classes.values())

    def _query(self, row: int, chosen_as: str) -> Query:
        test = self.first
        index = int(test.indices[row])
        return Query(
            thumb=self.thumbs.place(index),
            class_name=self.listing.class_names[test.labels[row]],
            chosen_as=chosen_as,
            file=self.listing.names[index],
            answers=[self.answer(method, row) for method in self.seen],
        )

    def answer(self, method: str, row: int) -> FoundImages:
        """The nearest neighbours of one query, for one method."""
        test = self.seen[method]
        (embedding,) = test.embeddings["concatenated"]
        distances = torch.cdist(embedding[row : row + 1], embedding)[0].cpu().numpy()
        gallery = np.ones(len(distances), bool) if test.queries is None else ~test.queries
        gallery[row] = False
        order = np.argsort(np.where(gallery, distances, np.inf), kind="stable")
        nearest = order[: min(self.settings.neighbours, int(gallery.sum()))]
        return FoundImages(
            method,
            [self.thumbs.place(int(test.indices[near])) for near in nearest],
            [bool(test.labels[near] == test.labels[row]) for near in nearest],
        )

    def points(self) -> tuple[dict[str, Any], np.ndarray]:
        """Test images for the maps, evenly from all classes, and their rows."""
        test, rng = self.first, np.random.default_rng(0)
        shuffled = rng.permutation(len(test.labels))
        turn = np.zeros(len(shuffled), int)  # of an image among those of its class
        seen: dict[int, int] = {}
        for i, row in enumerate(shuffled):
            label = int(test.labels[row])
            turn[i] = seen[label] = seen.get(label, -1) + 1
        rows = np.sort(shuffled[np.argsort(turn, kind="stable")][: self.settings.points])
        labels, classes = np.unique(test.labels[rows], return_inverse=True)
        groups, group_names = self._groups(labels, classes)
        return {
            "classes": classes.tolist(),
            "names": [self.listing.class_names[label] for label in labels],
            "groups": groups,
            "group_names": group_names,
            "thumbs": [self.thumbs.place(int(test.indices[row])) for row in rows],
            "files": [self.listing.names[test.indices[row]] for row in rows],
        }, rows

    def _groups(
        self, labels: np.ndarray, classes: np.ndarray
    ) -> tuple[list[int] | None, list[str]]:
        if self.listing.superclasses is None:
            return None, []
        found, groups = np.unique(self.listing.superclasses[labels], return_inverse=True)
        names = self.listing.superclass_names
        return groups[classes].tolist(), [
            names[number] if names else f"superclass {number + 1}" for number in found
        ]

    def maps(self, method: str, rows: np.ndarray) -> dict[str, list[list[float]]]:
        """Two ways to see many dimensions in two."""
        (embedding,) = self.seen[method].embeddings["concatenated"]
        points = embedding.cpu().numpy()[rows]
        perplexity = min(30.0, (len(points) - 1) / 3)
        tsne = TSNE(perplexity=perplexity, init="pca", random_state=0)
        ways = {"t-SNE": tsne, "PCA": PCA(2, random_state=0)}
        found = {name: way.fit_transform(points).T for name, way in ways.items()}
        return {name: [_rounded(axis) for axis in at] for name, at in found.items()}

    def similarities(self, method: str, rows: np.ndarray) -> dict[str, list[float]]:
        """Densities of the cosine similarities of all pairs of the sampled images."""
        (embedding,) = self.seen[method].embeddings["concatenated"]
        points = torch.nn.functional.normalize(embedding[torch.from_numpy(rows)]).cpu().numpy()
        labels = self.seen[method].labels[rows]
        above = np.triu_indices(len(rows), 1)
        cosines = (points @ points.T)[above]
        same = (labels[:, None] == labels)[above]
        edges = np.linspace(min(-0.2, float(cosines.min())), 1.0, 61)
        found = {"edges": _rounded(edges)}
        for name, pairs in (("within", cosines[same]), ("between", cosines[~same])):
            density = np.histogram(pairs, edges, density=True)[0] if len(pairs) else edges[1:] * 0
            found[name] = _rounded(density)
        return found


def _rounded(values: Sequence[float] | np.ndarray) -> list[float]:
    return [float(f"{value:.4g}") for value in values]
