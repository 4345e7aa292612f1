"""The moons are told apart at every temperature, the more surely the lower it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harness.cli import main
from harness.report.moons import TEMPERATURES, certainty, moons


def test_a_lower_temperature_is_surer_of_the_same_moons() -> None:
    points, labels = moons()
    found = [certainty(temperature, points) for temperature in TEMPERATURES.values()]
    for shares in found:
        assert ((shares > 0.5) == labels.bool()).float().mean() > 0.95
    sure = [float((shares - 0.5).abs().mean()) for shares in found]
    assert sure == sorted(sure)
    assert torch.equal(found[-1], certainty(1 / 9, points))


def test_the_command_needs_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "moons.svg"
    where = ["--results-dir", str(tmp_path / "none")]
    assert main(["plot", "moons", *where, "--output", str(output)]) == 0
    text = output.read_text()
    assert all(f"T = {name}" in text for name in TEMPERATURES)
    assert main(["plot", "moons", "--output", str(tmp_path / "moons.gif")]) == 2
    assert "must end in .svg" in capsys.readouterr().err
