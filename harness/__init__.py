"""Fair comparison of deep metric learning losses, in the manner of the reality check.

`search`, `evaluate`, `train`, `sweep`, `compare`, `verdict`, `leaderboard`, `merge`, `embed`,
`export` and `write_report` do what the commands of these names (`eval`, `report`) do, and return
what those print or write. Where a command takes settings of `harness.config.RunConfig`, so does the
function, by name. `judge` returns what `harness verdict --json` prints, as typed data. `load` takes
a folder that `harness export` wrote. Workers are processes of their own, which never run the script
that started them.

The classes of the losses can be had from here or from `losses`: `from harness import CCPLoss`.
`harness.testing` checks a loss, a data set, a protocol or a trunk of yours.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

if TYPE_CHECKING:
    import numpy as np

    from harness.config import Settings
    from harness.exported.export import Exported
    from harness.exported.model import ExportedModel
    from harness.judgement.judged import JudgedPair, Judgement
    from harness.records.merge import Merged
    from harness.records.records import FoldRecord
    from harness.searching.summary import SearchSummary
    from harness.system.progress import Listener
    from harness.tables.leaderboard import Leaderboards
    from harness.tables.sweeps import SweepTable

__version__ = "0.1.0"

# harness/losses and harness/protocols are links to the folders at the top of the repository. A
# checkout without links (git on Windows writes text files instead) finds the folders themselves.
if not Path(__file__).with_name("losses").is_dir():
    __path__.append(str(Path(__file__).parents[1]))

__all__ = [
    *("compare", "embed", "evaluate", "export", "judge", "leaderboard", "load", "merge", "search"),
    *("sweep", "train", "verdict", "write_report"),
]


@overload
def search(loss: str, *, progress: bool = False, **settings: Unpack[Settings]) -> SearchSummary: ...


@overload
def search(
    loss: list[str] | tuple[str, ...], *, progress: bool = False, **settings: Unpack[Settings]
) -> list[SearchSummary]: ...


def search(
    loss: str | list[str] | tuple[str, ...],
    *,
    progress: bool = False,
    **settings: Unpack[Settings],
) -> SearchSummary | list[SearchSummary]:
    """Search the hyper-parameters of a loss, or of several one after the other.

    Goes on with a search that is there; finished work is never repeated.

    Args:
        loss: name, or path of a Python file.
        progress: show it as bars, on a terminal or in a notebook, or as lines elsewhere.
        settings: those of harness.config.RunConfig. With `searches`, a loss is searched several
            times.

    Returns:
        The summary of the search, or of the first of several; a list of all summaries if `loss`
        is a list.

    >>> harness.search("proxyanchor", dataset="glyphs", trials=10).best_params
    """
    from harness.searching.loop import search

    names = [loss] if isinstance(loss, str) else loss
    with _shown(progress, settings) as listener:
        summaries = search([_config(name, settings) for name in names], listener)
    return summaries[0] if isinstance(loss, str) else summaries


def evaluate(
    loss: str | Sequence[str] = (),
    *,
    metrics: Sequence[str] = (),
    single: bool = False,
    progress: bool = False,
    **settings: Unpack[Settings],
) -> Leaderboards:
    """Evaluate finished searches, of some losses or all, and write their tables.

    The best parameters are trained again with new seeds; then the test classes are opened. With a
    `preset`, or under a protocol that leaves nothing to search, fixed configurations instead. What
    could not be evaluated is in `.problems` of the list that is returned, and a warning each.

    Args:
        loss: name or names; all that were searched if there is none.
        metrics: on demand, as `recall@1,2,4,8` and `nmi`.
        single: one model of the concatenated size, too.
        progress: as in `search`.
        settings: those of harness.config.RunConfig; `dataset`, `protocol` and `trunk` pick among
            the searches.

    >>> harness.evaluate("proxyanchor", dataset="glyphs")[0].frame
    """
    from harness.evaluation.reproductions import evaluate
    from harness.metrics.names import parse_metrics
    from harness.registry import find_file, forget_listings

    forget_listings()
    losses = [find_file(name) for name in ([loss] if isinstance(loss, str) else loss)]
    with _shown(progress, settings) as listener:
        done = evaluate(losses, {**settings}, listener, parse_metrics(metrics), single)
    for problem in done.problems:
        warnings.warn(problem, stacklevel=2)
    for file in dict.fromkeys(done.unnamed):
        warnings.warn(f"not evaluated: {file}; name it to have it run", stacklevel=2)
    return _write_tables(done.tables, done.problems)


def train(
    loss: str, *, folds: int | None = None, progress: bool = False, **settings: Unpack[Settings]
) -> list[FoldRecord]:
    """Train one configuration on the folds, without a search and without the test classes.

    Args:
        loss: name, or path of a Python file.
        folds: only so many of them.
        progress: as in `search`.
        settings: those of harness.config.RunConfig; `params` replaces published parameters.

    >>> harness.train("proxyanchor", params={"margin": 0.2})[0].best_score
    """
    from harness.training.trial import train

    with _shown(progress, settings) as listener:
        return train(_config(loss, settings), folds, listener)[1]


def sweep(
    loss: str | Sequence[str],
    over: Mapping[str, Sequence[Any]] | None = None,
    *,
    variants: Mapping[str, Mapping[str, Any]] | None = None,
    test: bool = False,
    seeds: int = 1,
    metrics: Sequence[str] = (),
    zipped: bool = False,
    name: str = "",
    max_points: int = 200,
    progress: bool = False,
    **settings: Unpack[Settings],
) -> SweepTable:
    """Train a grid of settings and write one table of all its points.

    Judges by the validation classes. Goes on with a sweep that is there; finished work is never
    repeated.

    Args:
        loss: name or names, each of them at every point.
        over: what varies -> its values; `params.NAME`, `protocol.FIELD` or a setting.
        variants: name -> what it changes, each with all of these combinations: an ablation.
        test: open the test classes at every point, too.
        seeds: of each point; from two on there are intervals.
        metrics: on the test classes, as `recall@1,2,4,8` and `nmi`.
        zipped: first values together, then second ones, instead of all combinations.
        name: of the folder in results/sweeps.
        max_points: a larger grid is refused.
        progress: as in `search`.
        settings: those of harness.config.RunConfig, the same for all points.

    >>> harness.sweep("proxygml", {"params.ratio": [0.05, 0.5, 1.0]}).frame
    """
    from harness.metrics.names import parse_metrics
    from harness.registry import find_file, forget_listings
    from harness.sweeping.axes import make_axis
    from harness.sweeping.run import Sweep, sweep

    forget_listings()
    asked = Sweep(
        losses=[find_file(name) for name in ([loss] if isinstance(loss, str) else loss)],
        axes=[make_axis(key, list(values)) for key, values in (over or {}).items()],
        values={**settings},
        variants=variants or {},
        name=name,
        zipped=zipped,
        test=test,
        seeds=seeds,
        metrics=parse_metrics(metrics),
        max_points=max_points,
    )
    with _shown(progress, settings) as listener:
        return sweep(asked, listener)


def compare(
    *methods: str,
    dataset: str | Sequence[str] = "glyphs",
    protocol: str = "mlrc",
    trunk: str | None = None,
    results_dir: str = "results",
    against: str | None = None,
) -> list[JudgedPair]:
    """Judge each pair of some methods, from the records of their tables.

    Args:
        methods: two or more rows of a table.
        dataset: one or more, each with a table of its own.
        protocol: of the tables.
        trunk: needed where a data set has tables of several.
        against: results to compare with, or "none"; None takes those that came with the package.

    >>> harness.compare("proxyanchor", "contrastive", dataset="glyphs")[0].answer
    """
    from pathlib import Path

    from harness.judgement.judge import find_pairs_of, find_stored, judge
    from harness.records.layout import find_table, named_like

    names = [dataset] if isinstance(dataset, str) else dataset
    tables = [find_table(Path(results_dir), protocol, name, trunk) for name in names]
    stored = find_stored(Path(results_dir), against)
    judgement = judge(Path(results_dir), stored, named_like(tables))
    return [pair for _, pair in find_pairs_of(judgement, methods, _full_name)]


def judge(
    method: str | None = None,
    *,
    dataset: str | None = None,
    protocol: str | None = None,
    trunk: str | None = None,
    results_dir: str = "results",
    against: str | None = None,
    margin: float = 0.5,
) -> Judgement:
    """Judge every table: rows with groups and budgets, pairs with intervals and answers.

    Args:
        method: a row whose pairs are wanted; None for all pairs.
        dataset: of the tables that count; None for all.
        protocol: of the tables that count; None for all.
        trunk: of the tables that count; None for all.
        against: results to compare with, or "none"; None takes those that came with the package.
        margin: largest difference that is called equivalent, in points.

    >>> [row.letters for row in harness.judge(dataset="glyphs").tables[0].rows]
    """
    from pathlib import Path

    from harness.judgement.judge import find_rows, find_stored, judge, only_rows
    from harness.records.layout import fits

    results = Path(results_dir)
    judgement = judge(
        results,
        find_stored(results, against),
        lambda table: fits(table, protocol, dataset, trunk),
        margin / 100,
    )
    if method is None:
        return judgement
    return only_rows(judgement, find_rows(judgement, method, _full_name))


def verdict(
    method: str | None = None,
    *,
    dataset: str | None = None,
    protocol: str | None = None,
    trunk: str | None = None,
    results_dir: str = "results",
    against: str | None = None,
) -> str:
    """Say in plain words, as Markdown, what the tables show, from their records alone.

    Args:
        method: a row to compare with all others, such as a loss of yours; None for all tables.
        dataset: of the tables that count; None for all.
        protocol: of the tables that count; None for all.
        trunk: of the tables that count; None for all.
        against: results to compare with, or "none"; None takes those that came with the package.

    >>> print(harness.verdict("proxyanchor", dataset="glyphs"))
    """
    from pathlib import Path

    from harness.records.published import find_folder
    from harness.verdicts.text import write_verdict

    judgement = judge(
        dataset=dataset,
        protocol=protocol,
        trunk=trunk,
        results_dir=results_dir,
        against=against,
    )
    return write_verdict(judgement, method, find_folder(Path(results_dir)), _full_name)


def embed(
    method: str, *, reproduction: int = 1, **settings: Unpack[Settings]
) -> dict[str, np.ndarray]:
    """Embed all test images with the models of a row, which opens the test classes.

    Needs the models that `evaluate` left in `runs_dir`.

    Args:
        method: row of a table.
        reproduction: number of the one whose models are used.
        settings: `dataset`, `protocol` and `trunk` choose the table; others say where things are.

    Returns:
        concatenated (images, size), separated (models, images, size), labels, class_names, files,
        and queries if the data set separates queries from gallery.

    >>> harness.embed("proxyanchor", dataset="glyphs")["concatenated"].shape
    """
    from harness.cli.kept import find_row
    from harness.cli.options import Given
    from harness.evaluation.export import test_arrays

    _, kept = find_row(Given([], {**settings}), method, reproduction)
    return test_arrays(kept)


def export(
    method: str,
    output: str | Path,
    *,
    formats: Sequence[str] = (),
    reproduction: int = 1,
    **settings: Unpack[Settings],
) -> Exported:
    """Write the models of a row to a new folder, which `load` reads on any machine.

    Needs the models that `evaluate` left in `runs_dir`.

    Args:
        method: row of a table.
        output: folder to make.
        formats: more than the weights: "onnx" or "torch".
        reproduction: as in `embed`.
        settings: as in `embed`.

    >>> harness.export("proxyanchor", "proxyanchor-glyphs", dataset="glyphs").differences
    """
    from harness.cli.kept import find_row
    from harness.cli.options import Given
    from harness.errors import unknown
    from harness.exported.export import export
    from harness.exported.formats import FORMATS

    for name in formats:
        if name not in FORMATS:
            raise unknown("format", name, FORMATS)
    record, kept = find_row(Given([], {**settings}), method, reproduction)
    return export(kept, record, Path(output), formats)


def leaderboard(
    dataset: str | None = None,
    *,
    protocol: str | None = None,
    trunk: str | None = None,
    results_dir: str = "results",
    against: str | None = None,
) -> Leaderboards:
    """Make tables again from their records, and write their files. Notebooks show them as tables.

    Args:
        dataset: of the tables; None for all.
        protocol: of the tables; None for all.
        trunk: of the tables; None for all.
        against: results whose rows are added, or "none"; None shows those that came with the
            package without writing them.

    >>> harness.leaderboard("glyphs")[0].frame
    """
    from harness.errors import HarnessError
    from harness.records.layout import find_tables, fits

    tables = [one for one in find_tables(Path(results_dir)) if fits(one, protocol, dataset, trunk)]
    if not tables:
        raise HarnessError(f"no such table in {results_dir}; `harness eval` writes records")
    return _write_tables(tables, [], against)


def merge(*folders: str | Path, results_dir: str = "results") -> Merged:
    """Copy records of other machines or labs, and write the tables that they are in.

    Args:
        folders: results to copy from. Nothing is overwritten. `.refused` of what is returned says
            which records do not fit, and why.

    >>> harness.merge("their/results").copied
    """
    from harness.records.merge import merge

    merged = merge([Path(folder) for folder in folders], Path(results_dir))
    _write_tables(merged.tables, merged.problems)
    return merged


def write_report(
    *tables: str,
    output: str | Path = "report.html",
    against: str | None = None,
    pictures: bool = False,
    methods: Sequence[str] = (),
    **settings: Unpack[Settings],
) -> Path:
    """Write one self-contained HTML page about some tables, or all, and return its path.

    Args:
        tables: parts of their names, such as "cub".
        against: as in `judge`.
        pictures: with images, which opens the test classes once per method.
        methods: rows to show images for; the best four if there are none.
        settings: `results_dir`, and for pictures where runs and data are.

    >>> harness.write_report("glyphs", output="glyphs.html")
    """
    from harness.config import RunConfig
    from harness.loss_file import is_file
    from harness.registry import find_file
    from harness.report.page import read_report
    from harness.report.write import add_pictures, write_report

    made = read_report(Path(RunConfig().updated(settings).results_dir), tables, against)
    if pictures:
        from harness.report.galleries import PictureSettings

        named = [find_file(method) for method in methods]
        files = tuple(filter(is_file, named))
        rows = tuple(map(_full_name, named))
        add_pictures(made, settings, PictureSettings(methods=rows, loss_files=files))
    write_report(made, Path(output))
    return Path(output)


def _write_tables(
    folders: Sequence[Path], problems: Sequence[str], against: str | None = None
) -> Leaderboards:
    from harness.tables.leaderboard import Leaderboards, build, write

    boards = Leaderboards([build(folder, against) for folder in folders], problems)
    for board in boards:
        if board.lines:
            write(board)
    return boards


def load(folder: str | Path, device: str = "auto") -> ExportedModel:
    """Load a model that `harness export` wrote, to embed images with it.

    Needs neither the data set nor the folder of runs, and runs no code from the folder.

    Args:
        folder: as given to `harness export --output`.
        device: auto, cuda, cuda:N or cpu.

    >>> harness.load("proxyanchor-cub").embed(["a.jpg", "b.jpg"]).shape
    """
    from harness.exported.model import load

    return load(folder, device)


@contextmanager
def _shown(progress: bool, settings: Settings) -> Iterator[Listener]:
    """Who listens to long work: bars for people, lines for logs, or nobody; and loggers."""
    from harness.cli.options import progress as shown_progress
    from harness.event_log import with_logs
    from harness.system.progress import ignore

    config = _config("", settings)
    with shown_progress(False, config) if progress else with_logs(config, ignore) as listener:
        yield listener


def _full_name(method: str) -> str:
    from harness.registry import full_name

    return full_name(method)


def _config(loss: str, settings: Settings) -> Any:
    from harness.config import RunConfig
    from harness.registry import find_file, forget_listings

    forget_listings()
    return RunConfig().updated({**settings, "loss": find_file(loss)})


def __getattr__(name: str) -> Any:
    """`from harness import CCPLoss`, without importing torch for everybody else."""
    if name.endswith("Loss"):
        from harness import losses

        return getattr(losses, name)
    raise AttributeError(f"module 'harness' has no attribute '{name}'")
