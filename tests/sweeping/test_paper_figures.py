"""The papers' figures: each can be run, on its own data and on glyphs, with its numbers beside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness import registry
from harness.cli import main
from harness.config import RunConfig
from harness.errors import HarnessError
from harness.experiment import build_experiment
from harness.losses.method import Method
from harness.model.build import check_method
from harness.records.sweep_plan import SweepPlan
from harness.sweeping import figure_sweep, paper_figures
from harness.sweeping.axes import config_at, parse_axis
from harness.sweeping.figure_sweep import build_sweep
from harness.sweeping.paper_figures import PaperFigure, find_figure, load_figures
from harness.sweeping.run import Sweep
from harness.tables.sweeps import build

ROOT = Path(__file__).parents[2]
FIGURES = load_figures()

every_figure = pytest.mark.parametrize("figure", FIGURES.values(), ids=lambda figure: figure.name)


@every_figure
def test_every_point_of_a_figure_has_a_protocol_and_parameters_of_its_loss(
    figure: PaperFigure,
) -> None:
    asked = build_sweep(figure, {"results_dir": str(ROOT / "results")})
    points = asked.points()
    assert len(points) > 1
    for _, changes in points:
        at = config_at(asked.config, {k: v for k, v in changes.items() if k != "loss"})
        method: Method = registry.load_method(changes["loss"])
        preset = method.preset(at.preset, at.dataset)
        registry.load_protocol(at.protocol, at.dataset, preset.protocol)
        method.cast(at.params, at.dataset, 75)


@every_figure
def test_a_file_begins_with_its_command_and_states_its_points_and_seeds(
    figure: PaperFigure,
) -> None:
    asked = build_sweep(figure)
    assert figure.path.read_text().startswith(f"# harness sweep --figure {figure.name}\n")
    seeds = "1 seed;" if asked.seeds == 1 else f"{asked.seeds} seeds;"
    assert figure.cost.startswith(f"{len(asked.points())} points x {seeds} per run ")
    assert figure.source and figure.summary and figure.expected.endswith(".")


def test_a_variant_is_composed_of_named_changes_and_of_settings() -> None:
    asked = build_sweep(find_figure("proxygml-anchor"))
    assert asked.variants["Proxy-Anchor (batch 32; three skills)"] == {
        "loss": "proxyanchor",
        "preset": "mlrc",
        "protocol.optimizer_eps": 1e-8,
        "protocol.pooling": "avg+max",
        "protocol.warmup_epochs": 1,
        "protocol.optimizer": "adamw",
        "protocol.batch_size": 32,
    }
    given = build_sweep(find_figure("hpl-coarse-sop")).variants["HPL-NCA-GT (12 coarse)"]
    assert given == {"loss": "hpl-nca-gt", "preset": "paper", "params.scale_fine": 32.0}


def test_a_figure_has_the_axes_and_settings_of_its_file() -> None:
    asked = build_sweep(find_figure("proxygml-proxies-ratio"))
    assert {axis.key: axis.values for axis in asked.axes} == {
        "params.proxies_per_class": tuple(range(1, 31)),
        "params.ratio": (0.05, 0.5, 1.0),
    }
    config = asked.config
    assert (config.dataset, config.protocol, config.preset) == (
        *("cars", "classic-proxygml"),
        "paper",
    )
    assert asked.test and asked.losses == ("proxygml",)
    validated = build_sweep(find_figure("ccp-lambda-proxies"))
    assert not validated.test and validated.config.params == {"pool_size": 16}
    assert build_sweep(find_figure("ccp-batch-size")).seeds == 3


FIGURE = """
paper: proxygml
source: slides
summary: a figure
cost: 2 points x 1 seed; per run 10 steps.
expected: Nothing.
dataset: cars
protocol: classic-proxygml
losses: [proxygml]
axes: {params.ratio: [0.1, 1.0]}
changes: {S: {params.positive_mask: true}}
variants: {full: [S], none: {}}
read_off:
  - {at: {variant: full, params.ratio: [0.1, 1.0]}, scores: {recall_at_1: [80, 70]}}
"""


def test_a_new_file_is_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper_figures, "FOLDER", tmp_path)
    (tmp_path / "mine.yaml").write_text(FIGURE)
    assert list(load_figures()) == ["mine"]
    asked = build_sweep(find_figure("mine"))
    assert [value["value"] for value in asked.published] == [80.0, 70.0]
    assert asked.variants == {"full": {"params.positive_mask": True}, "none": {}}


@pytest.mark.parametrize(
    ("old", "new", "key", "problem"),
    [
        ("axes:", "axis:", "", "no field named 'axis'. Did you mean 'axes'?"),
        ("paper: proxygml", "", "", "lacks field 'paper'"),
        ("source: slides", "source: 3", "source", "takes text, got 3 (int)"),
        ("source: slides", "source: slides\ntest: 1", "test", "takes true or false, got 1 (int)"),
        ("source: slides", "source: slides\nname: x", "name", "remove the key"),
        ("{at:", "{when: 1, at:", "read_off[0]", "no field named 'when'"),
        ("[80, 70]", "[80, high]", "read_off[0].scores", "takes a number"),
        ("[80, 70]", "[80]", "read_off[0]", "must have the same length"),
        ("recall_at_1", "recal_at_1", "read_off", "no metric on demand named 'recal_at_1'"),
        ("recall_at_1", "map_at_r joined", "read_off", "no embedding named 'joined'"),
        ("variant: full,", "variant: fall,", "read_off", "no point of the figure has"),
        ("paper: proxygml", "paper: proxygl", "paper", "Did you mean 'proxygml'?"),
        ("dataset: cars", "dataset: carz", "dataset", "no dataset named 'carz'"),
        ("classic-proxygml", "classic-gml", "protocol", "no protocol named 'classic-gml'"),
        ("[proxygml]", "[proxygm]", "losses", "Did you mean 'proxygml'?"),
        ("{params.ratio: [0.1, 1.0]}", "{ratio: [1]}", "axes", "no axis named 'ratio'"),
        ("params.ratio", "params.ratoi", "'params.ratoi'", "Did you mean 'ratio'?"),
        ("params.positive_mask", "protocol.batchsize", "'full'", "'batchsize'"),
        ("[S]", "[T]", "variants.full", "no entry of `changes` named 'T'"),
        ("dataset: cars", "dataset: cars\nsettings: {presett: x}", "settings", "'presett'"),
        ("dataset: cars", "dataset: cars\nmetrics: [recall]", "metrics", "named 'recall'"),
        ("read_off:", "tables: [{file: x.csv, table: 1 a}]\nread_off:", "tables[0]", "'x.csv'"),
    ],
)
def test_what_is_wrong_in_a_file_is_refused_by_file_and_key(
    old: str, new: str, key: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paper_figures, "FOLDER", tmp_path)
    (tmp_path / "mine.yaml").write_text(FIGURE.replace(old, new))
    with pytest.raises(HarnessError) as refused:
        build_sweep(find_figure("mine"), {"results_dir": str(ROOT / "results")})
    said = str(refused.value)
    assert said.startswith(f"{tmp_path / 'mine.yaml'}: ") and key in said and problem in said


@every_figure
def test_a_figure_can_be_had_quickly(figure: PaperFigure) -> None:
    """One point of each loss and protocol builds on glyphs."""
    asked = build_sweep(figure, quick=True)
    assert asked.config.dataset == "glyphs" and len(asked.points()) <= 25
    assert asked.published == []
    ats = [
        config_at(asked.config, {k: v for k, v in changes.items() if k != "loss"}).updated(
            {"loss": changes["loss"]}
        )
        for _, changes in asked.points()
    ]
    for at in {(at.loss, at.protocol): at for at in ats}.values():
        build_experiment(at)
    check_method(build_experiment(ats[-1]))


def test_every_number_that_a_paper_printed_is_of_a_point() -> None:
    printed = 0
    for figure in FIGURES.values():
        asked = build_sweep(figure, {"results_dir": str(ROOT / "results")})
        points = [point for point, _ in asked.points()]
        for value in asked.published:
            found = [p for p in points if all(p.get(k) == v for k, v in value["values"].items())]
            assert len(found) == 1, (figure.name, value)
            assert 0 < value["value"] < 100
            printed += 1
        expected = len(figure.tables) > 0 or len(figure.read_off) > 0
        assert bool(asked.published) == expected
    assert printed > 180


def published_of(name: str) -> Iterator[tuple[object, float, bool]]:
    asked = build_sweep(find_figure(name), {"results_dir": str(ROOT / "results")})
    for value in asked.published:
        if value["metric"] == "recall_at_1":
            yield value["values"].get("variant"), value["value"], value["read_off"]


def test_the_ablation_of_proxynca_leaves_out_each_of_its_parts() -> None:
    assert list(published_of("proxynca++-drop")) == [
        ("full", 72.2, False),
        ("without scale", 61.4, False),
        ("without max", 69.0, False),
        ("without norm", 69.6, False),
        ("without cbs", 69.6, False),
        ("without fast", 70.3, False),
        ("without prob", 71.1, False),
    ]
    ladder = {name: value for name, value, _ in published_of("proxynca++-ladder-8")}
    assert ladder["ProxyNCA"] == 59.3 and len(ladder) == 14
    full = "+scale +norm +cbs +max +fast +prob"
    assert ladder[full] == 72.2
    variants = build_sweep(find_figure("proxynca++-ladder-8")).variants
    assert variants[full] == {} and len(variants["ProxyNCA"]) == 7
    assert variants["+scale +norm +cbs +max"] == {
        "params.loss_lr": 0.004,
        "params.denominator": "negatives",
    }


def test_numbers_of_a_plot_are_marked_as_read_off() -> None:
    marked = [read_off for _, _, read_off in published_of("proxygml-ratio")]
    assert len(marked) == 16 and all(marked)
    assert ("Proxy-NCA", 82.8, False) in list(published_of("hpl-interval"))


def test_another_data_set_or_protocol_has_no_published_numbers_and_opens_no_test() -> None:
    figure = find_figure("proxygml-ratio")
    own = build_sweep(figure, {"results_dir": str(ROOT / "results")})
    assert own.test and own.name == "proxygml-ratio" and own.published
    other = build_sweep(figure, {"dataset": "cub", "protocol": "frozen"})
    assert not other.test and other.name == "proxygml-ratio-cub-frozen" and not other.published
    assert not any(build_sweep(figure, {key: "cub"}).test for key in ("dataset", "trunk"))
    assert build_sweep(figure, {"protocol": "frozen"}, test=True).test
    assert build_sweep(figure, {"params": {"reg_weight": 0.5}}).config.params == {
        "proxies_per_class": 12,
        "reg_weight": 0.5,
    }


def test_an_axis_of_the_user_takes_the_place_of_the_figures() -> None:
    asked = build_sweep(find_figure("proxygml-map"), axes=[parse_axis("params.ratio=0.5")])
    assert [axis.key for axis in asked.axes] == ["params.proxies_per_class", "params.ratio"]
    assert asked.axes[1].values == (0.5,)


def test_an_unknown_figure_and_quick_without_one_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(HarnessError, match="Did you mean 'ccp-batch-size'"):
        find_figure("ccp-batchsize")
    assert main(["sweep", "--loss", "c2", "--quick"]) == 2
    assert "--quick is for a figure" in capsys.readouterr().err


def test_figures_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "figures"]) == 0
    listed = capsys.readouterr().out
    assert all(f"  {name} " in listed for name in FIGURES)


def test_a_figure_runs_from_the_command_line(
    config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--runs-dir", config.runs_dir, "--results-dir", config.results_dir]
    command = ["sweep", "--figure", "ccp-proxies-pool", "--quick", "--workers", "1", *where]
    few = ["--over", "params.proxies_per_class=1", "--over", "params.pool_size=1,4"]
    steps = ["--protocol", "ablation-ccp+max_steps=4+validate_every=2"]
    assert main([*command, *few, *steps]) == 0
    (folder,) = (tmp_path / "results" / "sweeps").iterdir()
    assert folder.name.startswith("ccp-proxies-pool-quick")
    plan = SweepPlan.read(folder / "sweep.json")
    assert [point["params"]["pool_size"] for point in plan.points] == [1, 4]
    assert "pool_size" in capsys.readouterr().out


def of_one_point(asked: Sweep) -> Sweep:
    """The first value of each axis, and the last variant, which has most of a method's parts."""
    variants = dict([*asked.variants.items()][-1:])
    axes = [replace(axis, values=axis.values[:1]) for axis in asked.axes]
    return replace(asked, axes=axes, variants=variants)


@pytest.mark.slow
@every_figure
def test_a_point_of_the_quick_form_of_a_figure_gets_to_its_table(
    figure: PaperFigure, config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On eight classes, for one step where it has steps. `make figures` runs all points."""
    build_all = figure_sweep.build_sweep
    monkeypatch.setattr(figure_sweep, "build_sweep", lambda *given: of_one_point(build_all(*given)))
    split = tmp_path / "few.yaml"
    split.write_text("{train: [0-7], test: [100-103]}")
    quick = of_one_point(build_sweep(figure, quick=True))
    command = ["sweep", "--figure", figure.name, "--quick", "--split", str(split)]
    command += ["--name", "small", "--workers", "1"]
    if "+max_steps=" in quick.config.protocol:
        short = f"{quick.config.protocol}+max_steps=1+validate_every=1"
        command += ["--protocol", short, *(["--test"] if figure.test else [])]
    assert main([*command, "--runs-dir", config.runs_dir, "--results-dir", config.results_dir]) == 0
    table = build(tmp_path / "results" / "sweeps" / "small")
    assert table.problems == [] and len(table.frame) == len(quick.points()) == 1
    scores = table.frame["map_at_r_concatenated" if figure.test else "validation"]
    assert scores.between(0, 1).all()
    for metric in figure.metrics:
        assert table.frame[f"{metric}_concatenated"].between(0, 1).all()


def test_every_figure_has_its_command_in_the_documents() -> None:
    text = (ROOT / "docs" / "papers.md").read_text()
    assert [name for name in FIGURES if f"`harness sweep --figure {name}`" not in text] == []
