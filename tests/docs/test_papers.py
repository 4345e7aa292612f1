"""docs/papers.md: every preset of a paper stands there with its protocols."""

from __future__ import annotations

import re

import pytest
from documents import ROOT

from harness import registry

PAGE = (ROOT / "docs" / "papers.md").read_text()
OF_PAPERS = [
    (method.name, preset, method.preset(preset, "cub").under)
    for method in registry.items("loss").values()
    for preset in method.presets
    if method.preset(preset, "cub").under
]


def rows() -> list[tuple[set[str], set[str], set[str]]]:
    """Losses, presets and protocols of each row; `the same` repeats the cell above."""
    found: list[tuple[set[str], set[str], set[str]]] = []
    section = PAGE.partition("## Presets and their protocols")[2].partition("\n## ")[0]
    for line in re.findall(r"^\| (?:`|the same).*$", section, flags=re.MULTILINE):
        cells = [cell.strip() for cell in line.strip("|").split("|")][:3]
        parts = [
            found[-1][i] if cell == "the same" else set(re.findall(r"`([^`]+)`", cell))
            for i, cell in enumerate(cells)
        ]
        found.append((parts[0], parts[1], parts[2]))
    return found


@pytest.mark.parametrize(("loss", "preset", "protocols"), OF_PAPERS)
def test_a_preset_stands_there_with_its_protocols(
    loss: str, preset: str, protocols: tuple[str, ...]
) -> None:
    named = {
        p for losses, presets, own in rows() if loss in losses and preset in presets for p in own
    }
    assert set(protocols) <= named


def test_every_protocol_that_stands_there_exists() -> None:
    for _, _, protocols in rows():
        for name in protocols:
            registry.load_protocol(name, "cub")


def test_crops_and_lengths_are_those_of_the_protocols() -> None:
    for name, crop, resize, epochs in (
        ("classic-proxygml", 224, 256, 50),
        ("classic-hpl", 224, 256, 30),
        ("classic-drml", 224, 256, 61),
        ("two_stage", 256, 288, 40),
    ):
        protocol = registry.load_protocol(name, "cub")
        assert (protocol.crop, protocol.resize, protocol.epochs) == (crop, resize, epochs)
        (line, *_) = re.findall(rf"^\| .*`{name}`.*$", PAGE, flags=re.MULTILINE)
        assert f"{resize} to {crop}" in line and str(epochs) in line
