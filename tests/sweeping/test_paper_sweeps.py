"""The papers' figures: each can be run, on its own data and on glyphs, with its numbers beside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import registry
from harness.cli import main
from harness.config import RunConfig
from harness.errors import HarnessError
from harness.experiment import build_experiment
from harness.losses.method import Method
from harness.model.build import check_method
from harness.sweeping.axes import config_at, parse_axis
from harness.sweeping.paper_sweeps import FIGURES, Figure, find_figure, sweep_of
from harness.tables.sweeps import Plan, build

ROOT = Path(__file__).parents[2]

every_figure = pytest.mark.parametrize("figure", FIGURES.values(), ids=lambda figure: figure.name)


@every_figure
def test_every_point_of_a_figure_has_a_protocol_and_parameters_of_its_loss(figure: Figure) -> None:
    asked = sweep_of(figure, {"results_dir": str(ROOT / "results")})
    points = asked.points()
    assert len(points) > 1
    for _, changes in points:
        at = config_at(asked.config, {k: v for k, v in changes.items() if k != "loss"})
        method: Method = registry.load_method(changes["loss"])
        preset = method.preset(at.preset, at.dataset)
        registry.load_protocol(at.protocol, at.dataset, preset.protocol)
        method.cast(at.params, at.dataset, 75)


@every_figure
def test_a_figure_can_be_had_quickly(figure: Figure) -> None:
    """One point of each loss and protocol builds on glyphs."""
    asked = sweep_of(figure, quick=True)
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
        asked = sweep_of(figure, {"results_dir": str(ROOT / "results")})
        points = [point for point, _ in asked.points()]
        for value in asked.published:
            found = [p for p in points if all(p.get(k) == v for k, v in value["values"].items())]
            assert len(found) == 1, (figure.name, value)
            assert 0 < value["value"] < 100
            printed += 1
        expected = len(figure.cited) > 0 or len(figure.read_off) > 0
        assert bool(asked.published) == expected
    assert printed > 180


def published_of(name: str) -> Iterator[tuple[object, float, bool]]:
    asked = sweep_of(find_figure(name), {"results_dir": str(ROOT / "results")})
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
    assert find_figure("proxynca++-ladder-8").variants[full] == {}
    assert len(find_figure("proxynca++-ladder-8").variants["ProxyNCA"]) == 7


def test_numbers_of_a_plot_are_marked_as_read_off() -> None:
    marked = [read_off for _, _, read_off in published_of("proxygml-ratio")]
    assert len(marked) == 16 and all(marked)
    assert ("Proxy-NCA", 82.8, False) in list(published_of("hpl-interval"))


def test_another_data_set_or_protocol_has_no_published_numbers_and_opens_no_test() -> None:
    figure = find_figure("proxygml-ratio")
    own = sweep_of(figure, {"results_dir": str(ROOT / "results")})
    assert own.test and own.name == "proxygml-ratio" and own.published
    other = sweep_of(figure, {"dataset": "cub", "protocol": "frozen"})
    assert not other.test and other.name == "proxygml-ratio-cub-frozen" and not other.published
    assert not any(sweep_of(figure, {key: "cub"}).test for key in ("dataset", "trunk"))
    assert sweep_of(figure, {"protocol": "frozen"}, test=True).test
    assert sweep_of(figure, {"params": {"reg_weight": 0.5}}).config.params == {
        "proxies_per_class": 12,
        "reg_weight": 0.5,
    }


def test_an_axis_of_the_user_takes_the_place_of_the_figures() -> None:
    asked = sweep_of(find_figure("proxygml-map"), axes=[parse_axis("params.ratio=0.5")])
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
    plan = Plan.read(folder / "sweep.json")
    assert [point["params"]["pool_size"] for point in plan.points] == [1, 4]
    assert "pool_size" in capsys.readouterr().out


@pytest.mark.slow
@every_figure
def test_the_quick_form_of_a_figure_runs_to_its_table(
    figure: Figure, config: RunConfig, tmp_path: Path
) -> None:
    """On eight classes, for one step where it has steps."""
    split = tmp_path / "few.yaml"
    split.write_text("{train: [0-7], test: [100-103]}")
    quick = sweep_of(figure, quick=True)
    command = ["sweep", "--figure", figure.name, "--quick", "--split", str(split)]
    command += ["--name", "small", "--workers", "1"]
    if "+max_steps=" in quick.config.protocol:
        short = f"{quick.config.protocol}+max_steps=1+validate_every=1"
        command += ["--protocol", short, *(["--test"] if figure.test else [])]
    assert main([*command, "--runs-dir", config.runs_dir, "--results-dir", config.results_dir]) == 0
    table = build(tmp_path / "results" / "sweeps" / "small")
    assert table.problems == [] and len(table.frame) == len(quick.points())
    scores = table.frame["map_at_r_concatenated" if figure.test else "validation"]
    assert scores.between(0, 1).all()
    for metric in figure.metrics:
        assert table.frame[f"{metric}_concatenated"].between(0, 1).all()


def test_every_figure_has_its_command_in_the_documents() -> None:
    text = (ROOT / "docs" / "papers.md").read_text()
    assert [name for name in FIGURES if f"`harness sweep --figure {name}`" not in text] == []
