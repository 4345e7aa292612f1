"""The README's Python example, as written: as a script, piped, in a notebook, in a thread."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import FOLDER
from documents import ROOT, blocks

(EXAMPLE,) = [block for block in blocks(ROOT / "README.md", "python") if "harness.search" in block]

# In the cells of a notebook, which have no file; as IPython runs them.
NOTEBOOK = """
cell = compile({code!r}, "<ipython-input-1>", "exec")
del globals()["__file__"]
exec(cell, globals())
"""

THREAD = """
import threading
failed = []
def run():
    try:
        exec({code!r}, {{"__name__": "__main__"}})
    except BaseException as error:
        failed.append(error)
thread = threading.Thread(target=run)
thread.start()
thread.join()
if failed:
    raise failed[0]
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["script", "piped", "notebook", "thread"])
def test_the_example_of_the_readme_works_with_two_workers(
    tmp_path: Path, image_folder: Path, way: str
) -> None:
    """Workers used to run the script again, each with workers of its own."""
    quickly = f'dataset="folder:{image_folder}", protocol="{FOLDER}", trunk="convnet", workers=2'
    code = EXAMPLE.replace('dataset="glyphs"', quickly).replace("trials=10", "trials=2")
    code = code.replace('evaluate("ccp", ', 'evaluate("ccp", reproductions=1, ')
    whole = way == "script"  # the others need not repeat what the first line has shown
    code = code.replace("workers=2)[0]", "workers=1)[0]") if whole else code.partition("board =")[0]
    wrapped = {"notebook": NOTEBOOK, "thread": THREAD}.get(way, "{code}").format(code=code)
    script = tmp_path / "example.py"
    script.write_text(wrapped)
    done = subprocess.run(
        [sys.executable, *([] if way == "piped" else [str(script)])],
        input=wrapped if way == "piped" else None,
        env={**os.environ, "HARNESS_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert "reference_weight" in done.stdout and ("ccp-c2" in done.stdout) == whole
