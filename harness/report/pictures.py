"""Part 6: what the test images look like to some models, as the page shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FoundImages:
    """The nearest neighbours of a query for one method.

    Attributes:
        thumbs: places of their images among those of the page.
        right: whether each is of the query's class.
    """

    method: str
    thumbs: list[int]
    right: list[bool]


@dataclass(frozen=True)
class Query:
    """An image that searches.

    Attributes:
        chosen_as: "chosen", "random", "best" or "worst".
        file: name of the image in its data set.
    """

    thumb: int
    class_name: str
    chosen_as: str
    file: str
    answers: list[FoundImages]


@dataclass(frozen=True)
class Pictures:
    """Galleries, maps and histograms of one table.

    Attributes:
        note: whose models, how many, and what is not shown.
        thumbs: every image once, as a data address.
        points: of the maps: class, superclass, thumbnail and file of each.
        maps: method -> way to draw it -> coordinates across and up.
        similarities: method -> histogram of pairs within and between classes.
    """

    note: str
    queries: list[Query]
    thumbs: list[str]
    points: dict[str, Any]
    maps: dict[str, dict[str, list[list[float]]]]
    similarities: dict[str, dict[str, list[float]]]

    def data(self) -> dict[str, Any]:
        """What the figures of the page are drawn from."""
        return {
            "thumbs": self.thumbs,
            "points": self.points,
            "maps": self.maps,
            "similarities": self.similarities,
        }
