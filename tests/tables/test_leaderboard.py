"""From records to tables: rows, marks, files that pandas, spreadsheets and LaTeX can read."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_records import make_record, put, put_metrics, put_scores
from scipy import stats

from harness.cli import main
from harness.errors import HarnessError
from harness.judgement.judge import find_pairs_of, judge
from harness.metrics.names import METRICS, parse_metrics
from harness.report.table import read_table
from harness.system.files import read_json, write_json
from harness.tables import latex, leaderboard, rendering
from harness.tables.column import Column, View
from harness.tables.leaderboard_columns import NEWER, Line, columns_of

COLUMNS = [column.name for column in columns_of()]
BASE = [0.50, 0.52, 0.51, 0.53, 0.50, 0.52]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Five methods: one clearly behind, one not, one with too few runs; and a naive one."""
    put_scores(tmp_path, "first", BASE)
    put_scores(tmp_path, "close", [s + d for s, d in zip(BASE, [0.01, -0.02] * 3, strict=True)])
    put_scores(tmp_path, "behind", [s - 0.1 - 0.001 * i for i, s in enumerate(BASE)])
    put_scores(tmp_path, "short_&_new", [s - 0.05 for s in BASE[:4]], search={})
    return put_scores(tmp_path, "untrained", [0.1], kind="naive", search={}, folds=[], params={})


def shown_row(board: leaderboard.Leaderboard, name: str) -> pd.Series:
    """What people see of a row."""
    return board.table().texts(View.TERMINAL).set_index("method").loc[name]


def frame_of(table: Path) -> pd.DataFrame:
    return leaderboard.build(table).frame.set_index("method")


def test_the_csv_says_whether_a_paired_t_test_separates_a_row_from_the_best(table: Path) -> None:
    verdicts = frame_of(table)["indistinguishable"]
    assert verdicts["first"] == "best" and verdicts["close"] == "yes"
    assert verdicts["behind"] == "no"
    assert verdicts["short_&_new"] == "too few reproductions"
    assert pd.isna(verdicts["untrained"])


def test_holm_corrects_the_paired_t_tests_of_the_csv(tmp_path: Path) -> None:
    """A row whose own p-value is below 0.05, but not after correction for four rows."""
    noise = np.array([1.0, -0.1, 0.2, 1.4, 0.6, 0.7]) / 100
    p_value = stats.ttest_1samp(noise, 0).pvalue
    assert 0.05 / 4 < p_value < 0.05
    table = put_scores(tmp_path, "best", BASE)
    names = ["a", "b", "c", "d"]
    for name in names[:1]:
        put_scores(tmp_path, name, [s - d for s, d in zip(BASE, noise, strict=True)])
    assert frame_of(table).loc["a", "indistinguishable"] == "no"
    for name in names[1:]:
        put_scores(tmp_path, name, [s - d for s, d in zip(BASE, noise, strict=True)])
    assert frame_of(table).loc[names, "indistinguishable"].tolist() == ["yes"] * 4


def test_runs_of_another_seed_are_not_paired(tmp_path: Path) -> None:
    table = put_scores(tmp_path, "best", BASE)
    put_scores(tmp_path, "other", [s - 0.2 for s in BASE], seed=1)
    assert frame_of(table).loc["other", "indistinguishable"] == "too few reproductions"


def searched_with(seed: int, validation: float) -> dict[str, Any]:
    search = {**make_record().search, "validation": validation}
    return {"seed": seed, "digest": f"seed{seed}", "params": {"alpha": seed}, "search": search}


def test_the_score_of_a_row_is_the_mean_over_its_searches(tmp_path: Path) -> None:
    """Not the better one: two searches would be two chances."""
    table = put_scores(tmp_path, "twice", BASE, **searched_with(0, validation=0.3))
    put_scores(tmp_path, "twice", [s + 0.2 for s in BASE], **searched_with(1, validation=0.6))
    row = frame_of(table).loc["twice"]
    assert row["map_at_r_concatenated"] == pytest.approx(np.mean(BASE) + 0.1)
    # Two searches, 0.2 apart: t(0.975, 1) = 12.706 times 0.1.
    assert row["map_at_r_concatenated_ci95"] == pytest.approx(1.2706, abs=1e-4)
    assert row["reproductions"] == 2 * len(BASE)
    for name in ("other", "third"):
        put_scores(tmp_path, name, BASE, **searched_with(1, validation=0.4))
    board = leaderboard.build(table)
    frame = board.frame.set_index("method")
    assert frame.loc["twice", "map_at_r_concatenated"] == pytest.approx(np.mean(BASE) + 0.1)
    assert frame.loc["other", "indistinguishable"] == "no"  # paired
    scores = json.loads(frame.loc["twice", "search_scores"])
    assert scores == pytest.approx([np.mean(BASE) + 0.2, np.mean(BASE)])
    assert frame.loc["other", "search_scores"] == "[]"
    shown = board.table().texts(View.PAGE)
    assert shown["searches"].tolist() == ["71.33, 51.33", "", ""]
    assert shown_row(board, "twice")["MAP@R 512"].startswith("61.33 ± ")
    assert "the mean over its searches" in rendering.to_markdown(board.table())


def test_more_trials_of_one_search_are_no_other_search(tmp_path: Path) -> None:
    """They found better parameters: those count, and the tests of the earlier ones stay apart."""
    table = put_scores(tmp_path, "ms", BASE, **searched_with(0, validation=0.3))
    later = {**searched_with(0, validation=0.4), "digest": "later", "params": {"alpha": 9.0}}
    put_scores(tmp_path, "ms", [s - 0.1 for s in BASE], **later)
    row = frame_of(table).loc["ms"]
    assert row["map_at_r_concatenated"] == pytest.approx(np.mean(BASE) - 0.1)
    assert row["search_scores"] == "[]"
    assert "searches" not in leaderboard.build(table).table().texts(View.PAGE)


def test_a_run_under_two_names_counts_once(tmp_path: Path) -> None:
    path = put(tmp_path, make_record("ms", 1, 0.5))
    copy = path.with_name("copy-01.json")
    copy.write_bytes(path.read_bytes())
    board = leaderboard.build(path.parent.parent.parent)
    assert board.frame["reproductions"].tolist() == [1]
    assert board.problems == [f"{copy}: the same run as {path}, left out"]


def test_only_trained_methods_have_a_rank(table: Path) -> None:
    ranks = frame_of(table)["rank"]
    assert ranks.drop("untrained").tolist() == [1, 2, 3, 4]
    assert pd.isna(ranks["untrained"])


def test_costs_are_those_of_the_papers_tables(table: Path) -> None:
    """8 s for 400 steps: 20 ms each, 4 s to the best step, 200."""
    row = frame_of(table).loc["first"]
    assert row["ms_per_step"] == pytest.approx(20) and row["convergence_seconds"] == 4
    assert row["best_step"] == 200 and row["peak_memory_mib"] == 1024


def test_older_and_newer_records_stand_side_by_side(tmp_path: Path) -> None:
    search = {"trials": 50, "failed": 1, "pruned": 7, "validation": 0.4}
    record = make_record("new", search=search, missing_images=2)
    put(tmp_path, replace(record, identity={**record.identity, "weights": "w"}))
    old = put(tmp_path, make_record("old", 1, 0.3))
    later = ("per_class", "class_queries", "missing_images")
    write_json(old, {key: value for key, value in read_json(old).items() if key not in later})
    board = leaderboard.build(old.parent.parent.parent)
    assert board.problems == []
    frame = board.frame.set_index("method")
    columns = ["trials_pruned", "missing_images", "weights"]
    assert frame.loc["new", columns].tolist() == [7, 2, "w"]
    assert frame.loc["old", columns].tolist() == [0, 0, ""]


@pytest.fixture
def unfair(tmp_path: Path) -> Path:
    """A row of every trouble, one at the edge of each, and one of an older record."""
    facts = make_record().search
    folds = [0.3, 0.5, 0.3, 0.5]
    # Before the last trial 0.35 was the best: less on every fold, or on some and more on others.
    everywhere, somewhere = [0.25, 0.45, 0.25, 0.45], [0.3, 0.2, 0.3, 0.6]
    rising = {"trial_folds": [[0.2] * 4, everywhere, None, folds], "validation_folds": folds}
    flat = {"trial_folds": [[0.2] * 4, somewhere, None, folds], "validation_folds": folds}
    model = make_record().folds[0]
    cut = [{**model, "stopped_by": by} for by in ("max_steps", *["patience"] * 4)]

    def best_at(*places: int) -> list[dict[str, object]]:
        """Models whose best weights are of their first validation, place 0, or of a later one."""
        steps = ([200, 300], [100, 200])
        histories = [{"steps": steps[p], "loss": [1, 1], "score": [0, 0]} for p in places]
        return [{**one, "history": seen} for one, seen in zip(cut, histories, strict=False)]

    bound = {"dimensions": 7, "on_bound": {"alpha": "low"}}
    early, later = best_at(0, 0, 0, 1), best_at(0, 0, 1, 1, 1)
    put_scores(tmp_path, "unfair", [0.5] * 5, search={**facts, **rising, **bound}, folds=early)
    put_scores(tmp_path, "fair", [0.4] * 5, search={**facts, **flat, "dimensions": 3}, folds=later)
    older = [{k: v for k, v in f.items() if k != "stopped_by"} for f in make_record().folds]
    return put_scores(tmp_path, "older", [0.3] * 5, folds=older)


def test_a_table_says_which_rows_had_no_fair_chance(unfair: Path) -> None:
    frame = frame_of(unfair)
    assert frame["dimensions"].tolist()[:2] == [7, 3] and pd.isna(frame.loc["older", "dimensions"])
    assert frame["not_flat"].tolist()[:2] == [True, False]
    assert pd.isna(frame.loc["older", "not_flat"])
    assert frame["at_step_limit"].tolist()[:2] == [0.25, 0.2]
    assert frame["at_first_validation"].tolist()[:2] == [0.75, 0.4]
    assert frame.loc["older", ["at_step_limit", "at_first_validation"]].isna().all()
    assert frame.loc["unfair", "validation_sd"] == pytest.approx(0.1 * (4 / 3) ** 0.5)
    written = pd.read_csv(leaderboard.write(leaderboard.build(unfair))[0]).set_index("method")
    assert written["not_flat"].tolist()[:2] == [True, False]
    assert written["at_step_limit"].tolist()[:2] == [0.25, 0.2]


def test_every_rendering_says_in_words_which_rows_had_no_fair_chance(
    unfair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["leaderboard", "--results-dir", str(tmp_path)]) == 0
    terminal = capsys.readouterr().out
    assert all(len(line) <= 80 for line in terminal.splitlines()[:12])
    notes = (
        "stopped by the step limit; best at first validation; search still improving; "
        "best value at the edge of its range; 5 of 10 reproductions"
    )
    board = leaderboard.build(unfair)
    assert shown_row(board, "unfair")["notes"] == notes
    assert shown_row(board, "fair")["notes"] == "5 of 10 reproductions"
    for file in ("leaderboard.md", "leaderboard.tex", "leaderboard.csv"):
        assert notes in (unfair / file).read_text(), file
    assert "search still improving" in " ".join(terminal.split())


def test_people_see_at_most_six_columns_of_any_leaderboard(unfair: Path) -> None:
    board = leaderboard.build(unfair)
    for view in (View.TERMINAL, View.MARKDOWN):
        assert sum(view in column.shown for column in columns_of(board.shape)) <= 6
    for symbol in "†‡◁§↑⊣≡≈":
        assert symbol not in rendering.to_markdown(board.table())


def test_a_column_is_added_by_one_declaration(
    unfair: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is then in the CSV file, in its list of columns, behind --columns and where it says."""
    added: Column[Line] = Column(
        "longest",
        "steps of the longest training",
        lambda line: max(fold["steps"] for fold in line.first.folds),
        View.MARKDOWN | View.LATEX | View.PAGE,
        "most steps",
    )
    monkeypatch.setattr("harness.tables.leaderboard_columns.NEWER", (*NEWER, added))
    flags = ["--results-dir", str(tmp_path), "--columns", "method,longest"]
    assert main(["leaderboard", *flags]) == 0
    assert "most steps" in capsys.readouterr().out
    frame = pd.read_csv(unfair / "leaderboard.csv")
    assert frame.columns[-1] == "longest" and set(frame["longest"]) == {400}
    assert "| `longest` | steps of the longest" in (unfair / "leaderboard_columns.md").read_text()
    for file in ("leaderboard.md", "leaderboard.tex"):
        assert "most steps" in (unfair / file).read_text()
    page = tmp_path / "page.html"
    assert main(["report", "--results-dir", str(tmp_path), "--output", str(page)]) == 0
    assert ">most steps</th>" in page.read_text()


def test_a_column_that_does_not_exist_is_refused_by_name(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["leaderboard", "--results-dir", str(tmp_path), "--columns", "trails"]) == 2
    assert "no column named 'trails'. Did you mean 'trials'?" in capsys.readouterr().err


def test_a_method_that_ended_at_its_base_says_so(tmp_path: Path) -> None:
    ranges = {"coarse_weight": {"low": 1e-3, "high": 1.0, "log": True}}
    search = {**make_record().search, "base": "proxyanchor", "ranges": ranges}
    table = put_scores(tmp_path, "hpl-pa", [0.5], params={"coarse_weight": 2e-3}, search=search)
    put_scores(tmp_path, "hpl-nca", [0.4], params={"coarse_weight": 0.5}, search=search)
    assert frame_of(table)["almost_base"].tolist() == ["proxyanchor", ""]
    board = leaderboard.build(table)
    assert shown_row(board, "hpl-pa")["notes"] == "coincides with its base; 1 of 10 reproductions"
    assert shown_row(board, "hpl-nca")["notes"] == "1 of 10 reproductions"


def test_a_single_model_is_not_blamed_for_its_steps(tmp_path: Path) -> None:
    folds = [{**make_record().folds[0], "stopped_by": "max_steps"}]
    changes = {"dims": {"concatenated": 512}, "separated": [], "folds": folds, "per_class": {}}
    scores = {"concatenated": dict.fromkeys(METRICS, 0.5)}
    path = put(tmp_path, make_record("ms", 1, 0.5, kind="single", scores=scores, **changes))
    table = path.parent.parent.parent
    frame = frame_of(table)
    assert pd.isna(frame.loc["ms (single 512)", "at_step_limit"])
    markdown = rendering.to_markdown(leaderboard.build(table).table())
    assert "MAP@R 512" in markdown and "separated" not in markdown  # it has no such scores


PROTOCOL = make_record().identity["protocol"]


def test_a_row_without_training_says_if_it_has_fewer_dimensions(tmp_path: Path) -> None:
    protocol = {**PROTOCOL, "name": "classic-hpl", "select": "test"}
    one = {"separated": [], "per_class": {}, "protocol": protocol}
    one["scores"] = {"concatenated": dict.fromkeys(METRICS, 0.5)}
    trained = make_record("ms", 1, 0.5, kind="test-selected", dims={"concatenated": 512}, **one)
    naive = make_record("pretrained", 0, 0.5, kind="naive", dims={"concatenated": 128}, **one)
    put(tmp_path, trained)
    table = put(tmp_path, naive).parent.parent.parent
    markdown = rendering.to_markdown(leaderboard.build(table).table())
    assert "pretrained has 128 dimensions, not 512: its trunk has no more features." in markdown
    assert "MAP@R 512" in markdown and "ms has" not in markdown


def test_validation_scores_have_the_name_of_the_metric_that_selects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    protocol = {**PROTOCOL, "name": "classic-proxygml", "metric": "p_at_1"}
    for place, method in enumerate("abcde"):
        table = put_scores(tmp_path, method, [0.5 + 0.01 * place], protocol=protocol)
    assert main(["leaderboard", "--results-dir", str(tmp_path)]) == 0
    assert "Validation P@1 (across) and test MAP@R" in capsys.readouterr().out
    markdown = (table / "leaderboard.md").read_text()
    assert "Rank correlation of validation P@1 and test MAP@R" in markdown


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"protocol": {**PROTOCOL, "lr": 0.1}},
            "another protocol under the same name: lr is 0.1 in it, 1e-06 in the newest record",
        ),
        (
            {"protocol": {**PROTOCOL, "precision": "bf16"}},  # one that is not named at its default
            "another protocol under the same name: precision is bf16 in it, fp32 in the newest "
            "record",
        ),
        ({"split": "s2"}, "another class split (s2 in it, s1 in the newest record)"),
        (
            {"test_fingerprint": "t2"},
            "another version of the test images (t2 in it, t1 in the newest record)",
        ),
    ],
    ids=["protocol", "precision", "split", "test data"],
)
def test_what_was_measured_otherwise_than_the_newest_record_is_left_out_by_name(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    newest = {**make_record().provenance, "time": "2027-01-01T00:00:00+00:00"}
    put(tmp_path, make_record("other", 1, 0.4))
    put(tmp_path, make_record("new", 1, 0.4, provenance=newest))
    path = put(tmp_path, make_record("old", 1, 0.5, **changes))
    table = path.parent.parent.parent
    board = leaderboard.build(table)
    assert sorted(board.frame["method"]) == ["new", "other"]
    assert board.problems == [f"{path}: {reason}; left out"]
    judgement = judge(tmp_path)
    with pytest.raises(HarnessError, match="no method named 'old'"):
        find_pairs_of(judgement, ["new", "old"])
    assert list(judgement.problems) == board.problems


def test_a_field_that_only_some_records_state_divides_no_table_at_its_default(
    tmp_path: Path,
) -> None:
    newest = {**make_record().provenance, "time": "2027-01-01T00:00:00+00:00"}
    put(tmp_path, make_record("old", 1, 0.5))
    protocol = {**PROTOCOL, "prune": False, "lr_epochs": None}
    path = put(tmp_path, make_record("new", 1, 0.4, provenance=newest, protocol=protocol))
    board = leaderboard.build(path.parent.parent.parent)
    assert board.problems == [] and len(board.frame) == 2


def test_the_csv_opens_in_pandas_with_the_right_types(table: Path) -> None:
    board = leaderboard.build(table)
    leaderboard.write(board)
    frame = pd.read_csv(table / "leaderboard.csv")
    assert list(frame.columns) == list(COLUMNS)
    for column in frame.columns:
        number = column.endswith(("_concatenated", "_separated", "_ci95", "_seconds", "_step"))
        assert not number or pd.api.types.is_numeric_dtype(frame[column]), column
    assert frame["incomplete"].dtype == bool and frame["reproductions"].dtype == np.int64
    assert frame["map_at_r_concatenated"].tolist() == board.frame["map_at_r_concatenated"].tolist()


def test_the_csv_is_one_line_per_row_and_quotes_its_json(tmp_path: Path) -> None:
    provenance = {**make_record().provenance, "command": "harness eval --set 'a=\n1'"}
    put(tmp_path, make_record("one", params={"a": 1, "b": "x,y"}, provenance=provenance))
    table = put_scores(tmp_path, "two", [0.2])
    leaderboard.write(leaderboard.build(table))
    text = (table / "leaderboard.csv").read_text()
    rows = list(csv.reader(text.splitlines()))
    assert len(text.splitlines()) == len(rows) == 3 and {len(row) for row in rows} == {len(COLUMNS)}
    assert rows[1][rows[0].index("params")] == '{"a": 1, "b": "x,y"}'


def test_rows_share_a_letter_exactly_if_they_are_not_shown_to_differ(tmp_path: Path) -> None:
    """Twelve classes that differ alike: a tenth is shown, a half-width of the noise is not."""
    table = put_scores(tmp_path, "first", BASE)
    put_scores(tmp_path, "close", [s + d for s, d in zip(BASE, [0.01, -0.02] * 3, strict=True)])
    put_scores(tmp_path, "behind", [s - 0.1 - 0.001 * i for i, s in enumerate(BASE)])
    board = leaderboard.build(table)
    groups = {name: shown_row(board, name)["group"] for name in ("first", "close", "behind")}
    assert groups == {"first": "A", "close": "A", "behind": "B"}
    assert board.judged is not None and board.judged.leaders == ["first", "close"]
    text = rendering.to_markdown(board.table())
    assert text.splitlines()[2].startswith("| group | method | MAP@R 512 | P@1 512 | notes |")
    assert "**" not in text and "rows that share a letter are not shown to differ" in text


def test_nobody_leads_where_nothing_is_shown(tmp_path: Path) -> None:
    table = put_scores(tmp_path, "one", [0.5])
    put_scores(tmp_path, "other", [0.4])
    page = read_table(table, "none")
    assert page is not None and page.leaders == []


def test_latex_is_balanced_and_every_row_has_every_column(table: Path) -> None:
    text = latex.to_latex(leaderboard.build(table).table())
    opened = re.findall(r"\\begin\{(\w+)\}", text)
    closed = re.findall(r"\\end\{(\w+)\}", text)
    assert opened == list(reversed(closed)) == ["table", "tabular"]
    bare = re.sub(r"\\[{}&%$#_\\]", "", text)  # without what is escaped
    assert bare.count("{") == bare.count("}") and bare.count("$") % 2 == 0
    columns = re.search(r"\\begin\{tabular\}\{(\w+)\}", text)
    assert columns is not None
    for line in text.splitlines():
        if line.endswith(r"\\"):
            spans = sum(int(n) - 1 for n in re.findall(r"\\multicolumn\{(\d)\}", line))
            assert len(re.findall(r"(?<!\\)&", line)) + 1 + spans == len(columns[1]), line
    assert text.isascii()


def test_latex_prints_names_as_they_stand(table: Path) -> None:
    assert r"short\_\&\_new" in latex.to_latex(leaderboard.build(table).table())
    assert latex.escape(r"50% of {a}_b #1 ~ ^ \x $") == (
        r"50\% of \{a\}\_b \#1 \textasciitilde{} \textasciicircum{} \textbackslash{}x \$"
    )


def test_every_column_is_described(table: Path) -> None:
    board = leaderboard.build(table)
    text = rendering.describe_columns(board.table(), "x.csv")
    assert [f"| `{column}` | " in text for column in board.frame] == [True] * len(
        board.frame.columns
    )


def test_tables_are_made_again_by_a_command(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["leaderboard", "--results-dir", str(tmp_path)]) == 0
    assert "cub, bninception, protocol mlrc" in capsys.readouterr().out
    assert {path.name for path in table.glob("leaderboard*")} == {
        *("leaderboard.csv", "leaderboard.md", "leaderboard.tex", "leaderboard_columns.md")
    }


def test_no_records_are_a_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["leaderboard", "--results-dir", str(tmp_path)]) == 2
    assert f"no records in {tmp_path}" in capsys.readouterr().err


def test_metrics_on_demand_join_the_run_they_belong_to(tmp_path: Path) -> None:
    """Two of three runs have them; of one run they lie in two files."""
    paths = [put(tmp_path, make_record("ms", repetition, 0.5)) for repetition in (1, 2, 3)]
    put(tmp_path, make_record("plain", 1, 0.4))
    put_metrics(paths[0], {"nmi": 0.6, "recall_at_10": 0.9})
    put_metrics(paths[0], {"covering_radius": 0.3})
    put_metrics(paths[1], {"nmi": 0.8, "recall_at_2": 0.7})
    board = leaderboard.build(paths[0].parent.parent.parent)
    assert board.problems == []
    more = ["recall_at_2", "recall_at_10", "covering_radius", "nmi"]
    assert leaderboard.metrics_in(board.frame) == [*METRICS, *more]
    row = board.frame.set_index("method").loc["ms"]
    assert row["reproductions"] == 3 and row["nmi_concatenated"] == pytest.approx(0.7)
    assert row["covering_radius_separated"] == 0.3
    more_columns = ["method", "covering_radius_concatenated", "recall_at_10_concatenated"]
    shown = board.table().texts(View.TERMINAL, more_columns).set_index("method")
    assert shown.loc["ms", "covering radius 512"] == "0.300"
    assert shown["R@10 512"].to_dict() == {"ms": "90.00", "plain": ""}
    assert "`nmi_concatenated` | NMI on the test classes" in rendering.describe_columns(
        board.table(), "x.csv"
    )


def test_metrics_are_named_as_people_write_them() -> None:
    wanted = parse_metrics(["recall@1,2", "nmi", "recall@2,10", "class_distance"])
    assert wanted == ("recall_at_1", "recall_at_2", "nmi", "recall_at_10", "class_distance")
    for wrong in ("recall@", "recall@0", "recall@1;2", "nmmi"):
        with pytest.raises(HarnessError, match="no metric on demand named"):
            parse_metrics([wrong])
