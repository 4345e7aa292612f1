"""Single figures: every kind is drawn, in every format, with names as they stand."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_records import make_record, put_scores
from made_tables import FORMULA, METHODS

from harness.cli import main
from harness.report.figures import FIGURES, WIDTHS, Choice, draw
from harness.report.table import Table, read_table


@pytest.fixture(scope="module")
def table(results: Path) -> Table:
    found = read_table(next(results.glob("mlrc/cub-*")))
    assert found is not None
    return found


def plot(results: Path, figure: str, output: Path, *flags: str) -> int:
    where = ["--dataset", "cub", "--results-dir", str(results), "--output", str(output)]
    return main(["plot", figure, *where, *flags])


@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_is_drawn(results: Path, tmp_path: Path, figure: str) -> None:
    path = tmp_path / f"{figure}.svg"
    one = ["--method", METHODS[0]] if figure == "contour" else []
    assert plot(results, figure, path, *one) == 0
    text = path.read_text()
    shown = {"classes": METHODS[-2:], "contour": METHODS[:1]}.get(figure, METHODS)
    for method in shown:
        # Text stays text, and no dollar begins a formula.
        assert method.replace("&", "&amp;") in text, method


def test_a_method_is_known_by_its_alias(results: Path, tmp_path: Path) -> None:
    path = tmp_path / "scores.svg"
    assert plot(results, "scores", path, "--method", "ccp") == 0
    assert "ccp-c2" in path.read_text() and "hpl-pa" not in path.read_text()


def test_a_row_that_coincides_with_its_base_is_not_dark(
    tmp_path: Path,
) -> None:
    """Two of three methods coincide, and the third is behind them."""
    ranges = {"coarse_weight": {"low": 1e-3, "high": 1.0, "log": True}}
    search = {**make_record().search, "base": "proxyanchor", "ranges": ranges}
    scores = [0.5, 0.51, 0.52, 0.53, 0.54]
    put_scores(tmp_path, "proxyanchor", scores)
    lucky = [score + 0.1 for score in scores]
    params = {"coarse_weight": 1e-3}
    put_scores(tmp_path, "hpl-pa", lucky, params=params, search=search)
    folder = put_scores(tmp_path, "ms", [score - 0.1 for score in scores])
    table = read_table(folder)
    assert table is not None
    image = draw("differences", Choice(table)).axes[0].images[0].get_array()
    assert image is not None
    open_, real, behind = image[0][1], image[0][2], image[1][2]
    assert real == behind < open_ == 1  # hpl-pa, proxyanchor, ms


def test_nobody_leads_a_figure_of_too_few_reproductions(tmp_path: Path) -> None:
    for count, fill in ((1, ["white", "white"]), (5, ["white", "black"])):
        folder = put_scores(tmp_path, "ms", [0.5 + 0.01 * i for i in range(count)])
        put_scores(tmp_path, "c2", [0.6 + 0.01 * i for i in range(count)])
        table = read_table(folder)
        assert table is not None
        axes = draw("scores", Choice(table)).axes[0]
        assert [bar.lines[0].get_markerfacecolor() for bar in axes.containers] == fill  # type: ignore[union-attr]


def test_the_marks_are_where_the_scores_are(table: Table) -> None:
    axes = draw("selection", Choice(table)).axes[0]
    places = [tuple(points.get_offsets()[0]) for points in axes.collections]  # type: ignore[index]
    frame = table.frame.set_index("method")
    expected = [
        (100 * frame["validation_score"][m], 100 * frame["map_at_r_concatenated"][m])
        for m in table.trained
    ]
    assert places == [pytest.approx(place, rel=1e-4) for place in expected]


def test_a_contour_has_the_trials_on_the_scales_of_their_ranges(table: Table) -> None:
    axes = draw("contour", Choice(table, ("ms",))).axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("margin", "loss_lr")
    assert (axes.get_xscale(), axes.get_yscale()) == ("linear", "log")
    tried = table.search("ms")["trial_params"]
    expected = list(zip(tried["margin"], tried["loss_lr"], strict=True))[1:]  # the first failed
    trials, best = (points.get_offsets().tolist() for points in axes.collections[-2:])
    assert trials == [list(point) for point in expected]
    assert best == [list(expected[table.search("ms")["best_trial"] - 1])]


def test_a_course_that_looked_at_the_test_says_so(tmp_path: Path) -> None:
    plain = make_record()
    looked = {**plain.identity["protocol"], "name": "classic-hpl", "select": "test"}
    history = {"steps": [1, 2], "loss": [1.0, 0.5], "score": [0.1, 0.2]}
    facts = [{**fold, "history": history} for fold in plain.folds]
    for results, kind, protocol in (
        ("a", "reproduction", plain.identity["protocol"]),
        ("b", "test-selected", looked),
    ):
        table = put_scores(
            tmp_path / results, "ms", [0.5], kind=kind, protocol=protocol, folds=facts
        )
        found = read_table(table)
        assert found is not None
        title = draw("training", Choice(found)).axes[0].get_ylabel()
        assert title == ("test MAP@R, %" if kind == "test-selected" else "validation MAP@R, %")


def test_validation_is_measured_in_the_metric_that_selects(tmp_path: Path) -> None:
    protocol = {**make_record().identity["protocol"], "metric": "p_at_1"}
    search = {**make_record().search, "trial_scores": [0.1, 0.2]}
    folder = put_scores(tmp_path, "ms", [0.5], protocol=protocol, search=search)
    found = read_table(folder)
    assert found is not None
    assert draw("search", Choice(found)).axes[0].get_ylabel() == "validation P@1, %"


@pytest.mark.parametrize("ending", ["svg", "pdf", "png"])
def test_the_ending_is_the_format_and_the_bytes_repeat(
    results: Path, tmp_path: Path, ending: str
) -> None:
    begin = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}[ending]
    paths = [tmp_path / f"{number}.{ending}" for number in (1, 2)]
    for path in paths:
        assert plot(results, "scores", path, "--serif", "--columns", "2") == 0
    one, other = (path.read_bytes() for path in paths)
    assert one.startswith(begin) and one == other


def test_the_width_is_that_of_columns(table: Table) -> None:
    for columns, width in WIDTHS.items():
        assert draw("cost", Choice(table), columns).get_figwidth() == width


@pytest.mark.parametrize(
    ("figure", "name", "flags", "message"),
    [
        ("score", "f.svg", [], "no figure named 'score'. Did you mean 'scores'?"),
        ("scores", "f.gif", [], "--output must end in .svg or .pdf or .png"),
        ("scores", "f.svg", ["--method", "msx"], "no method named 'msx'"),
        ("scores", "f.svg", ["--columns", "3"], "1 or 2 columns wide, got 3"),
        ("scores", "f.svg", ["--metric", "nmi"], "has no column nmi_concatenated"),
        ("scores", "f.svg", ["--embedding", "both"], "no embedding named 'both'"),
        ("classes", "f.svg", ["--method", "ms"], "takes two methods"),
        ("contour", "f.svg", [], "a contour takes one method: --method"),
    ],
)
def test_what_cannot_be_drawn_is_said(
    results: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    figure: str,
    name: str,
    flags: list[str],
    message: str,
) -> None:
    assert plot(results, figure, tmp_path / name, *flags) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("figure", ["search", "training"])
def test_old_records_are_said_to_lack_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], figure: str
) -> None:
    put_scores(tmp_path / "results", "ms", [0.5, 0.6])
    assert plot(tmp_path / "results", figure, tmp_path / "f.svg") == 2
    assert "hold nothing for this figure" in capsys.readouterr().err


def test_methods_keep_their_style_whichever_are_shown(table: Table) -> None:
    both = draw("search", Choice(table, ("ms", FORMULA))).axes[0].lines[1]
    (alone,) = draw("search", Choice(table, (FORMULA,))).axes[0].lines
    assert both.get_color() == alone.get_color()
    assert both.get_linestyle() == alone.get_linestyle()
