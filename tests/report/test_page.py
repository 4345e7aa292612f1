"""The page, made from records alone: what is in it, and what it says of what is not."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_records import make_record, put, put_scores
from made_tables import CLASSES, FORMULA, METHODS, TRIALS, full_record, put_table

from harness.cli import main
from harness.judgement.judge import find_pairs_of, judge
from harness.judgement.judged import Answer
from harness.judgement.ranks import RankedTables, rank_tables
from harness.judgement.words import critical_words, score_words, sentence
from harness.records.ledger import note_test_opening
from harness.report import trainings
from harness.report.costs import costs, on_front, prices_of
from harness.report.differences import matrix
from harness.report.leaderboards import boards, warnings
from harness.report.page import PARTS, read_report, render
from harness.report.searches import contour
from harness.report.table import Table, read_table
from harness.system.files import read_json, write_json
from harness.tables.column import View
from harness.tables.leaderboard import build, write


def table_in(folder: Path) -> Table:
    table = read_table(folder)
    assert table is not None
    return table


@pytest.fixture(scope="module")
def page(results: Path) -> str:
    return render(read_report(results))


class Parsed(HTMLParser):
    """The rows of all tables of a page, as texts; and every tag with its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.cell = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")
            self.cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self.cell = False

    def handle_data(self, data: str) -> None:
        if self.cell:
            self.rows[-1][-1] += data.strip()

    @property
    def board(self) -> list[list[str]]:
        """The rows of leaderboards."""
        return [row for row in self.rows if len(row) > 10]


def data_of(page: str) -> dict[str, Any]:
    packed = re.search(r'id="data">([^<]+)<', page)
    assert packed
    return dict(json.loads(gzip.decompress(base64.b64decode(packed[1]))))


def test_it_has_all_parts_and_makes_no_requests(page: str) -> None:
    parsed = Parsed(page)
    assert {a.get("id") for tag, a in parsed.tags if tag == "section"} == set(PARTS)
    for tag, attrs in parsed.tags:
        assert tag not in ("link", "iframe", "object", "embed", "base")
        for name in ("src", "href", "action", "srcset"):
            address = attrs.get(name) or ""
            assert address == "" or address.startswith("#"), (tag, attrs)
    (policy,) = (
        a["content"] for _, a in parsed.tags if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert re.fullmatch(r"'sha256-[^']+' 'sha256-[^']+'", rules["script-src"])


def test_its_numbers_are_those_of_the_table(page: str, results: Path) -> None:
    board = build(next(results.glob("mlrc/cub-*")))
    shown = Parsed(page).board
    for _, row in board.frame.iterrows():
        for embedding in ("concatenated", "separated"):
            for metric in ("map_at_r", "r_precision", "p_at_1"):
                mean, half = row[f"{metric}_{embedding}"], row[f"{metric}_{embedding}_ci95"]
                text = f"{100 * mean:.2f}" + (f" ± {100 * half:.2f}" if half == half else "")
                assert any(r[1].startswith(row["method"]) and text in r for r in shown)


def test_hostile_names_are_text(page: str) -> None:
    parsed = Parsed(page)
    assert len([tag for tag, _ in parsed.tags if tag == "script"]) == 3  # data, Plotly and ours
    assert "alert(" not in page  # a class name: it lies in the compressed data alone
    assert any(row[1].startswith(FORMULA) for row in parsed.board)
    assert data_of(page)["mlrc/cub-bninception"]["classes"]["names"] == CLASSES


def test_a_name_that_is_markup_is_shown_and_makes_no_element(tmp_path: Path) -> None:
    name = "</script><img src=x onerror=alert(1)>"
    values = read_json(put(tmp_path, full_record("ms", 1, 0.3)))
    path = tmp_path / "mlrc" / "cub-bninception" / "records" / "hostile" / "abc-01.json"
    identity = {**values["identity"], "method": name}
    provenance = {**values["provenance"], "command": f"harness eval --loss {name}"}
    changes = {"identity": identity, "params": {name: name}, "provenance": provenance}
    write_json(path, {**values, **changes})
    parsed = Parsed(render(read_report(tmp_path)))
    assert any(row[1].startswith(name) for row in parsed.board)
    assert not any("onerror" in attrs for _, attrs in parsed.tags)


def test_csv_markdown_and_latex_show_hostile_names_as_they_stand(
    results: Path, tmp_path: Path
) -> None:
    table = Path(shutil.copytree(next(results.glob("mlrc/cub-*")), tmp_path / "table"))
    write(build(table))
    names = pd.read_csv(table / "leaderboard.csv")["method"].tolist()
    assert f"'{FORMULA}" in names and "ms" in names  # no spreadsheet runs it
    lines = (table / "leaderboard.md").read_text().splitlines()
    (row,) = (line for line in lines if "cmd()" in line and line.startswith("|"))
    assert r"=cmd()\|" in row and r"\&{z}" in row
    bars = [len(re.findall(r"(?<!\\)\|", line)) for line in (row, lines[2])]
    assert bars[0] == bars[1]  # the bar in the name opens no column
    assert r'=cmd()$|$"x"\_\$y\$\&\{z\}' in (table / "leaderboard.tex").read_text()


def test_the_data_of_the_figures_is_that_of_the_records(page: str) -> None:
    data = data_of(page)["mlrc/cub-bninception"]
    assert data["validation"] == "validation MAP@R"
    assert set(data["search"]) == set(METHODS) == set(data["training"])
    history = full_record("ccp-c2", 1, 0.2).folds[0]["history"]
    model = next(m for m in data["training"]["ccp-c2"] if m["run"] == 1 and m["fold"] == 0)
    assert model["steps"] == history["steps"] and model["loss"] == history["loss"]
    assert model["score"] == pytest.approx([100 * s for s in history["score"]])
    assert model["events"] == {"new proxies": [0, 250]}
    clusters = data["training"]["hpl-pa"][0]["events"]["new clusters"]
    assert clusters == list(range(0, 400, 40))
    search = data["search"]["ms"]
    assert search["scores"][0] is None and len(search["scores"]) == TRIALS
    assert search["contour"]["names"] == ["margin", "loss_lr"]  # the one that matters most first


def test_a_contour_passes_through_the_trials_on_the_scale_of_the_search() -> None:
    margins, rates = [0.0, 1.0, 0.0, 1.0, 0.5], [1e-4, 1e-4, 1.0, 1.0, 1e-2]
    decades = [0, 0, 4, 4, 2]  # above the lowest rate
    scores = [0.1 * a + 0.01 * b for a, b in zip(margins, decades, strict=True)]
    ranges = {"a": {"low": 0.0, "high": 1.0}, "b": {"low": 1e-4, "high": 1.0, "log": True}}
    found = contour(scores, {"a": margins, "b": rates}, ranges, ["a", "b"])
    assert found is not None
    last = len(found["z"]) - 1
    for i, line in enumerate(found["z"]):
        assert found["y"][i] == pytest.approx(1e-4 * 10 ** (4 * i / last), rel=1e-4)
        for j, value in enumerate(line):
            assert value == pytest.approx(100 * (0.1 * j / last + 0.04 * i / last), abs=0.01)


def test_the_matrix_says_what_compare_says(results: Path) -> None:
    folder = next(results.glob("mlrc/cub-*"))
    found = matrix(table_in(folder))
    assert found is not None
    (table,) = judge(results, wanted=lambda path: path == folder).tables
    pairs = find_pairs_of(judge(results, wanted=lambda path: path == folder), found.methods)
    for _, pair in pairs:
        i, j = sorted((found.methods.index(pair.method), found.methods.index(pair.rival)))
        cell = found.cells[i][j]
        sign = 1 if pair.method == found.methods[i] else -1
        assert cell is not None and cell.text == f"{100 * sign * pair.estimate.difference:+.2f}"
        assert cell.words == sentence(table, pair)
        assert cell.answer == (pair if sign > 0 else pair.flipped).answer
    assert found.pairs == len(pairs) == 15


def test_a_lead_within_noise_is_not_called_real(tmp_path: Path) -> None:
    put_scores(tmp_path, "one", [0.5, 0.6, 0.5, 0.6, 0.5])
    folder = put_scores(tmp_path, "two", [0.6, 0.5, 0.6, 0.5, 0.55])
    found = matrix(table_in(folder))
    assert found is not None and found.cells[0][1] is not None
    assert found.cells[0][1].answer is Answer.NOT_DECIDED and found.separated == 0


@pytest.mark.parametrize("ahead", ["hpl-pa", "proxyanchor"])
def test_two_searches_of_almost_one_loss_are_not_called_really_different(
    tmp_path: Path, ahead: str
) -> None:
    ranges = {"coarse_weight": {"low": 1e-3, "high": 1.0, "log": True}}
    search = {**make_record().search, "base": "proxyanchor", "ranges": ranges}
    low = [0.5, 0.51, 0.52, 0.53, 0.54]
    high = [score + 0.1 for score in low]
    put_scores(tmp_path, "proxyanchor", high if ahead == "proxyanchor" else low)
    scores = high if ahead == "hpl-pa" else low
    params = {"coarse_weight": 1e-3}
    folder = put_scores(tmp_path, "hpl-pa", scores, params=params, search=search)
    found = matrix(table_in(folder))
    assert found is not None and found.cells[0][1] is not None
    assert found.cells[0][1].answer is Answer.NOT_DECIDED and found.separated == 0
    assert "hpl-pa coincides with its base, proxyanchor" in found.cells[0][1].words


def test_nobody_is_called_the_best_from_too_few_reproductions(
    tmp_path: Path, results: Path
) -> None:
    put_scores(tmp_path, "one", [0.5, 0.6])
    folder = put_scores(tmp_path, "two", [0.4, 0.5])
    assert {line.group for line in boards(table_in(folder))[0].lines} == {""}
    enough = boards(table_in(next(results.glob("mlrc/cub-*"))))[0].lines
    assert [line.group for line in enough][:2] == ["same", ""]


def test_a_page_of_single_runs_at_fixed_parameters_claims_nothing_and_misses_no_search(
    tmp_path: Path,
) -> None:
    fixed: dict[str, Any] = {**make_record().search, "trials": 0}
    for method, score in (("ms", 0.5), ("c2", 0.6)):
        put_scores(tmp_path, method, [score], search=fixed)
    text = render(read_report(tmp_path))
    assert "1 of 1 could not be tested." in text
    assert "differ significantly" not in text
    assert "No parameters of the trials" not in text


def ranks_in(folders: Iterable[Path]) -> list[RankedTables]:
    found = [table_in(folder).board.judged for folder in folders]
    return rank_tables(judged for judged in found if judged is not None)


def test_ranks_are_averaged_over_data_sets_of_one_protocol(results: Path) -> None:
    (group,) = ranks_in(sorted(results.glob("mlrc/*")))
    ranks = group.ranks
    assert list(ranks.by_method.items()) == list(zip(reversed(METHODS), range(1, 7), strict=True))
    assert ranks.critical is None and ranks.leaders == []  # two data sets are too few
    assert critical_words(ranks) in render(read_report(results))


def test_the_page_shows_the_judged_score_of_repeated_searches(tmp_path: Path) -> None:
    for seed in range(3):
        scores = [0.5 + 0.01 * seed, 0.51 + 0.01 * seed]
        folder = put_scores(tmp_path, "ms", scores, seed=seed, digest=f"seed{seed}")
    put_scores(tmp_path, "c2", [0.4, 0.41])
    table = table_in(folder)
    assert table.board.judged is not None
    shown = table.texts(View.TERMINAL).set_index("method")["MAP@R 512"]
    for line in boards(table)[0].lines:
        judged = score_words(table.board.judged.by_name[line.method])
        assert line.cells[0].text == shown[line.method] == judged


def test_two_trunks_on_one_data_set_are_not_two_data_sets(tmp_path: Path) -> None:
    def put_rows(dataset: str, trunk: str, methods: str) -> Path:
        for place, name in enumerate(methods):
            scores = [0.5 - 0.1 * place] * 2
            folder = put_scores(tmp_path, name, scores, dataset=dataset, trunk=trunk)
        return folder

    folders = [put_rows("cub", "bninception", "ab"), put_rows("cub", "convnet", "ba")]
    assert ranks_in(folders) == []
    folders.append(put_rows("cars", "convnet", "ba"))
    (group,) = ranks_in(folders)
    assert (group.trunk, group.ranks.datasets) == ("convnet", ["cub", "cars"])
    assert group.ranks.by_method == {"b": 1.0, "a": 2.0}


def test_the_front_is_what_nobody_beats_on_both() -> None:
    scores, prices = [10.0, 9.0, 8.0, 8.0, 11.0], [5.0, 3.0, 4.0, 1.0, 9.0]
    assert on_front(scores, prices) == [True, True, False, True, True]
    assert on_front([1.0, 1.0], [2.0, 2.0]) == [True, True]


def test_memory_is_a_price_on_a_card_alone(tmp_path: Path) -> None:
    """On a CPU it is that of a process that has trained other models, too."""
    table = table_in(put_table(tmp_path))
    assert list(prices_of(table)) == ["ms_per_step", "convergence_seconds"]
    for row in table.rows.values():
        for record in row:
            for fold in record.folds:
                fold["device"] = "NVIDIA A100"
    assert list(prices_of(table))[-1] == "peak_memory_mib"
    assert len(costs(table)[0].texts) == 3


def test_every_look_at_the_test_is_counted_once(tmp_path: Path) -> None:
    folder = put_table(tmp_path, methods=("ms", "ccp-c2"))
    for repetition in range(1, 6):
        path = folder / "records" / "ms" / f"abc-{repetition:02}.single.json"
        full_record("ms", repetition, 0.2, kind="single").write(path)
    note_test_opening(folder, "ms", "abc", 6)  # of a test that was never written
    (said,) = [text for text in warnings(table_in(folder)) if "were opened" in text]
    assert said.startswith("Test classes were opened 11 times for 16 tests")
    for repetition in range(1, 6):  # one more search of it, of which the table shows the other
        again = full_record("ms", repetition, 0.1, seed=1)
        again.write(folder / "records" / "ms" / f"def-{repetition:02}.json")
    (said,) = [text for text in warnings(table_in(folder)) if "were opened" in text]
    assert said.startswith("Test classes were opened 11 times for 21 tests")


def test_a_page_of_old_records_says_what_is_missing_and_what_brings_it(tmp_path: Path) -> None:
    put_scores(tmp_path, "ms", [0.5, 0.6], per_class={}, class_queries=[])
    text = render(read_report(tmp_path))
    for part in ("No parameters of the trials", "No history", "keep no scores of the test classes"):
        assert part in text
    assert "harness eval --dataset cub --protocol mlrc" in text
    assert "harness report --pictures" in text
    assert "Average ranks need two data sets" in text


def test_a_corrupt_record_is_named_and_the_rest_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = put(tmp_path / "results", make_record("ms", 1, 0.5))
    broken = path.with_name("abc-02.json")
    broken.write_text("{")
    out = tmp_path / "page.html"
    assert main(["report", "--results-dir", str(tmp_path / "results"), "-o", str(out)]) == 0
    assert f"warning: {broken}: not a complete JSON file" in capsys.readouterr().err
    assert "Left out of this page" in out.read_text() and "abc-02.json" in out.read_text()


def test_nothing_to_report_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--results-dir", str(tmp_path)]) == 2
    assert "nothing to report: no records in" in capsys.readouterr().err
    path = put(tmp_path, make_record("ms", 1, 0.5))
    path.write_text("{")
    assert main(["report", "--results-dir", str(tmp_path)]) == 2
    assert "no record in" in capsys.readouterr().err


def test_a_table_is_chosen_by_a_part_of_its_name(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.html"
    where = ["--results-dir", str(results), "-o", str(out)]
    assert main(["report", "cars", *where]) == 0
    assert set(data_of(out.read_text())) == {"mlrc/cars-bninception"}
    assert main(["report", "sop", *where]) == 2
    assert "no table named sop" in capsys.readouterr().err


def test_pictures_without_models_are_said_to_be_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_table(tmp_path / "results", methods=("ms",))
    out = tmp_path / "page.html"
    folders = ["--results-dir", str(tmp_path / "results"), "--runs-dir", str(tmp_path / "runs")]
    assert main(["report", "--pictures", *folders, "-o", str(out)]) == 0
    assert "its models were not kept, or lie elsewhere (--runs-dir)" in capsys.readouterr().err
    assert "No pictures: no search of" in out.read_text()


PARTS_OF_A_RECORD = [
    *(("folds", 0, "history", name) for name in ("steps", "loss", "score")),
    *(("folds", 0, name) for name in ("history", "hook", "fold", "stopped_by")),
    ("folds", 0, "hook", "events"),
    *(("search", name) for name in ("trial_scores", "trial_params", "trial_seconds", "ranges")),
    *(("search", name) for name in ("importance", "on_bound", "best_trial", "dimensions")),
    *(("search", "trial_params", "margin"), ("search", "ranges", "margin")),
    *(("search", "ranges", "loss_lr", end) for end in ("low", "high", "log")),
    *(("per_class",), ("class_queries",), ("params",), ("separated",), ("folds",), ("search",)),
    *(("provenance", name) for name in ("command", "commit", "platform", "versions")),
]
VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-3, 2**40), st.floats(-2, 2), st.text(max_size=4)
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=2)
    ),
    max_leaves=4,
)


@pytest.mark.slow
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(place=st.sampled_from(PARTS_OF_A_RECORD), value=st.one_of(st.just(...), VALUES))
def test_whatever_stands_in_a_record_the_page_is_made(
    tmp_path_factory: pytest.TempPathFactory, place: tuple[str | int, ...], value: Any
) -> None:
    """From that record, or without it and by name."""
    results = tmp_path_factory.mktemp("changed")
    put(results, full_record("triplet", 1, 0.3))
    path = put(results, full_record("ms", 1, 0.4))
    values = read_json(path)
    *outer, last = place
    inner = values
    for key in outer:
        inner = inner[key]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    path.write_text(json.dumps(values))
    report = read_report(results)
    text = render(report)
    assert any(row[1].startswith("ms") for row in Parsed(text).board) or report.problems


def test_a_row_that_cannot_be_shown_is_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a figure stumbles over; here a number that JSON has no word for."""
    put_table(tmp_path, methods=("ms", "triplet"))
    made = trainings._model

    def broken(run: int, fold: Any) -> dict[str, Any]:
        return {**made(run, fold), "best": float("inf") if fold["best_step"] == 7 else 1}

    path = next((tmp_path).glob("*/*/records/triplet/*"))
    record = read_json(path)
    record["folds"][0]["best_step"] = 7
    write_json(path, record)
    monkeypatch.setattr(trainings, "_model", broken)
    report = read_report(tmp_path, against="none")
    page = render(report)
    assert [p for p in report.problems if "row triplet left out" in p] == report.problems != []
    rows = [row[1] for row in Parsed(page).rows if len(row) > 3]
    assert "ms" in rows and "triplet" not in rows
    monkeypatch.setattr(trainings, "_model", lambda run, fold: {"best": float("nan")})
    report = read_report(tmp_path, against="none")
    render(report)
    assert "left out, because it cannot be shown: ValueError" in report.problems[-1]


def test_any_number_of_steps_is_thinned_without_a_list_of_them(tmp_path: Path) -> None:
    fold = {"steps": 2**53, "hook": {"events": {"often": {"every": 1}}}}
    assert len(trainings._events(fold)["often"]) <= trainings.MOST_MARKS  # type: ignore[arg-type]
