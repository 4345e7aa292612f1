"""Results that the tests of the report share."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_tables import put_table


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two data sets under one protocol."""
    folder = tmp_path_factory.mktemp("results")
    put_table(folder)
    put_table(folder, "cars")
    return folder
