"""The benchmark of training steps: that it runs, and that its columns are what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_step_is_set_beside_the_sum_of_what_it_cannot_save() -> None:
    command = [sys.executable, "-m", "benchmarks.steps", "--quick", "--losses"]
    names = ["proxyanchor", "ccp-c2"]  # the second embeds a pool of images besides its batches
    run = subprocess.run([*command, *names], cwd=ROOT, capture_output=True, text=True, check=True)
    rows = [line.split() for line in run.stdout.splitlines()[2:]]
    assert [row[0] for row in rows] == names
    for row in rows:
        step, products, adam, validation, floor, ratio = map(float, row[1:7])
        assert floor == pytest.approx(products + adam + validation, abs=0.002)
        assert ratio == pytest.approx(step / floor, abs=0.02)
        assert step > floor
