"""How a command that is run in this process ends, and what it has changed on disk."""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from hypothesis import HealthCheck, settings

from harness.cli import main

# How many cases all fuzz tests have together; with a number given, other ones every time.
USUAL = 2500
SHARES = 1.48  # of all tests together, which are parts of this and not of 1
WANTED = os.environ.get("HARNESS_FUZZ", "")


def cases(share: float) -> settings:
    """A part of all cases, for one test."""
    return settings(
        max_examples=max(1, math.ceil(share / SHARES * int(WANTED or USUAL))),
        derandomize=not WANTED,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )


@dataclass(frozen=True)
class End:
    """Exit code, and what was said."""

    code: int
    out: str
    err: str

    def check(self) -> None:
        """The only accepted ends: success, or a message."""
        assert self.code in (0, 2), _with_report(self.err)
        assert self.code == 0 or self.err.partition("error: ")[2].strip(), "no message"
        assert "Traceback" not in self.err + self.out, self.err


def _with_report(said: str) -> str:
    """What was said, with the report of a bug, which is then gone."""
    found = re.search(r"the report: (.*)", said)
    if found is None:
        return said
    report = Path(found[1])
    said += "\n" + report.read_text()
    report.unlink()
    return said


def run(arguments: list[str], encoding: str = "utf-8") -> End:
    """A command, on terminals of that encoding."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding, write_through=True) for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err):
        code = main(arguments)
    texts = [stream.buffer.getvalue().decode(encoding) for stream in (out, err)]  # type: ignore[attr-defined]
    return End(code, *texts)


def _files(folder: Path) -> dict[str, bytes]:
    found = (os.path.join(where, name) for where, _, names in os.walk(folder) for name in names)
    return {
        os.path.relpath(path, folder): Path(path).read_bytes()
        for path in found
        if not path.endswith("lock")
    }


@contextmanager
def unchanged(folder: Path, *ours: str) -> Iterator[None]:
    """Nothing in a folder may change within the block but what a pattern names."""
    before = _files(folder)
    yield
    after = _files(folder)
    touched = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert not [name for name in touched if not any(fnmatch(name, own) for own in ours)]
