"""What is written after a run, with its provenance; and the ledger of test openings."""

from __future__ import annotations

import json
import platform
import shlex
import subprocess
import sys
from dataclasses import MISSING, asdict, dataclass, field, fields
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar, Self

from harness.errors import HarnessError
from harness.redact import redact
from harness.system.files import append_line, read_json, write_json

PACKAGES = (
    *("metric-harness", "torch", "torchvision", "pytorch-metric-learning"),
    *("optuna", "faiss-gpu", "faiss-cpu", "numpy", "scipy", "pillow", "matplotlib"),
    "timm",
)
LEDGER = "test_openings.jsonl"


# What tables are made from.
TESTED = {
    "identity": (
        *("method", "protocol", "dataset", "trunk"),
        *("data_fingerprint", "split", "seed"),
    ),
    "scores": ("concatenated",),
    "provenance": ("time", "command", "commit", "clean", "python", "versions"),
}


class RecordError(HarnessError):
    """A record that cannot be used, with its file and the reason."""


@dataclass(frozen=True)
class Record:
    """Base of what is written as one JSON file; a file that does not fit is refused."""

    # Field -> keys that it must have.
    CONTENTS: ClassVar[dict[str, tuple[str, ...]]] = {}

    def write(self, path: Path) -> None:
        write_json(path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> Self:
        try:
            values = read_json(path)
        except (OSError, ValueError) as error:
            raise RecordError(f"{path}: not a complete JSON file ({error})") from None
        found = set(values) if isinstance(values, dict) else set()
        # A field with a default came later: older records do without it.
        required = {f.name for f in fields(cls) if f.default is f.default_factory is MISSING}
        missing, extra = required - found, found - {f.name for f in fields(cls)}
        if missing or extra:
            lacks, has = ", ".join(sorted(missing)) or "nothing", ", ".join(sorted(extra)) or "none"
            raise RecordError(f"{path}: not a {cls.__name__} (missing: {lacks}; unknown: {has})")
        for name, keys in cls.CONTENTS.items():
            inside = values[name] if isinstance(values[name], dict) else {}
            lacking = [key for key in keys if key not in inside]
            if lacking:
                raise RecordError(f"{path}: not a {cls.__name__} ({name} lacks {lacking[0]})")
        return cls(**values)


@dataclass(frozen=True)
class FoldRecord(Record):
    """One trained model: one configuration, one fold, one repetition.

    Attributes:
        hook: what the method's hook says of the run, as how often CCP changed its problem.
    """

    identity: dict[str, Any]
    params: dict[str, Any]
    fold: int
    repetition: int
    best_score: float
    best_step: int
    steps: int
    stopped_by: str
    history: list[tuple[int, float, float]]
    train_seconds: float
    seconds: float
    peak_memory: int
    hook: dict[str, Any]
    device: str
    provenance: dict[str, Any]


@dataclass(frozen=True)
class TestRecord(Record):
    """One opening of the test classes: the models of one repetition, or a naive baseline.

    Attributes:
        kind: "reproduction", "single" (one model instead of those of the folds) or "naive".
        scores: "concatenated" and "separated" -> metric -> value.
        separated: one such mapping per fold model.
        folds: the FoldRecords without identity and history.
        search: what selected the parameters: trials, failures, validation score.
        per_class: kind -> metric -> mean over the queries of each test class, in the order of
            the labels; None where no query counts.
        class_queries: how many queries of each test class count.
        missing_images: of the whole data set, because their files were missing or broken.
    """

    __test__ = False  # pytest: not a test
    CONTENTS = TESTED

    kind: str
    identity: dict[str, Any]
    params: dict[str, Any]
    repetition: int
    dims: dict[str, int]
    scores: dict[str, dict[str, float]]
    separated: list[dict[str, float]]
    queries: int
    queries_dropped: int
    test_fingerprint: str
    folds: list[dict[str, Any]]
    search: dict[str, Any]
    provenance: dict[str, Any]
    per_class: dict[str, dict[str, list[float | None]]] = field(default_factory=dict)
    class_queries: list[int] = field(default_factory=list)
    missing_images: int = 0


@dataclass(frozen=True)
class MetricsRecord(Record):
    """More metrics of a run that was tested before; what its TestRecord says stays as it is.

    Attributes:
        kind: that of the run.
        scores: "concatenated" and "separated" -> metric -> value.
    """

    CONTENTS = TESTED

    kind: str
    identity: dict[str, Any]
    params: dict[str, Any]
    repetition: int
    scores: dict[str, dict[str, float]]
    test_fingerprint: str
    provenance: dict[str, Any]


def read_record(path: Path) -> TestRecord | MetricsRecord:
    """A file of a records folder, by what its name says it is."""
    return MetricsRecord.read(path) if ".metrics." in path.name else TestRecord.read(path)


def provenance() -> dict[str, Any]:
    """How and with what this process came to its result."""
    commit, clean = _commit()
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": _command(),
        "commit": commit,
        "clean": clean,
        "python": platform.python_version(),
        "versions": _versions(),
        "platform": f"{platform.system()} {platform.machine()}",
    }


def _command() -> str:
    """The command line, without the folder that the program lies in and without passwords."""
    program = Path(sys.argv[0]).name
    if program == "__main__.py":  # python -m harness
        program = "harness"
    return redact(shlex.join([program, *sys.argv[1:]]))


@cache
def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


@cache
def _commit() -> tuple[str | None, bool | None]:
    """Commit of the checkout this code runs from, and whether its code is unchanged."""
    root = Path(__file__).parent.parent
    if not (root / ".git").exists():
        return None, None
    code = ["harness", "losses", "protocols"]
    try:
        commit = _git(root, "rev-parse", "HEAD")
        return commit, not _git(root, "status", "--porcelain", "--", *code)
    except (OSError, subprocess.CalledProcessError):
        return None, None


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def note_test_opening(results: Path, method: str, params_digest: str, repetition: int) -> None:
    """Write to the ledger that test classes are being opened, before they are."""
    entry = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "method": method,
        "params": params_digest,
        "repetition": repetition,
        "command": _command(),
    }
    append_line(results / LEDGER, entry)


def read_ledger(path: Path, problems: list[str]) -> list[dict[str, Any]]:
    """The entries of a ledger; lines that are none are named."""
    entries = []
    lines = path.read_text().splitlines() if path.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            entry["method"], entry["params"], entry["repetition"]
        except (ValueError, KeyError, TypeError):
            problems.append(f"{path}, line {number}: not a ledger entry")
            continue
        entries.append(entry)
    return entries
