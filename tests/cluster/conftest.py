"""One Slurm for all tests of a process, and commands that stand in for `harness`."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from emulated_slurm import EmulatedSlurm, emulated_slurm, missing


@pytest.fixture(scope="session")
def running_slurm() -> Iterator[EmulatedSlurm]:
    if reason := missing():
        pytest.skip(f"no Slurm: {reason}")
    # Not in pytest's folders, whose long names do not fit into the address of a socket.
    with tempfile.TemporaryDirectory(prefix="slurm") as place, emulated_slurm(Path(place)) as slurm:
        yield slurm


@pytest.fixture
def slurm(running_slurm: EmulatedSlurm, monkeypatch: pytest.MonkeyPatch) -> EmulatedSlurm:
    """A Slurm that the commands of a test submit to."""
    monkeypatch.setenv("SLURM_CONF", str(running_slurm.config))
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    return running_slurm


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Gives tasks another program in the place of `harness`, which starts at once."""
    real = sys.executable

    def write(source: str) -> None:
        program = tmp_path / "bin" / "harness"
        program.parent.mkdir()
        program.write_text(source.replace("#!python", f"#!{real}"))
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program.with_name("python")))

    return write
