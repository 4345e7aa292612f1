"""The README's Python example, as written: as a script; and piped, in a notebook, in a thread."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import FOLDER
from documents import ROOT, blocks

(EXAMPLE,) = [block for block in blocks(ROOT / "README.md", "python") if "harness.search" in block]
SEARCH, EVALUATION = EXAMPLE.split("board =")

# A cell of a notebook, as IPython runs it, in a thread. One search shows it all: neither a cell nor
# a piped program has a file that workers could run again, and a thread hears no signals.
CELL_IN_A_THREAD = """
import threading
failed = []
def run():
    try:
        exec(compile({code!r}, "<ipython-input-1>", "exec"), {{"__name__": "__main__"}})
    except BaseException as error:
        failed.append(error)
thread = threading.Thread(target=run)
thread.start()
thread.join()
if failed:
    raise failed[0]
"""


def quick(code: str, pictures: Path, more: str = "workers=2") -> str:
    what = f'dataset="folder:{pictures}", protocol="{FOLDER}", trunk="convnet", {more}'
    return code.replace('dataset="glyphs"', what).replace("trials=10", "trials=2")


def printed_by(arguments: list[str], where: Path, piped: str | None = None) -> str:
    """By a new interpreter."""
    done = subprocess.run(
        [sys.executable, *arguments],
        input=piped,
        env={**os.environ, "HARNESS_CACHE": str(where / "cache"), "PYTHONPATH": str(ROOT)},
        cwd=where,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# Workers used to run the script again, each with workers of its own.


@pytest.mark.slow
def test_the_example_of_the_readme_works_as_a_script_with_two_workers(
    tmp_path: Path, image_folder: Path
) -> None:
    tested = quick(EVALUATION, image_folder, "workers=1, reproductions=1")
    script = tmp_path / "example.py"
    script.write_text(f"{quick(SEARCH, image_folder)}board ={tested}")
    printed = printed_by([str(script)], tmp_path)
    assert "reference_weight" in printed and "ccp-c2" in printed


@pytest.mark.slow
def test_its_search_with_two_workers_works_piped_as_a_cell_in_a_thread(
    tmp_path: Path, image_folder: Path
) -> None:
    piped = CELL_IN_A_THREAD.format(code=quick(SEARCH, image_folder))
    assert "reference_weight" in printed_by([], tmp_path, piped)
