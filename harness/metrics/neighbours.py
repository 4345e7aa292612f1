"""Exact nearest neighbours in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from harness.system.precision import multiply_in_float32

# How the search works. Matrix products in float32 give every squared distance with a known error
# bound (`_error_bound`). Per query a few candidates more than needed are kept, and wherever two of
# them are closer together than the bound can tell apart, their distances are computed again from
# the float32 differences of the coordinates, summed in float64: correct to 2 units in the last
# place of a float32, equal for duplicates. The order is that of these distances, ties by ascending
# index, whatever the block size and the number of threads. (||a||^2 + ||b||^2 - 2ab on its own is
# wrong by up to 7e-5 for unit vectors of 512 dimensions in the worst case, by 1e-6 in practice:
# near-duplicates would come out in random order.)

BLOCK = 1024  # points whose products with as many others are computed at once: 4 MiB
PIECE = 256  # rows at a time where a step needs temporaries, which then fit into the cache
COORDINATES = 2**18  # per step of the exact distances
HELD = 2**21  # candidates that are held at once
SPARE = 8  # candidates beyond the needed depth, so that near-ties at the last place fit
WIDER = 16  # times as many spare ones for the queries where they did not
FARTHEST = 2.0**125  # squared distance from the mean: that of two points is at most four times it

# The key of a candidate is an integer that sorts by squared distance, then by reference.
DISTANCE_BITS = 31
REFERENCE_BITS = 22
NOBODY = 0x7F800000 << REFERENCE_BITS  # infinitely far


def nearest(
    queries: Tensor, references: Tensor | None, depths: Tensor, order: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (rows,) queries and the (rows, k) indices of their nearest, until all had a turn.

    Nearest first, ties by ascending index.

    Args:
        queries: (n, dimensions) embeddings, as `check_points` wants them.
        references: (m, dimensions) embeddings, or None to search the queries themselves, each
            query excluded by index.
        depths: (n,) how many neighbours each query needs, at least 1 and at most as many as there
            are; what stands in a row behind its depth means nothing.
        order: (n,) the queries, likely neighbours next to each other: it changes the time alone.
    """
    return _Search(queries, references, depths).run(order)


def check_points(queries: Tensor, references: Tensor | None) -> None:
    """Raise ValueError for points that have no distances."""
    _check_embeddings("queries", queries)
    if references is None:
        return
    _check_embeddings("references", references)
    if references.shape[1] != queries.shape[1]:
        raise ValueError(
            "references must have the dimensions of the queries, "
            f"got {references.shape[1]} and {queries.shape[1]}"
        )


def _check_embeddings(name: str, embeddings: Tensor) -> None:
    if embeddings.ndim != 2 or embeddings.numel() == 0:
        raise ValueError(
            f"{name} must be a non-empty (n, dimensions) matrix, got {tuple(embeddings.shape)}"
        )
    if len(embeddings) > 2**REFERENCE_BITS:
        raise ValueError(f"{name} must be at most {2**REFERENCE_BITS}, got {len(embeddings)}")
    embeddings = embeddings.detach()
    if embeddings.sum().isfinite():  # then every value is; one that is not may be an overflow
        return
    least, most = embeddings.aminmax(dim=1)  # NaN if any is; no temporary of full size
    broken = ~(torch.isfinite(least) & torch.isfinite(most))
    if broken.any():
        raise ValueError(f"{name} must be finite, row {int(broken.nonzero()[0])} is not")


class _Search:
    """Nearest neighbours of queries among references (or among themselves)."""

    def __init__(self, queries: Tensor, references: Tensor | None, depths: Tensor):
        self.among_themselves = references is None
        self.queries = queries.detach().float()
        self.references = self.queries if references is None else references.detach().float()
        self.available = len(self.references) - int(self.among_themselves)
        self.depths = depths
        # Distances do not depend on the origin, but the error bound grows with the norms.
        self.origin = _origin(self.references)
        self.half_norms = _half_norms(self.queries, self.origin)
        self.reference_half_norms = (
            self.half_norms if references is None else _half_norms(self.references, self.origin)
        )
        farthest = 2 * float(torch.maximum(self.half_norms.max(), self.reference_half_norms.max()))
        if farthest > FARTHEST:
            raise ValueError(
                f"points must lie within {FARTHEST**0.5:.0e} of their mean, "
                f"for squares to be float32 numbers, got {farthest**0.5:.0e}"
            )
        self.error = _error_bound(self.queries.shape[1], farthest)

    def run(self, order: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        spare = SPARE
        while len(order):
            crowded = []
            for block, keys in self._candidates(order, spare):
                for rows, candidates in zip(block.split(PIECE), keys.split(PIECE), strict=True):
                    settled, neighbours, others = self._settle(rows, candidates)
                    yield settled, neighbours
                    crowded.append(others)
            order, spare = torch.cat(crowded), spare * WIDER

    def _candidates(self, order: Tensor, spare: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Blocks of queries with the (rows, width) keys of their candidates, ascending."""
        held = sum(len(block) * self._width(block, spare) for block in order.split(BLOCK))
        if self.among_themselves and len(order) == len(self.queries) and held <= HELD:
            return self._by_pairs(order, spare)
        return self._by_rows(order, spare)

    def _by_pairs(self, order: Tensor, spare: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All queries at once: the product of each pair is computed once for both."""
        blocks = order.split(BLOCK)
        pools = [self._pool(block, spare) for block in blocks]
        # Products within a block first: it holds likely neighbours, so that few others pass.
        for block, pool in zip(blocks, pools, strict=True):
            products = multiply_in_float32(self._rows(block), self._columns(block))
            pool.add(products.fill_diagonal_(-torch.inf), block)
        for i, (block, pool) in enumerate(zip(blocks, pools, strict=True)):
            rows = self._rows(block)
            for other, other_pool in zip(blocks[i + 1 :], pools[i + 1 :], strict=True):
                products = multiply_in_float32(rows, self._columns(other))
                pool.add(products, other)
                other_pool.add(products, block, turned=True)
            yield block, pool.best()

    def _by_rows(self, order: Tensor, spare: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Some queries after others: for deep searches, in a gallery, and for the crowded."""
        everything = torch.arange(len(self.references), device=order.device)
        for block in order.split(min(BLOCK, max(1, HELD // 4 // self._width(order, spare)))):
            pool, rows = self._pool(block, spare), self._rows(block)
            for others in everything.split(BLOCK):
                products = multiply_in_float32(rows, self._columns(others))
                if self.among_themselves:
                    itself = block - others[0]
                    here = _set_places((itself >= 0) & (itself < len(others)))
                    products[here, itself[here]] = -torch.inf
                pool.add(products, others)
            yield block, pool.best()

    def _pool(self, block: Tensor, spare: int) -> _Pool:
        return _Pool(self.depths[block], self._width(block, spare), self.error)

    def _width(self, block: Tensor, spare: int) -> int:
        """How many candidates are kept of each query of a block."""
        return min(int(self.depths[block].max()) + spare, self.available)

    # Two more dimensions turn a product into a distance: with row = [x, 1, -|x|^2/2] and
    # column = [y, -|y|^2/2, 1], row @ column = -|x - y|^2 / 2.

    def _rows(self, block: Tensor) -> Tensor:
        points = self.queries.index_select(0, block).sub_(self.origin)
        half_norms = self.half_norms[block, None]
        return torch.cat([points, torch.ones_like(half_norms), -half_norms], dim=1)

    def _columns(self, block: Tensor) -> Tensor:
        points = self.references.index_select(0, block).sub_(self.origin)
        half_norms = self.reference_half_norms[block, None]
        return torch.cat([points, -half_norms, torch.ones_like(half_norms)], dim=1).T

    def _settle(self, rows: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Order near-ties by exact distances.

        Returns:
            Queries, their neighbours, and the queries that have more near-ties than candidates.
        """
        depths = self.depths[rows]
        squared = _squared(keys)
        reach = _reach(squared.gather(1, depths[:, None] - 1), self.error)
        crowded = (squared[:, -1] <= reach[:, 0]) & (keys.shape[1] < self.available)
        close = squared[:, 1:] <= _reach(squared[:, :-1], self.error)
        unsure = torch.zeros_like(keys, dtype=torch.bool)
        unsure[:, 1:] |= close
        unsure[:, :-1] |= close
        self._refine(rows, keys, unsure & (squared <= reach) & ~crowded[:, None])
        neighbours = _references(_sorted(keys[~crowded])[:, : int(depths.max())])
        return rows[~crowded], neighbours, rows[crowded]

    def _refine(self, rows: Tensor, keys: Tensor, unsure: Tensor) -> None:
        """Replace the squared distances of the unsure keys by exact ones."""
        queries = self.queries.index_select(0, rows)
        for places in _set_places(unsure).split(max(1, COORDINATES // queries.shape[1])):
            references = _references(keys.view(-1).index_select(0, places))
            differences = self.references.index_select(0, references)
            differences -= queries.index_select(0, places.div(keys.shape[1], rounding_mode="floor"))
            squared = differences.square_().sum(1, dtype=torch.float64).float()
            keys.view(-1)[places] = _keys(squared, references)


class _Pool:
    """The nearest references met so far of each query of a block.

    Attributes:
        keys: (rows, width) those that were compared, ascending.
        more: keys that were met since, of the queries in `rows`.
        floors: (rows,) the least product that still makes a candidate.
    """

    def __init__(self, depths: Tensor, width: int, error: float):
        self.depths, self.error = depths, error
        self.keys = torch.full((len(depths), width), NOBODY, device=depths.device)
        self.rows: list[Tensor] = []
        self.more: list[Tensor] = []
        self.count = 0  # of more
        self.floors: Tensor | None = None

    def add(self, products: Tensor, references: Tensor, turned: bool = False) -> None:
        """Take the candidates among (rows, references) products, the other way round if turned."""
        if self.floors is None:
            self.floors = _nth_largest(products, self.keys.shape[1])
        places = _places_reaching(products, self.floors if turned else self.floors[:, None])
        rows = torch.div(places, products.shape[1], rounding_mode="floor")
        columns = places - rows * products.shape[1]
        if turned:
            rows, columns = columns, rows
        found = references.index_select(0, columns)
        self.rows.append(rows.to(torch.int16))
        self.more.append(_keys(products.view(-1).index_select(0, places) * -2, found))
        self.count += len(places)
        if self.count > self.keys.numel():
            self._compare()

    def _compare(self) -> None:
        """Keep the nearest, and raise the floors to what may still be nearer than these."""
        if self.count:
            more = _table(torch.cat(self.more), torch.cat(self.rows), len(self.keys))
            width = self.keys.shape[1]
            self.keys = _sorted(torch.cat([self.keys, more], dim=1))[:, :width].contiguous()
            self.rows, self.more, self.count = [], [], 0
        last = _squared(self.keys.gather(1, self.depths[:, None] - 1)[:, 0])
        self.floors = _reach(last, self.error) / -2

    def best(self) -> Tensor:
        """(rows, width) keys in ascending order, NOBODY where there are no more."""
        self._compare()
        return self.keys


def _table(keys: Tensor, rows: Tensor, num_rows: int) -> Tensor:
    """(num_rows, most in a row) keys in their rows, filled up with NOBODY."""
    # Sorting each row of a table is several times as fast as sorting all keys by row and distance.
    order = _stable_order(rows)
    rows = rows.index_select(0, order).long()
    starts = torch.searchsorted(rows, torch.arange(num_rows + 1, device=rows.device))
    most = int(starts.diff().max())
    nth = torch.arange(len(rows), device=rows.device) - starts.index_select(0, rows)
    table = keys.new_full((num_rows, most), NOBODY)
    table.view(-1)[rows * most + nth] = keys.index_select(0, order)
    return table


def _origin(points: Tensor) -> Tensor:
    """The mean, which is exactly the point if all points are identical."""
    total = torch.zeros(points.shape[1], dtype=torch.float64, device=points.device)
    for block in points.split(PIECE):  # a float64 sum of all would copy them all
        total += block.sum(0, dtype=torch.float64)
    return (total / len(points)).float()


def _half_norms(points: Tensor, origin: Tensor) -> Tensor:
    """(n,) |x|^2 / 2 of all points, seen from the origin."""
    return torch.cat([(block - origin).square_().sum(1) / 2 for block in points.split(PIECE)])


def _error_bound(dimensions: int, farthest: float) -> float:
    """Most by which a squared distance from a product of rows and columns can be off.

    Args:
        farthest: squared distance of any point from the origin.
    """
    # The product is off by at most `dimensions` roundings (and 2 of centring) of terms with an
    # absolute sum of norm^2, and by a few of the norms, which are added last (8 allowed for, norms
    # themselves summed pairwise included); twice that, since it is half the squared distance. What
    # is too small for a normal float32 may be rounded to nothing.
    numbers = torch.finfo(torch.float32)
    return 2 * (dimensions + 32) * (numbers.eps / 2 * farthest + numbers.tiny)


def _reach(squared: Tensor, error: float) -> Tensor:
    """How far beyond a computed squared distance another may lie and truly be nearer or tied."""
    # Two errors, and the rounding of either to float32 in its key.
    return squared * (1 + 2**-22) + 2 * error


def _keys(squared: Tensor, references: Tensor) -> Tensor:
    """One integer per pair that sorts by squared distance, then by reference."""
    # The bits of a float32, read as an integer, sort like the float. abs() is for -0.0.
    bits = squared.clamp_min(0).abs_().view(torch.int32).to(torch.int64)
    return (bits << REFERENCE_BITS) | references


def _squared(keys: Tensor) -> Tensor:
    bits = (keys >> REFERENCE_BITS) & (2**DISTANCE_BITS - 1)
    return bits.to(torch.int32).view(torch.float32)


def _references(keys: Tensor) -> Tensor:
    return keys & (2**REFERENCE_BITS - 1)


# On CPU numpy is faster than torch at these, measured on one thread: 0.2 against 1.9 ms for the few
# of 1024 x 1024 products that reach their floors, 0.5 against 3.4 ms to sort 1024 x 120 keys, 2.0
# against 14 ms for the 90th largest in the rows of 1024 x 1024.


def _set_places(mask: Tensor) -> Tensor:
    """Ascending places of the set elements of a mask, read as a vector."""
    if mask.is_cpu:
        return torch.from_numpy(np.flatnonzero(mask.numpy()))
    return mask.view(-1).nonzero()[:, 0]


def _places_reaching(products: Tensor, floors: Tensor) -> Tensor:
    """Ascending places of the products that are not below their floors."""
    if products.is_cpu:
        return torch.from_numpy(np.flatnonzero(products.numpy() >= floors.numpy()))
    return _set_places(products >= floors)


def _stable_order(rows: Tensor) -> Tensor:
    """What sorts small integers; numpy counts them."""
    if rows.is_cpu:
        return torch.from_numpy(np.argsort(rows.numpy(), kind="stable"))
    return rows.argsort(stable=True)


def _sorted(keys: Tensor) -> Tensor:
    """A copy, along the last dimension in ascending order."""
    return torch.from_numpy(np.sort(keys.numpy())) if keys.is_cpu else keys.sort().values


def _nth_largest(products: Tensor, rank: int) -> Tensor:
    """(rows,) the element of every row that has the rank in descending order, -inf if none has."""
    place = products.shape[1] - rank
    if place < 0:
        return products.new_full(products.shape[:1], -torch.inf)
    if products.is_cpu:
        return torch.from_numpy(np.partition(products.numpy(), place)[:, place].copy())
    return products.topk(rank, dim=1).values[:, -1]
