"""The benchmark of training steps: that it runs, and that its columns are what they say."""

from __future__ import annotations

import sys

import pytest

from benchmarks import steps


@pytest.mark.slow
def test_a_step_is_set_beside_the_sum_of_what_it_cannot_save(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["bare", "proxyanchor", "ccp-c2"]  # the last embeds a pool, too
    monkeypatch.setattr(sys, "argv", ["steps", "--quick", "--losses", *names])
    steps.main()
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[0] for row in rows] == names
    for row in rows:
        step, products, adam, validation, floor, ratio = map(float, row[1:7])
        assert floor == pytest.approx(products + adam + validation, abs=0.002)
        assert ratio == pytest.approx(step / floor, abs=0.02)
        assert step > floor
