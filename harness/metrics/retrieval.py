"""Exact nearest neighbours, and the retrieval metrics built on them, in bounded memory."""

import math
import re
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import faiss
import numpy as np
import torch
from sklearn.metrics import normalized_mutual_info_score
from torch import Tensor

Item = TypeVar("Item")
Result = TypeVar("Result")
Take = Callable[[Tensor, Tensor], None]  # of (rows,) queries and their (rows, k) neighbours

DEFAULT_METRICS = ("p_at_1", "r_precision", "map_at_r")

# How the search works. Matrix products in float32 give every squared distance with a known error
# bound (`_error_bound`). Per query a few candidates more than needed are kept, and wherever two of
# them are closer together than the bound can tell apart, their distances are computed again from
# the float32 differences of the coordinates, summed in float64: correct to 2 units in the last
# place of a float32, equal for duplicates. The order is that of these distances, ties by ascending
# index, whatever the tile size and the number of threads. (||a||^2 + ||b||^2 - 2ab on its own is
# wrong by up to 7e-5 for unit vectors of 512 dimensions in the worst case, by 1e-6 in practice:
# near-duplicates would come out in random order.)

BLOCK = 512  # rows and columns of a tile; a power of 2
PANEL = 2  # blocks of rows that share each block of columns
PIECE = 256  # rows at a time where a step needs temporaries, which then fit into the cache
DEEPEST = 248  # neighbours per query up to which tiles are searched; beyond, whole rows
SPARE = 8  # candidates kept beyond the needed depth, so that near-ties at the last place fit
PAIRS_CHUNK = 2**18  # coordinates per step of the exact distances
ROWS_CHUNK = 2**22  # distances per step of the row-wise search
SWITCH_SECONDS = 5e-5  # after which one thread lets the other run
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

    def take(rows: Tensor, neighbours: Tensor) -> None:
        found[rows] = neighbours

    search.run(depths, torch.arange(len(queries), device=queries.device), take)
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
        pool = labels if reference_labels is None else reference_labels
        search = _Search(embeddings, references, (labels, pool))
        depths = _depths(relevant, largest_ranks).clamp_max(search.available)
        per_query = _score(search, depths, relevant, labels, pool, metrics)
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
    reference_labels: Tensor,
    metrics: Sequence[str],
) -> dict[str, np.ndarray]:
    """Per-query values of every metric but nmi, NaN for queries of depth 0."""
    names = [name for name in metrics if name != "nmi"]
    unscored = torch.full((len(labels),), torch.nan, dtype=torch.float64, device=labels.device)
    scores = {name: unscored.clone() for name in names}

    def take(rows: Tensor, neighbours: Tensor) -> None:
        hits = reference_labels[neighbours] == labels[rows, None]
        for name in names:
            scores[name][rows] = _metric(name, hits, relevant[rows])

    search.run(depths, labels.argsort(stable=True), take)
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
    embeddings = embeddings.detach()
    if embeddings.sum().isfinite():  # then every value is; one that is not may be an overflow
        return
    least, most = embeddings.aminmax(dim=1)  # NaN if any is; no temporary of full size
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


def _on_workers(
    work: Callable[[Item], Result], items: Sequence[Item], device: torch.device
) -> list[Result]:
    """The results of `work` for all items, in any order, computed by two threads if on CPU.

    Most operations here are too small for torch to split: its second thread would idle.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1 or len(items) == 1:
        return [work(item) for item in items]
    inference = torch.is_inference_mode_enabled()  # each thread has a mode of its own
    remaining = iter(items)

    def work_through() -> list[Result]:
        torch.set_num_threads(threads // 2)  # of this thread and those it starts
        with torch.inference_mode(inference):
            return [work(item) for item in remaining]

    # Operations are short: a thread that waits 5 ms for the interpreter waits for ten of them.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    # This thread is one of the two: memory freed by a thread is not there for others to use.
    try:
        with ThreadPoolExecutor(1) as executor:
            helper = executor.submit(work_through)
            return work_through() + helper.result()
    finally:
        sys.setswitchinterval(interval)
        torch.set_num_threads(threads)


# On CPU numpy is faster than torch at these, measured on one thread: 0.1 against 1.0 ms for the few
# set places of 1024 x 1024, 0.7 against 3.9 ms to sort 1024 x 120 int64, 4.9 against 13.8 ms for
# the 90th largest of the rows of 1024 x 1024.


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


def _sorted(keys: Tensor) -> Tensor:
    """A copy, along the last dimension in ascending order."""
    return torch.from_numpy(np.sort(keys.numpy())) if keys.is_cpu else keys.sort().values


def _nth_largest(products: Tensor, ranks: Tensor) -> Tensor:
    """(rows,) the element of every row that has the given rank, from 1, in descending order."""
    if products.is_cpu:
        places = products.shape[1] - ranks
        parted = torch.from_numpy(np.partition(products.numpy(), np.unique(places)))
    else:
        places = ranks - 1
        parted = products.topk(int(ranks.max()), dim=1).values
    return parted.gather(1, places[:, None])[:, 0]


def _pack(squared: Tensor, references: Tensor) -> Tensor:
    """One int64 key per pair that sorts by squared distance, then by reference index."""
    return (_bits(squared) << 32) | references


def _bits(squared: Tensor) -> Tensor:
    """Integers of 31 bits that sort like the numbers, which are not negative but for rounding."""
    # The bits of a float32, read as an integer, sort like the float. abs() is for -0.0.
    return squared.clamp_min(0).abs_().view(torch.int32).to(torch.int64)


def _number(bits: Tensor) -> Tensor:
    """What `_bits` were taken of."""
    return bits.to(torch.int32).view(torch.float32)


def _squared(keys: Tensor) -> Tensor:
    return _number(keys >> 32)


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

        def set_half_norms(start: int) -> None:
            centred = self._centred(order[start : start + PIECE])
            self.half_norms[start : start + PIECE] = centred.square_().sum(1) / -2

        _on_workers(set_half_norms, range(0, len(order), PIECE), order.device)

    def _centred(self, places: Tensor) -> Tensor:
        return self.embeddings.index_select(0, places).to(self.dtype).sub_(self.origin)

    def _augmented(self, place: slice, norm_column: int) -> Tensor:
        order, dimensions = self.order[place], len(self.origin)
        shape = len(order), dimensions + 2
        block = torch.empty(shape, dtype=self.dtype, device=order.device)
        for places, piece in zip(order.split(PIECE), block.split(PIECE), strict=True):
            piece[:, :dimensions] = self._centred(places)
        block[:, dimensions:] = 1
        block[:, dimensions + norm_column] = self.half_norms[place]
        return block

    def rows(self, place: slice) -> Tensor:
        return self._augmented(place, norm_column=1)

    def columns(self, place: slice) -> Tensor:
        return self._augmented(place, norm_column=0)

    def largest_norm(self) -> float:
        return math.sqrt(-2 * float(self.half_norms.min()))


class _Pool:
    """The candidates of every query met so far: at least its `depth` nearest.

    They are kept block by block of queries, as integers that sort by query, then distance, then
    reference: one sort puts a block in order.

    Attributes:
        floors: (blocks, block) the least product (-squared distance / 2) that still makes a
            candidate; a thread may read them while another raises some: an old floor lets more
            pass, no less.
    """

    def __init__(self, depths: Tensor, error: float):
        self.depths, self.error, self.size = depths, error, len(depths)
        self.keep = int(depths.max()) + SPARE
        self.reference_bits = max(1, (self.size - 1).bit_length())
        # Memory counts up to 16,384 points; above, calls do. 31 bits of a key are distance; of the
        # others query and reference take 31, so that the end of the last query is an int64, too.
        block = BLOCK if self.size < 32 * BLOCK else 2 * BLOCK
        self.block = min(block, 2 ** (31 - self.reference_bits))
        self.block_bits = self.block.bit_length() - 1
        self.blocks = range(-(-self.size // self.block))
        self.adding = [threading.Lock() for _ in self.blocks]
        room = (self.keep + max(16, self.keep // 2)) * self.block
        self.keys = torch.empty(len(self.blocks), room, dtype=torch.int64, device=depths.device)
        self.used = [0] * len(self.blocks)
        shape, anything = (len(self.blocks), self.block), torch.finfo(torch.float32).min
        self.floors = torch.full(shape, torch.inf, device=depths.device)
        self.floors.view(-1)[: self.size] = torch.where(depths > 0, anything, torch.inf)

    def rows(self, block: int) -> slice:
        return slice(block * self.block, min((block + 1) * self.block, self.size))

    def start(self, block: int, products: Tensor) -> None:
        """Set the floors of a block by its products with itself, and add what reaches them."""
        depths = self.depths[self.rows(block)]
        # A query that needs more than there are gets its own place, -inf: no floor.
        last = _nth_largest(products, depths.clamp(1, products.shape[1]))
        floors = self.floors[block, : len(products)]
        floors.copy_(torch.maximum(floors, self._floor(last * -2)))
        self.add(block, block, products)

    def add(self, block: int, other: int, products: Tensor, turned: bool = False) -> None:
        """Add what reaches the floors of `block` in its tile of products with another.

        Args:
            products: (queries of `block`, `self.block`), the other way round if `turned`; -inf
                where `other` has fewer.
        """
        floors = self.floors[block]
        floors = floors if turned else floors[: len(products), None]
        places = _places_reaching(products, floors)
        values = products.view(-1).index_select(0, places)
        first = places >> self.block_bits
        second = places.bitwise_and_(self.block - 1)
        rows, columns = (second, first) if turned else (first, second)
        keys = _bits(values * -2)
        keys |= rows.bitwise_left_shift_(31)
        keys.bitwise_left_shift_(self.reference_bits)
        keys |= columns.add_(other * self.block)
        with self.adding[block]:
            if self.used[block] + len(keys) > self.keys.shape[1]:
                keys = self._compact(block, keys)
            start = self.used[block]
            self.used[block] += len(keys)
            self.keys[block, start : self.used[block]] = keys

    def _compact(self, block: int, more: Tensor) -> Tensor:
        """Take all candidates out, and return the nearest; raises the floors accordingly."""
        keys, starts, ends = self._take(block, more)
        last = starts + self.depths[self.rows(block)] - 1
        known = _set_places((last >= starts) & (last < ends))
        self.floors[block, known] = self._floor(_number(self._distance_bits(keys[last[known]])))
        ranks = torch.arange(len(keys), device=keys.device)
        ranks -= starts.repeat_interleave(ends - starts, output_size=len(keys))
        return keys.index_select(0, _set_places(ranks < self.keep))

    def _take(self, block: int, more: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """All candidates in order, and where those of each query start and end."""
        keys = _sorted(torch.cat([self.keys[block, : self.used[block]], more]))
        self.used[block] = 0
        count = self.rows(block).stop - self.rows(block).start
        bounds = torch.arange(count + 1, device=keys.device) << (31 + self.reference_bits)
        bounds = torch.searchsorted(keys, bounds)
        return keys, bounds[:-1], bounds[1:]

    def _distance_bits(self, keys: Tensor) -> Tensor:
        return (keys >> self.reference_bits) & 0x7FFFFFFF

    def _floor(self, squared: Tensor) -> Tensor:
        """The floor of a query whose last needed candidate has this squared distance."""
        return _reach(squared, self.error) / -2

    def sorted(self, block: int) -> Tensor:
        """(rows, keep) packed candidates of a block, ascending, EMPTY where there are no more."""
        keys, starts, ends = self._take(block, self.keys[block, :0])
        places = starts[:, None] + torch.arange(self.keep, device=keys.device)
        keys = keys[places.clamp_max(len(keys) - 1)] if len(keys) else places
        packed = (self._distance_bits(keys) << 32) | (keys & (2**self.reference_bits - 1))
        return packed.masked_fill_(places >= ends[:, None], EMPTY)


def _reach(squared: Tensor, error: float) -> Tensor:
    """How far beyond a computed squared distance another may lie and truly be nearer or tied."""
    # Two errors, and the rounding of either to float32 in its key.
    return squared * (1 + 2**-22) + 2 * error


def _unsure(squared: Tensor, hits: Tensor | None, error: float) -> Tensor:
    """Which places of ascending rows may be in wrong order with a place from which they differ.

    All places differ if there are no hits; else hits differ from misses only: hits among
    themselves, however close, score the same in any order.
    """
    before = torch.full_like(squared, -torch.inf)
    after = torch.full_like(squared, torch.inf)
    if hits is None:
        before[:, 1:], after[:, :-1] = squared[:, :-1], squared[:, 1:]
    else:
        # Rows ascend, so the last miss so far is the largest so far.
        last_hit = torch.where(hits, squared, before).cummax(1).values
        last_miss = torch.where(hits, before, squared).cummax(1).values
        next_hit = torch.where(hits, squared, after).flip(1).cummin(1).values.flip(1)
        next_miss = torch.where(hits, after, squared).flip(1).cummin(1).values.flip(1)
        before, after = (
            torch.where(hits, last_miss, last_hit),
            torch.where(hits, next_miss, next_hit),
        )
    return (squared <= _reach(before, error)) | (after <= _reach(squared, error))


def _collect_pairs(points: _Points, pool: _Pool) -> None:
    """Fill the pool from all pairs of points, each pair computed once for both of its points."""

    def start(block: int) -> None:
        place = pool.rows(block)
        products = empty_tile()[: place.stop - place.start]
        multiply(points.rows(place), points.columns(place), products)
        pool.start(block, products.fill_diagonal_(-torch.inf))

    def collect_right_of(panel: range) -> None:
        rows = [points.rows(pool.rows(block)) for block in panel]
        products = empty_tile()
        for column in range(panel.start + 1, len(pool.blocks)):
            columns = points.columns(pool.rows(column))
            for block, block_rows in zip(panel, rows, strict=True):
                if block < column:
                    multiply(block_rows, columns, products)
                    pool.add(block, column, products)
                    pool.add(column, block, products, turned=True)

    def empty_tile() -> Tensor:
        return torch.empty(pool.block, pool.block, device=points.order.device)

    def multiply(rows: Tensor, columns: Tensor, products: Tensor) -> None:
        torch.mm(rows, columns.T, out=products[:, : len(columns)])
        products[:, len(columns) :] = -torch.inf

    # Tiles on the diagonal first: they give every row a floor. `order` has points of one class
    # next to each other, so these floors are close to final ones if the embeddings are any good.
    _on_workers(start, pool.blocks, points.order.device)
    panels = [pool.blocks[first : first + PANEL] for first in range(0, len(pool.blocks), PANEL)]
    _on_workers(collect_right_of, panels, points.order.device)


def _origin(points: Tensor) -> Tensor:
    """The mean, which is exactly the point if all points are identical."""
    total = torch.zeros(points.shape[1], dtype=torch.float64, device=points.device)
    for block in points.split(PIECE):  # a float64 sum of all would copy them all
        total += block.sum(0, dtype=torch.float64)
    return (total / len(points)).float()


def _exact_squared(first: Tensor, second: Tensor) -> Tensor:
    """Squared distances of corresponding rows; overwrites `first`."""
    return first.sub_(second).square_().sum(1, dtype=torch.float64).float()


class _Search:
    """Nearest neighbours of queries among references (or among themselves)."""

    def __init__(
        self,
        queries: Tensor,
        references: Tensor | None,
        labels: tuple[Tensor, Tensor] | None = None,
    ):
        """If labels (of queries, of references) are given, the order of neighbours need be right
        only as far as it changes which of them have the label of the query."""
        self.labels = labels
        self.among_themselves = references is None
        self.queries = queries.detach().float()
        self.references = self.queries if references is None else references.detach().float()
        self.available = len(self.references) - int(self.among_themselves)
        # Distances do not depend on the origin, but the error bound grows with the norms.
        self.origin = _origin(self.references)

    def run(self, depths: Tensor, order: Tensor, take: Take) -> None:
        """Hand query indices and their neighbours to `take`, in chunks, from several threads.

        Args:
            depths: (n,) how many neighbours each query needs; queries with 0 are left out, and of
                a chunk's columns only the first `depth` of each row count.
            order: (n,) the queries in an order that puts likely neighbours next to each other.
            take: called with every query once.
        """
        tiled = (depths > 0) & (depths <= DEEPEST) & self.among_themselves
        crowded = order[:0]
        if tiled.any():
            crowded = self._by_tiles(torch.where(tiled, depths, 0), order, take)
        others = order[((depths > 0) & ~tiled)[order]]
        others = self._by_rows(others, depths, torch.float32, take)
        crowded = self._by_rows(torch.cat([crowded, others]), depths, torch.float64, take)
        self._one_by_one(crowded, depths, take)

    def _by_tiles(self, depths: Tensor, order: Tensor, take: Take) -> Tensor:
        """Search by tiles; return the rows that need a finer search."""
        points = _Points(self.queries, self.origin, order, torch.float32)
        error = _error_bound(points.embeddings.shape[1], points.largest_norm(), torch.float32)
        pool = _Pool(depths[order], error)
        _collect_pairs(points, pool)

        def settle(block: int) -> Tensor:
            crowded = []
            for rows, keys in zip(
                order[pool.rows(block)].split(PIECE),
                pool.sorted(block).split(PIECE),
                strict=True,
            ):
                needed = _set_places(depths[rows] > 0)
                rows, keys = rows[needed], keys[needed]
                references = order[_references(keys).clamp_max_(len(order) - 1)]
                keys = (keys >> 32 << 32) | references
                crowded.append(self._settle(rows, keys, depths, error, take))
            return torch.cat(crowded)

        return torch.cat(_on_workers(settle, pool.blocks, order.device))

    def _by_rows(self, rows: Tensor, depths: Tensor, dtype: torch.dtype, take: Take) -> Tensor:
        """Search row by row; return the rows that need a finer search."""
        if not len(rows):
            return rows
        everything = torch.arange(len(self.references), device=rows.device)
        references = _Points(self.references, self.origin, everything, dtype)
        queries = _Points(self.queries, self.origin, rows, dtype)
        norm = max(queries.largest_norm(), references.largest_norm())
        error = _error_bound(self.queries.shape[1], norm, dtype)
        columns = references.columns(slice(None)).T
        step = max(1, ROWS_CHUNK // len(everything))
        crowded = []
        for start in range(0, len(rows), step):
            chunk = rows[start : start + step]
            products = queries.rows(slice(start, start + step)) @ columns
            if self.among_themselves:
                products.scatter_(1, chunk[:, None], -torch.inf)
            keep = min(int(depths[chunk].max()) + SPARE, self.available)
            best, found = products.topk(keep, dim=1)
            keys = _sorted(_pack((best * -2).float(), found))
            crowded.append(self._settle(chunk, keys, depths, error, take))
        return torch.cat(crowded)

    def _settle(
        self, rows: Tensor, keys: Tensor, depths: Tensor, error: float, take: Take
    ) -> Tensor:
        """Order near-ties exactly; return the rows with too many of them."""
        if not len(rows):
            return rows
        squared = _squared(keys)
        reach = _reach(squared.gather(1, depths[rows, None] - 1), error)
        crowded = (squared[:, -1] <= reach[:, 0]) & (keys.shape[1] < self.available)
        unsure = _unsure(squared, self._hits(rows, keys), error)
        self._refine(keys, rows, unsure & (squared <= reach) & ~crowded[:, None])
        width = int(depths[rows].max())
        take(rows[~crowded], _references(_sorted(keys[~crowded])[:, :width]))
        return rows[crowded]

    def _hits(self, rows: Tensor, keys: Tensor) -> Tensor | None:
        """Which candidates have the label of their query, or None if there are no labels."""
        if self.labels is None:
            return None
        labels, reference_labels = self.labels
        return reference_labels[_references(keys)] == labels[rows, None]

    def _refine(self, keys: Tensor, rows: Tensor, unsure: Tensor) -> None:
        """Replace the squared distances of unsure (row, column) places by exact ones."""
        places, width = _set_places(unsure), keys.shape[1]
        for part in places.split(max(1, PAIRS_CHUNK // self.queries.shape[1])):
            row = torch.div(part, width, rounding_mode="floor")
            references = _references(keys.view(-1)[part])
            squared = _exact_squared(
                self.queries.index_select(0, rows[row]), self.references.index_select(0, references)
            )
            keys.view(-1)[part] = _pack(squared, references)

    def _one_by_one(self, rows: Tensor, depths: Tensor, take: Take) -> None:
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
            take(torch.tensor([row], device=rows.device), _references(best)[None])
