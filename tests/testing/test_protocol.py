"""The contract of a protocol finds what is wrong with one, and nothing in one that is right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.errors import HarnessError
from harness.protocols.protocol import EvaluationProtocol
from harness.testing import check_protocol

SOUND = EvaluationProtocol("sound", "as the reality check has it")

FILE = """
from harness.protocols.protocol import EvaluationProtocol

PROTOCOLS = (EvaluationProtocol("mine", "my settings", batch_size={batch_size}),)
"""


def on_glyphs(**settings: Any) -> EvaluationProtocol:
    return replace(SOUND, datasets={"glyphs": settings})


def test_a_sound_protocol_passes() -> None:
    check_protocol(SOUND)


def test_a_file_can_be_checked(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(FILE.format(batch_size=64))
    check_protocol(path)
    path.write_text(FILE.format(batch_size=0))
    with pytest.raises(AssertionError, match=r"mine on .*batch_size must be a whole number >= 1"):
        check_protocol(path)


def test_an_unknown_name_is_refused_with_advice() -> None:
    with pytest.raises(HarnessError, match=r"no protocol named 'mlcr'\. Did you mean 'mlrc'"):
        check_protocol("mlcr")


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        (replace(SOUND, name="so+und"), r"the name 'so\+und' must consist of"),
        (replace(SOUND, summary=""), "sound has no summary"),
        (replace(SOUND, datasets={"cubs": {"lr": 1e-5}}), "settings for 'cubs'; known are cars"),
        (on_glyphs(bach_size=8), "'bach_size'.* is no field that may differ there"),
        (on_glyphs(summary="other"), "'summary'.* is no field that may differ there"),
        (on_glyphs(name="other"), "'name'.* is no field that may differ there"),
        (on_glyphs(crop=300), r"sound on glyphs: ValueError: crop \(300\) must not exceed"),
        (replace(SOUND, folds="fifths"), "sound on cars: UnknownName: no folds named 'fifths'"),
        (replace(SOUND, metric="accuracy"), "selects by 'accuracy'; known are map_at_r"),
        (on_glyphs(lr=1), r"sound on glyphs: lr=1 is read back as 1\.0"),
        (replace(SOUND, trunk="resnet51"), "sound on cars: UnknownName: no trunk named"),
    ],
)
def test_what_breaks_the_contract_is_named(protocol: EvaluationProtocol, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_protocol(protocol)
