"""How a result came to be: when, by which command, with what code and libraries."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, NotRequired, TypedDict

from msgspec import Meta

from harness.redact import redact
from harness.system.process_state import recorded_settings

PACKAGES = (
    *("metric-harness", "torch", "torchvision", "pytorch-metric-learning"),
    *("optuna", "faiss-gpu", "faiss-cpu", "numpy", "scipy", "pillow", "matplotlib"),
    "timm",
)

# The libraries among these, and the folders of our code, that the numbers of a training come from.
NUMERIC = ("torch", "torchvision", "pytorch-metric-learning", "numpy", "pillow", "timm")
NUMERIC_CODE = ("data", "datasets", "losses", "metrics", "model", "protocols", "training", "trunks")

# UTC in whole seconds, so that the order of the texts is that of the times.
Time = Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00$")]


class Provenance(TypedDict):
    """What every record says of its making.

    Attributes:
        commit, clean: of the checkout, and whether its code was unchanged; None for an installed
            package.
        versions: library -> version.
        nmi_clusters: name of the card that NMI's clusters were found on; absent for a CPU.
        weights: SHA-256 of the weights that the trunk started from; missing if they were random,
            and in older records.
        settings: what torch was set to where the method trained: name -> value; missing where
            nothing was trained, and in older records.
    """

    time: Time
    command: str
    commit: str | None
    clean: bool | None
    python: str
    versions: dict[str, str]
    platform: NotRequired[str]
    nmi_clusters: NotRequired[str]
    weights: NotRequired[str]
    settings: NotRequired[dict[str, str | bool | int]]


def provenance(weights: str = "", nmi_clusters: str | None = None) -> Provenance:
    """How and with what this process came to its result.

    Args:
        weights: SHA-256 of those that the trunk started from; empty if there are none.
        nmi_clusters: name of the card that NMI's clusters were found on, if it was a card.
    """
    commit, clean = _commit()
    made: Provenance = {
        "time": now(),
        "command": command_line(),
        "commit": commit,
        "clean": clean,
        "python": platform.python_version(),
        "versions": _versions(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
    if weights:
        made["weights"] = weights
    settings = recorded_settings()
    if settings is not None:
        made["settings"] = settings
    if nmi_clusters is not None:
        made["nmi_clusters"] = nmi_clusters
    return made


def now() -> Time:
    return datetime.now(UTC).isoformat(timespec="seconds")


def command_line() -> str:
    """The command line, without the folder that the program lies in and without passwords."""
    program = Path(sys.argv[0]).name
    if program == "__main__.py":  # python -m harness
        program = "harness"
    return shlex.join([program, *map(redact, sys.argv[1:])])


def commit_of(made: Provenance) -> str:
    """Of the code, with + if it had been changed; empty for an installed package."""
    commit = made["commit"]
    return "" if commit is None else commit + ("" if made["clean"] else "+")


def versions_of(made: Provenance) -> str:
    """Of Python and the libraries, as JSON."""
    return json.dumps({"python": made["python"], **made["versions"]}, sort_keys=True)


@cache
def trained_with() -> dict[str, str]:
    """Version of everything that the numbers of a training come from: library -> version.

    Ours is a hash of the code itself, since not every commit changes numbers.
    """
    digest = hashlib.sha256()
    for folder in NUMERIC_CODE:
        for path in sorted(Path(__file__).parents[1].joinpath(folder).rglob("*.py")):
            digest.update(path.read_bytes())
    versions = {name: number for name, number in _versions().items() if name in NUMERIC}
    return {"training code": digest.hexdigest()[:10], **versions}


def differing(versions: Iterable[Mapping[str, str]]) -> dict[str, list[str]]:
    """Name -> its versions, of what is not the same everywhere."""
    found: dict[str, dict[str, None]] = {}
    for one in versions:
        for name, value in one.items():
            found.setdefault(name, {})[value] = None
    return {name: list(values) for name, values in found.items() if len(values) > 1}


def spell_differing(versions: Mapping[str, Iterable[str]]) -> str:
    """As "torch 2.5.1 and 2.6.0"; empty if nothing differs."""
    return ", ".join(f"{name} {' and '.join(values)}" for name, values in versions.items())


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
    root = Path(__file__).parents[2]
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
    # GIT_DIR and its like lead to another checkout, as within a hook of git.
    ours = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=ours)
    return done.stdout.strip()
