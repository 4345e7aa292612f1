"""Shells complete commands and flags, without waiting for torch."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import sys
from harness.cli import main
try:
    main([])
finally:
    print("torch:", "torch" in sys.modules)
"""


@pytest.mark.parametrize(
    ("words", "completed"),
    [("harness lea", "leaderboard"), ("harness search --protoc", "--protocol")],
)
def test_bash_completes_commands_and_flags(words: str, completed: str) -> None:
    environment = {
        **os.environ,
        "_HARNESS_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True
    )
    assert done.stdout.split("\n") == [completed, "torch: False", ""], done.stderr
