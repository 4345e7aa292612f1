"""Exact nearest neighbours, and the retrieval metrics built on them, in bounded memory."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import faiss
import numpy as np
import torch
from sklearn.metrics import normalized_mutual_info_score
from torch import Tensor

DEFAULT_METRICS = ("p_at_1", "r_precision", "map_at_r")

# How the search works. Matrix products in float32 give every squared distance with a known error
# bound (`_error_bound`). Per query a few candidates more than needed are kept, and wherever two of
# them are closer together than the bound can tell apart, their distances are computed again from
# the float32 differences of the coordinates, summed in float64: correct to 2 units in the last
# place of a float32, equal for duplicates. The order is that of these distances, ties by ascending
# index, whatever the tile size and the number of threads. (||a||^2 + ||b||^2 - 2ab on its own is
# wrong by up to 7e-5 for unit vectors of 512 dimensions in the worst case, by 1e-6 in practice:
# near-duplicates would come out in random order.)

BLOCK = 1024  # rows of a tile; a multiple of GROUP
GROUP = 32  # columns of a tile that are compared with the thresholds by their maximum first
SPARE = 8  # candidates kept beyond the needed depth, so that near-ties at the last place fit
PAIRS_CHUNK = 2**18  # coordinates per step of the exact distances
ROWS_CHUNK = 2**22  # distances per step of the row-wise search
KMEANS_SEED = 0
EMPTY = 0x7F800000_FFFFFFFF  # key of a free slot: infinitely far


@dataclass(frozen=True)
class Scores:
    """Metric means over the queries that count, and per-query values (NaN where dropped)."""

    values: dict[str, float]
    queries: int
    queries_dropped: int
    per_query: dict[str, np.ndarray] = field(default_factory=dict, repr=False, compare=False)


def nearest(queries: Tensor, references: Tensor | None, k: int) -> Tensor:
    """Indices of the k nearest references, nearest first, ties by ascending index.

    Args:
        queries: (n, dimensions) embeddings.
        references: (m, dimensions) embeddings, or None to search the queries themselves, each
            query excluded by index.
        k: how many; fewer columns are returned if there are fewer references.

    Returns:
        (n, min(k, m)) int64 indices, or (n, min(k, n - 1)) if references is None.
    """
    _check_embeddings("queries", queries)
    if references is not None:
        _check_references(queries, references)
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    search = _Search(queries, references)
    k = min(k, search.available)
    found = torch.empty(len(queries), k, dtype=torch.int64, device=queries.device)
    depths = torch.full((len(queries),), k, device=queries.device)
    for rows, neighbours in search.run(depths, torch.arange(len(queries), device=queries.device)):
        found[rows] = neighbours
    return found


def evaluate(
    embeddings: Tensor,
    labels: Tensor,
    references: Tensor | None = None,
    reference_labels: Tensor | None = None,
    metrics: Sequence[str] = DEFAULT_METRICS,
) -> Scores:
    """Score every query by where the references with its label stand among its neighbours.

    R is the number of references with the query's label, without the query itself. Queries with
    R = 0 are dropped from all metrics but nmi; a metric is NaN if none remain.

    Args:
        embeddings: (n, dimensions) of the queries; distances are Euclidean, nothing is normalised.
        labels: (n,) integers.
        references: (m, dimensions), or None to search the queries, each excluded by index.
        reference_labels: (m,) integers, given if and only if references are.
        metrics: any of p_at_1, r_precision, map_at_r, recall_at_<K>, nmi.
    """
    largest_ranks = [_largest_rank(name) for name in metrics]
    _check_embeddings("embeddings", embeddings)
    _check_labels("labels", labels, embeddings)
    if (references is None) != (reference_labels is None):
        given = "references" if reference_labels is None else "reference_labels"
        raise ValueError(f"references and reference_labels go together, got only {given}")
    if references is not None and reference_labels is not None:
        _check_references(embeddings, references)
        _check_labels("reference_labels", reference_labels, references)
    relevant = _relevant_counts(labels, reference_labels)
    per_query: dict[str, np.ndarray] = {}
    if any(name != "nmi" for name in metrics):
        search = _Search(embeddings, references)
        depths = _depths(relevant, largest_ranks).clamp_max(search.available)
        per_query = _score(search, depths, relevant, labels, reference_labels, metrics)
    kept = (relevant > 0).cpu().numpy()
    values = {name: _mean(per_query[name][kept]) for name in metrics if name != "nmi"}
    if "nmi" in metrics:
        values["nmi"] = _nmi(embeddings, labels)
    return Scores(values, len(labels), int((~kept).sum()), per_query)


def _largest_rank(metric: str) -> int | None:
    """The rank up to which a metric looks (0: none), or None if that is each query's R."""
    if metric in ("r_precision", "map_at_r"):
        return None
    if metric == "nmi":
        return 0
    if metric == "p_at_1":
        return 1
    if not re.fullmatch(r"recall_at_[1-9][0-9]*", metric):
        raise ValueError(
            "a metric must be one of p_at_1, r_precision, map_at_r, nmi and recall_at_<K>, "
            f"got {metric!r}"
        )
    return int(metric.removeprefix("recall_at_"))


def _check_labels(name: str, labels: Tensor, embeddings: Tensor) -> None:
    if labels.shape != embeddings.shape[:1]:
        raise ValueError(
            f"{name} must be one per embedding, "
            f"got shape {tuple(labels.shape)} for {len(embeddings)} embeddings"
        )
    if labels.is_floating_point() or labels.is_complex():
        raise ValueError(f"{name} must be integers, got {labels.dtype}")


def _relevant_counts(labels: Tensor, reference_labels: Tensor | None) -> Tensor:
    """(n,) number of references with each query's label, the query itself not counted."""
    pool = labels if reference_labels is None else reference_labels
    ascending = pool.sort().values
    counts = torch.searchsorted(ascending, labels, right=True)
    counts -= torch.searchsorted(ascending, labels)
    return counts - 1 if reference_labels is None else counts


def _depths(relevant: Tensor, largest_ranks: Sequence[int | None]) -> Tensor:
    """(n,) number of neighbours each query needs for metrics of the given largest ranks."""
    fixed = max((rank for rank in largest_ranks if rank is not None), default=0)
    depths = relevant.clamp_min(fixed) if None in largest_ranks else relevant * 0 + fixed
    return torch.where(relevant > 0, depths, 0)


def _score(
    search: "_Search",
    depths: Tensor,
    relevant: Tensor,
    labels: Tensor,
    reference_labels: Tensor | None,
    metrics: Sequence[str],
) -> dict[str, np.ndarray]:
    """Per-query values of every metric but nmi, NaN for queries of depth 0."""
    pool = labels if reference_labels is None else reference_labels
    names = [name for name in metrics if name != "nmi"]
    unscored = torch.full((len(labels),), torch.nan, dtype=torch.float64, device=labels.device)
    scores = {name: unscored.clone() for name in names}
    for rows, neighbours in search.run(depths, labels.argsort(stable=True)):
        hits = pool[neighbours] == labels[rows, None]
        for name in names:
            scores[name][rows] = _metric(name, hits, relevant[rows])
    return {name: values.cpu().numpy() for name, values in scores.items()}


def _metric(name: str, hits: Tensor, relevant: Tensor) -> Tensor:
    """(rows,) float64 values of one metric from (rows, k) hits in order of rank."""
    rank_limit = _largest_rank(name)
    if rank_limit is not None:
        return hits[:, :rank_limit].any(1).double()
    ranks = torch.arange(1, hits.shape[1] + 1, device=hits.device)
    hits = hits & (ranks <= relevant[:, None])
    if name == "r_precision":
        return hits.sum(1) / relevant.double()
    precisions = hits.cumsum(1, dtype=torch.int32) / ranks.double()
    return (precisions * hits).sum(1) / relevant


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else math.nan


def _nmi(embeddings: Tensor, labels: Tensor) -> float:
    """Normalised mutual information of the labels and as many k-means clusters."""
    points = embeddings.detach().float().cpu().numpy()
    truth = labels.cpu().numpy()
    # faiss warns below 39 points per cluster, the normal case here, and would train on a sample
    # above 256: every point is to be used.
    kmeans = faiss.Kmeans(
        points.shape[1],
        len(np.unique(truth)),
        niter=20,
        seed=KMEANS_SEED,
        min_points_per_centroid=1,
        max_points_per_centroid=len(points),
    )
    kmeans.train(points)
    clusters = kmeans.index.search(points, 1)[1][:, 0]
    return float(normalized_mutual_info_score(truth, clusters))


def _check_embeddings(name: str, embeddings: Tensor) -> None:
    if embeddings.ndim != 2 or embeddings.numel() == 0:
        raise ValueError(
            f"{name} must be a non-empty (n, dimensions) matrix, got {tuple(embeddings.shape)}"
        )
    least, most = embeddings.detach().aminmax(dim=1)  # NaN if any is; no temporary of full size
    broken = ~(torch.isfinite(least) & torch.isfinite(most))
    if broken.any():
        raise ValueError(f"{name} must be finite, row {int(broken.nonzero()[0])} is not")


def _check_references(queries: Tensor, references: Tensor) -> None:
    _check_embeddings("references", references)
    if references.shape[1] != queries.shape[1]:
        raise ValueError(
            "references must have the dimensions of the queries, "
            f"got {references.shape[1]} and {queries.shape[1]}"
        )


def _pack(squared: Tensor, references: Tensor) -> Tensor:
    """One int64 key per pair that sorts by squared distance, then by reference index."""
    # The bits of a non-negative float32, read as an integer, sort like the float.
    bits = squared.clamp_min(0).view(torch.int32).to(torch.int64)
    return (bits << 32) | references


def _squared(keys: Tensor) -> Tensor:
    return (keys >> 32).to(torch.int32).view(torch.float32)


def _references(keys: Tensor) -> Tensor:
    return keys & 0xFFFFFFFF


def _error_bound(dimensions: int, largest_norm: float, dtype: torch.dtype) -> float:
    """Most by which a squared distance from `_Points` blocks can be off, in any summation order."""
    unit = torch.finfo(dtype).eps / 2
    if dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest":
        unit = 2.0**-8  # the product may round its inputs to TF32 or bfloat16
    # The product is off by at most `dimensions` roundings (and 2 of centring) of terms with an
    # absolute sum of norm^2, and by a few of the norms, which are added last (8 allowed for, norms
    # themselves summed pairwise included); twice that, since it is half the squared distance.
    return 2 * (dimensions + 32) * unit * largest_norm**2


class _Points:
    """Embeddings in a given order, moved to a common origin and augmented block by block.

    The augmentation turns one matrix product into distances: with row = [x, 1, -|x|^2/2] and
    column = [y, -|y|^2/2, 1], row @ column = -|x - y|^2 / 2.
    """

    def __init__(self, embeddings: Tensor, origin: Tensor, order: Tensor, dtype: torch.dtype):
        self.embeddings, self.origin, self.order, self.dtype = embeddings, origin, order, dtype
        self.half_norms = torch.empty(len(order), dtype=dtype, device=order.device)
        for start in range(0, len(order), BLOCK):
            centred = self._centred(start, start + BLOCK)
            self.half_norms[start : start + BLOCK] = centred.square_().sum(1) / -2

    def _centred(self, start: int, stop: int) -> Tensor:
        chosen = self.embeddings.index_select(0, self.order[start:stop]).to(self.dtype)
        return chosen.sub_(self.origin)

    def _augmented(self, start: int, stop: int, norm_column: int) -> Tensor:
        centred = self._centred(start, stop)
        dimensions = centred.shape[1]
        block = torch.ones(len(centred), dimensions + 2, dtype=self.dtype, device=centred.device)
        block[:, :dimensions] = centred
        block[:, dimensions + norm_column] = self.half_norms[start:stop]
        return block

    def rows(self, start: int, stop: int) -> Tensor:
        return self._augmented(start, stop, norm_column=1)

    def columns(self, start: int, stop: int) -> Tensor:
        return self._augmented(start, stop, norm_column=0)

    def largest_norm(self) -> float:
        return math.sqrt(-2 * float(self.half_norms.min()))


class _Pool:
    """The candidates of every query met so far: at least its `depth` nearest.

    keys: (n, width) packed candidates, unordered, EMPTY where free.
    floors: (n,) the least product (-squared distance / 2) that still makes a candidate.
    """

    def __init__(self, depths: Tensor, error: float):
        self.depths, self.error = depths, error
        self.keep = int(depths.max()) + SPARE
        self.width = self.keep + max(16, self.keep // 3)
        shape, device = (len(depths), self.width), depths.device
        self.keys = torch.full(shape, EMPTY, dtype=torch.int64, device=device)
        self.used = torch.zeros(len(depths), dtype=torch.int64, device=device)
        self.floors = torch.full((len(depths),), -torch.inf, device=device)
        self.floors[depths == 0] = torch.inf

    def start(self, first: int, products: Tensor) -> None:
        """Set the candidates of rows first.. to the best of a (rows, references) tile."""
        count = min(self.keep, products.shape[1])
        best, places = products.topk(count, dim=1)
        rows = slice(first, first + len(products))
        self.keys[rows, :count] = _pack(best * -2, places + first)
        self.used[rows] = (best > -torch.inf).sum(1)
        self._tighten(torch.arange(first, first + len(products), device=products.device))

    def add(self, rows: Tensor, references: Tensor, products: Tensor) -> None:
        """Add candidates, given as three vectors, in ascending order of their rows."""
        keys = _pack(products * -2, references)
        while len(rows):
            slots = self.used[rows] + _ranks(rows)
            fits = slots < self.width
            if fits.all():
                self._put(rows, slots, keys)
                return
            self._put(rows[fits], slots[fits], keys[fits])
            rows, keys = rows[~fits], keys[~fits]
            self._compact(rows.unique_consecutive())
            wanted = _squared(keys) <= self.floors[rows] * -2
            rows, keys = rows[wanted], keys[wanted]

    def _put(self, rows: Tensor, slots: Tensor, keys: Tensor) -> None:
        self.keys.view(-1).scatter_(0, rows * self.width + slots, keys)
        self.used.scatter_add_(0, rows, torch.ones_like(rows))

    def _compact(self, rows: Tensor) -> None:
        self.keys[rows, : self.keep] = self.keys[rows].topk(self.keep, 1, largest=False).values
        self.keys[rows, self.keep :] = EMPTY
        self.used[rows] = self.keep
        self._tighten(rows)

    def _tighten(self, rows: Tensor) -> None:
        """Raise the floors to the last needed place; the first `keep` keys must be sorted."""
        rows = rows[self.depths[rows] > 0]
        last = self.keys[rows, self.depths[rows] - 1]
        self.floors[rows] = _reach(_squared(last), self.error) / -2


def _reach(squared: Tensor, error: float) -> Tensor:
    """How far beyond a computed squared distance another may lie and truly be nearer or tied."""
    # Two errors, and the rounding of either to float32 in its key.
    return squared * (1 + 2**-22) + 2 * error


def _ranks(ascending: Tensor) -> Tensor:
    """For every element of an ascending vector, how many equal elements stand before it."""
    places = torch.arange(len(ascending), device=ascending.device)
    repeated = torch.zeros_like(ascending, dtype=torch.bool)
    repeated[1:] = ascending[1:] == ascending[:-1]
    return places - places.masked_fill(repeated, 0).cummax(0).values


def _candidates(
    products: Tensor, row_floors: Tensor, column_floors: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, columns and values of the products that reach the floor of their row or column."""
    # Comparing every product with its two floors costs 0.6 ns each (a 128-dimensional product
    # itself 1.5 ns); the maximum of a group costs 0.1 ns, and hardly any group has to be opened.
    groups = products.view(len(products), -1, GROUP)
    column_floors = column_floors.view(-1, GROUP)
    floors = torch.minimum(row_floors[:, None], column_floors.amin(1))
    rows, opened = (groups.amax(2) >= floors).nonzero(as_tuple=True)
    values = groups[rows, opened]
    floors = torch.minimum(row_floors[rows, None], column_floors[opened])
    which, lanes = (values >= floors).nonzero(as_tuple=True)
    return rows[which], opened[which] * GROUP + lanes, values[which, lanes]


def _collect_pairs(points: _Points, pool: _Pool) -> None:
    """Fill the pool from all pairs of points, each pair computed once for both of its points."""
    size = len(points.order)
    # Tiles on the diagonal first: they give every row a floor. `order` has points of one class
    # next to each other, so these floors are close to final ones if the embeddings are any good.
    # Tiles of 2 MiB up to 16,384 points, where memory counts, of 16 MiB above, where calls do.
    strip = BLOCK // 2 if size < 16 * BLOCK else 4 * BLOCK
    tile = torch.empty(BLOCK * max(BLOCK, strip), device=points.order.device)
    for start in range(0, size, BLOCK):
        rows, columns = points.rows(start, start + BLOCK), points.columns(start, start + BLOCK)
        products = tile[: len(rows) ** 2].view(len(rows), len(rows))
        torch.mm(rows, columns.T, out=products)
        pool.start(start, products.fill_diagonal_(-torch.inf))
    for start in range(0, size, BLOCK):
        rows = points.rows(start, start + BLOCK)
        for left in range(start + BLOCK, size, strip):
            _collect_tile(pool, tile, rows, points.columns(left, left + strip), start, left)


def _collect_tile(
    pool: _Pool, tile: Tensor, rows: Tensor, columns: Tensor, start: int, left: int
) -> None:
    padded = -(-len(columns) // GROUP) * GROUP
    products = tile[: len(rows) * padded].view(len(rows), padded)
    products[:, len(columns) :] = -torch.inf
    torch.mm(rows, columns.T, out=products[:, : len(columns)])
    row_floors = pool.floors[start : start + len(rows)]
    column_floors = torch.full((padded,), torch.inf, device=tile.device)
    column_floors[: len(columns)] = pool.floors[left : left + len(columns)]
    row, column, value = _candidates(products, row_floors, column_floors)
    # One `nonzero` and plain gathers: three boolean masks would search the mask three times.
    near = (value >= row_floors[row]).nonzero()[:, 0]
    pool.add(row[near] + start, column[near] + left, value[near])
    near = (value >= column_floors[column]).nonzero()[:, 0]
    near = near[column[near].argsort()]
    pool.add(column[near] + left, row[near] + start, value[near])


def _origin(points: Tensor) -> Tensor:
    """The mean, which is exactly the point if all points are identical."""
    total = torch.zeros(points.shape[1], dtype=torch.float64, device=points.device)
    for block in points.split(BLOCK):  # a float64 sum of all would copy them all
        total += block.sum(0, dtype=torch.float64)
    return (total / len(points)).float()


def _exact_squared(first: Tensor, second: Tensor) -> Tensor:
    """Squared distances of corresponding rows; overwrites `first`."""
    return first.sub_(second).square_().sum(1, dtype=torch.float64).float()


class _Search:
    """Nearest neighbours of queries among references (or among themselves)."""

    def __init__(self, queries: Tensor, references: Tensor | None):
        self.among_themselves = references is None
        self.queries = queries.detach().float()
        self.references = self.queries if references is None else references.detach().float()
        self.available = len(self.references) - int(self.among_themselves)
        # Distances do not depend on the origin, but the error bound grows with the norms.
        self.origin = _origin(self.references)

    def run(self, depths: Tensor, order: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (rows,) query indices and their (rows, k) neighbours, in chunks.

        Args:
            depths: (n,) how many neighbours each query needs; queries with 0 are left out, and of
                a chunk's columns only the first `depth` of each row count.
            order: (n,) the queries in an order that puts likely neighbours next to each other.
        """
        tiled = (depths > 0) & (depths + SPARE <= BLOCK // 4) & self.among_themselves
        if tiled.any():
            yield from self._by_tiles(torch.where(tiled, depths, 0), order)
        others = order[((depths > 0) & ~tiled)[order]]
        yield from self._by_rows(others, depths, torch.float32)

    def _by_tiles(self, depths: Tensor, order: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        points = _Points(self.queries, self.origin, order, torch.float32)
        error = _error_bound(points.embeddings.shape[1], points.largest_norm(), torch.float32)
        pool = _Pool(depths[order], error)
        _collect_pairs(points, pool)
        for start in range(0, len(order), BLOCK):
            rows = order[start : start + BLOCK]
            needed = depths[rows] > 0
            rows, keys = rows[needed], pool.keys[start : start + BLOCK][needed]
            if not len(rows):
                continue
            references = order[_references(keys).clamp_max_(len(order) - 1)]
            keys = _pack(_squared(keys), references).sort(1).values[:, : pool.keep]
            yield from self._settle(rows, keys, depths, error, torch.float64)

    def _by_rows(
        self, rows: Tensor, depths: Tensor, dtype: torch.dtype
    ) -> Iterator[tuple[Tensor, Tensor]]:
        if not len(rows):
            return
        everything = torch.arange(len(self.references), device=rows.device)
        references = _Points(self.references, self.origin, everything, dtype)
        queries = _Points(self.queries, self.origin, rows, dtype)
        norm = max(queries.largest_norm(), references.largest_norm())
        error = _error_bound(self.queries.shape[1], norm, dtype)
        columns = references.columns(0, len(everything)).T
        step = max(1, ROWS_CHUNK // len(everything))
        finer = torch.float64 if dtype == torch.float32 else None
        for start in range(0, len(rows), step):
            chunk = rows[start : start + step]
            products = queries.rows(start, start + step) @ columns
            if self.among_themselves:
                products.scatter_(1, chunk[:, None], -torch.inf)
            keep = min(int(depths[chunk].max()) + SPARE, self.available)
            best, found = products.topk(keep, dim=1)
            keys = _pack((best * -2).float(), found).sort(1).values
            yield from self._settle(chunk, keys, depths, error, finer)

    def _settle(
        self, rows: Tensor, keys: Tensor, depths: Tensor, error: float, finer: torch.dtype | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Order near-ties exactly; search rows with too many of them again, more finely."""
        squared = _squared(keys)
        reach = _reach(squared.gather(1, depths[rows, None] - 1), error)
        crowded = (squared[:, -1] <= reach[:, 0]) & (keys.shape[1] < self.available)
        close = (squared[:, 1:] <= _reach(squared[:, :-1], error)) & (squared[:, 1:] <= reach)
        close &= ~crowded[:, None]
        unsure = torch.zeros_like(squared, dtype=torch.bool)
        unsure[:, 1:] |= close
        unsure[:, :-1] |= close
        self._refine(keys, rows, unsure)
        width = int(depths[rows].max())
        yield rows[~crowded], _references(keys[~crowded].sort(1).values[:, :width])
        if finer is not None:
            yield from self._by_rows(rows[crowded], depths, finer)
        else:
            yield from self._one_by_one(rows[crowded], depths)

    def _refine(self, keys: Tensor, rows: Tensor, unsure: Tensor) -> None:
        """Replace the squared distances of unsure (row, column) places by exact ones."""
        for part in unsure.nonzero().split(max(1, PAIRS_CHUNK // self.queries.shape[1])):
            row, column = part.T.contiguous()
            references = _references(keys[row, column])
            squared = _exact_squared(
                self.queries.index_select(0, rows[row]), self.references.index_select(0, references)
            )
            keys[row, column] = _pack(squared, references)

    def _one_by_one(self, rows: Tensor, depths: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """For points with so many near-duplicates that only exact distances can tell them apart."""
        if not len(rows):
            return
        distinct, copies = torch.unique(self.references, dim=0, return_inverse=True)
        everything = torch.arange(len(self.references), device=rows.device)
        parts = distinct.split(max(1, PAIRS_CHUNK // distinct.shape[1]))
        for row, depth in zip(rows.tolist(), depths[rows].tolist(), strict=True):
            squared = torch.cat([_exact_squared(part.clone(), self.queries[row]) for part in parts])
            keys = _pack(squared[copies], everything)
            if self.among_themselves:
                keys[row] = EMPTY
            best = keys.topk(depth, largest=False).values
            yield torch.tensor([row], device=rows.device), _references(best)[None]
