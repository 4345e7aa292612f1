"""Files and folders that others may read as the umask says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.system.files import build_once, write_json


@pytest.fixture(params=[0o022, 0o027])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_files_and_caches_are_as_open_as_the_umask_lets_them(umask: int, tmp_path: Path) -> None:
    write_json(tmp_path / "record.json", {})
    build_once(
        tmp_path / "cache",
        lambda work: (work / "pixels").write_bytes(b"x"),
        lambda folder: (folder / "pixels").read_bytes(),
    )
    assert mode(tmp_path / "record.json") == 0o666 & ~umask
    assert mode(tmp_path / "cache") == 0o777 & ~umask
