"""Fair comparison of deep metric learning losses, in the manner of the reality check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.results.leaderboard import Leaderboard
    from harness.searching.summary import SearchSummary

__version__ = "0.1.0"


def search(loss: str, **values: Any) -> SearchSummary:
    """Search the hyper-parameters of one loss; takes the keys of RunConfig.

    >>> harness.search(loss="proxyanchor", dataset="glyphs", trials=10)
    """
    from harness.config import RunConfig
    from harness.searching.study import search

    return search([RunConfig().updated({"loss": loss, **values})])[0]


def evaluate(
    loss: str | Sequence[str] = (),
    metrics: Sequence[str] = (),
    single: bool = False,
    **values: Any,
) -> list[Leaderboard]:
    """Evaluate finished searches, of some losses or all, and write their tables.

    Args:
        metrics: on demand, as `recall@1,2,4,8` and `nmi`.
        single: one model of the concatenated size, too.
        values: keys of RunConfig.

    >>> harness.evaluate(loss="proxyanchor", dataset="glyphs")[0].frame
    """
    from harness.evaluation.reproductions import evaluate
    from harness.metrics.names import parse_metrics
    from harness.results import leaderboard, rendering

    losses = [loss] if isinstance(loss, str) else loss
    done = evaluate(losses, values, metrics=parse_metrics(metrics), single=single)
    boards = [leaderboard.build(table) for table in done.tables]
    for board in boards:
        rendering.write(board)
    return boards


def __getattr__(name: str) -> Any:
    """`from harness import CCPLoss`, without importing torch for everybody else."""
    if name.endswith("Loss"):
        import losses

        return getattr(losses, name)
    raise AttributeError(f"module 'harness' has no attribute '{name}'")
