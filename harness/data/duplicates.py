"""Images that are there twice: as the same file, or as the same picture encoded or scaled anew."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np
from PIL import Image
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

SIDE = 16  # pixels of a thumbnail
# Root mean square difference of two thumbnails, of 255. On CUB, copies that were encoded or scaled
# anew differ by 1.9 at most, the nearest other pictures by 5.3.
TOLERANCE = 3.0
BLOCK = 4096  # pairs compared at once


def thumbnail(image: Image.Image) -> bytes:
    """The image in 16 x 16 pixels, whatever its size and shape."""
    return image.resize((SIDE, SIDE), Image.Resampling.BOX).tobytes()


def equal_groups(keys: Sequence[Hashable]) -> list[list[int]]:
    """Positions that share a key, in groups of two or more; an empty key equals nothing."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for position, key in enumerate(keys):
        if key not in (None, b""):
            groups[key].append(position)
    return [group for group in groups.values() if len(group) > 1]


def alike_groups(thumbnails: Sequence[bytes]) -> list[list[int]]:
    """Positions whose thumbnails are almost equal, directly or by way of others; no empty ones."""
    # A picture that is there a thousand times would make half a million pairs.
    distinct = [content for content in dict.fromkeys(thumbnails) if content]
    if not distinct:
        return []
    first, second = _near_pairs(np.stack([np.frombuffer(t, dtype=np.uint8) for t in distinct])).T
    graph = coo_array((np.ones(len(first)), (first, second)), shape=(len(distinct),) * 2)
    components = connected_components(graph, directed=False)[1]
    group_of = dict(zip(distinct, components.tolist(), strict=True))
    return equal_groups([group_of.get(content) for content in thumbnails])


def _near_pairs(thumbnails: np.ndarray) -> np.ndarray:
    """(pairs, 2) rows that differ by TOLERANCE at most."""
    quarters = thumbnails.reshape(len(thumbnails), 2, SIDE // 2, 2, SIDE // 2, -1)
    coarse = quarters.mean((2, 4), dtype=np.float32).reshape(len(thumbnails), -1)
    # Means never differ by more than what they are means of, so the tree loses no pair.
    reach = TOLERANCE * coarse.shape[1] ** 0.5
    pairs = cKDTree(coarse).query_pairs(reach * 1.001, output_type="ndarray")
    near = [
        (np.square(thumbnails[i].astype(np.float32) - thumbnails[j]).mean(1) <= TOLERANCE**2)
        for i, j in (pairs[start : start + BLOCK].T for start in range(0, len(pairs), BLOCK))
    ]
    return pairs[np.concatenate(near)] if near else pairs
