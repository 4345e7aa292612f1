"""What losses cost, from what was measured."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from harness.config import RunConfig
from harness.errors import HarnessError
from harness.experiment import build_experiment
from harness.records.records import FoldRecord
from harness.sweeping import cost
from harness.sweeping.cost import measure_costs
from harness.tables.column import View
from harness.tables.training_cost import converged_step

SETTINGS = ("dataset", "protocol", "trunk", "cache_dir", "runs_dir", "results_dir")


def test_a_model_has_converged_at_its_first_score_within_a_tenth_of_a_point_of_the_best() -> None:
    history = [(10, 1.0, 0.30), (20, 1.0, 0.4991), (30, 1.0, 0.49), (40, 1.0, 0.5)]
    assert converged_step(history, 0.5) == 20
    assert converged_step(history[3:], 0.5) == 40


def test_costs_are_those_of_the_trained_models(folder_config: RunConfig, tmp_path: Path) -> None:
    settings = {name: getattr(folder_config, name) for name in SETTINGS}
    costs = measure_costs(["contrastive", "proxygml"], settings, folds=2)
    frame = costs.frame.set_index("method")
    for method in ("contrastive", "proxygml"):
        paths = (tmp_path / "runs" / "costs").glob(f"*/*/{method}/folds/*/record.json")
        records = [FoldRecord.read(path) for path in paths]
        assert len(records) == 2
        row = frame.loc[method]
        per_step = sum(1000 * r.train_seconds / r.steps for r in records) / 2
        assert row["ms_per_step"] == pytest.approx(per_step)
        assert row["peak_memory_mib"] == max(r.peak_memory for r in records) / 2**20
        assert 0 < row["convergence_seconds"] <= row["train_seconds"] * 1.01
    assert frame.loc["contrastive", "loss_mib"] == 0
    # 12 proxies of 6 classes in 128 dimensions, 4 bytes each.
    assert frame.loc["proxygml", "loss_mib"] == 12 * 6 * 128 * 4 / 2**20
    written = pd.read_csv(costs.files[0])
    assert written["ms_per_step"].tolist() == pytest.approx(costs.frame["ms_per_step"].tolist())
    assert "proxygml" in costs.files[1].read_text()
    assert costs.table.texts(View.TERMINAL)["method"].tolist() == ["contrastive", "proxygml"]
    # Another loss is measured beside them, in the same table.
    more = measure_costs(["triplet", "proxygml"], settings, folds=2)
    assert more.frame["method"].tolist() == ["contrastive", "triplet", "proxygml"]
    assert more.frame["ms_per_step"][0] == pytest.approx(frame.loc["contrastive", "ms_per_step"])
    costs.files[0].write_text("no table")
    with pytest.raises(HarnessError, match="is no table of costs; move it away"):
        measure_costs(["triplet"], settings, folds=2)


def test_what_papers_print_stands_beside_in_our_units(
    folder_config: RunConfig,
) -> None:
    experiment = build_experiment(folder_config.updated({"loss": "ms"}))
    object.__setattr__(experiment, "dataset", "cars")
    frame = pd.DataFrame({"method": ["triplet-semihard", "proxygml", "c1"]})
    beside = cost._with_printed(frame, experiment, Path(__file__).parents[2] / "results")
    assert beside["published_ms_per_step"].tolist()[:2] == [480.0, 230.0]
    assert beside["published_convergence_seconds"][1] == pytest.approx(0.81 * 3600)
    assert beside["published_peak_memory_mib"][1] == pytest.approx(2.18e9 / 2**20)
    assert pd.isna(beside["published_ms_per_step"][2])


def test_a_cost_of_nothing_is_refused() -> None:
    with pytest.raises(HarnessError, match="which loss"):
        measure_costs([], {})
