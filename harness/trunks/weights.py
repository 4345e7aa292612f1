"""Files of weights: found, downloaded once, checked against their SHA-256, loaded."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import torch
from filelock import FileLock
from torch import nn

DIGITS = 12  # of a SHA-256, to tell weights apart in records


class Weights(Protocol):
    """A trunk's own weights."""

    @property
    def sha256(self) -> str:
        """Of the file, whole or its first digits; empty if only the file itself can tell."""
        ...

    def find(self) -> Path:
        """The file, fetched now if need be. Raises ValueError with what to do instead."""
        ...


@dataclass(frozen=True)
class Download:
    """Weights on a server, kept in the folder where torch keeps its own."""

    url: str
    sha256: str

    @property
    def path(self) -> Path:
        return Path(torch.hub.get_dir(), "checkpoints", self.url.rsplit("/", 1)[1])

    def find(self) -> Path:
        if not self.path.exists():
            self._fetch()
        found = digest_of_file(self.path)
        if not found.startswith(self.sha256):
            raise self._refused(
                f"{self.path} is damaged, or another file: its SHA-256 is {found}",
                "delete it to download it again, or",
            )
        return self.path

    def _fetch(self) -> None:
        """Into a file beside the final one, checked, then renamed: complete or absent."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{self.path}.lock"):  # two processes download it once
                if not self.path.exists():
                    torch.hub.download_url_to_file(self.url, str(self.path), self.sha256)
        except (OSError, RuntimeError) as error:
            raise self._refused(f"cannot download {self.path.name}: {error}") from None

    def _refused(self, reason: str, *advice: str) -> ValueError:
        return ValueError(
            "\n  ".join(
                [
                    reason,
                    f"from: {self.url}",
                    f"SHA-256: {self.sha256}{'…' if len(self.sha256) < 64 else ''}",
                    *advice,
                    f"fetch it by hand, then give --weights PATH or put it at {self.path}",
                    "or start from random weights: --weights none",
                ]
            )
        )


def digest_of_file(path: Path) -> str:
    """SHA-256 in hex; read again only when the file changes."""
    try:
        stat = path.stat()
        return _digest(path.resolve(), stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        raise ValueError(f"cannot read the weights {path}: {error.strerror}") from None


@cache
def _digest(path: Path, size: int, modified: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def given_file(path: str) -> Path:
    """The file that a user names."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise ValueError(
            f"no file of weights at {file}; --weights takes a path, or none for random weights"
        )
    return file


def load_into(network: nn.Module, file: Path, without: tuple[str, ...] = ()) -> None:
    """Load a state dict that fits exactly.

    Args:
        without: beginnings of names that the network has no place for, as its classifier.
    """
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can fail in any way
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise unfit(file, f"is no readable file of PyTorch weights: {reason}") from error
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise unfit(file, f"holds a {type(state).__name__}, not a state dict of names to tensors")
    # Without the versions that it may carry: old files have no counts of batches.
    kept = {name: value for name, value in state.items() if not name.startswith(without)}
    try:
        network.load_state_dict(kept)
    except (RuntimeError, AttributeError, TypeError) as error:
        lines = str(error).splitlines()
        raise unfit(file, "does not fit the trunk: " + " ".join(lines[:2])[:300]) from None


def unfit(file: Path, reason: str) -> ValueError:
    return ValueError(
        f"{file} {reason}\n  its SHA-256: {digest_of_file(file)}\n"
        "  give another file with --weights PATH, or none for random weights"
    )
