"""Files of weights: found, downloaded once, checked against their SHA-256, loaded."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch
from filelock import FileLock
from torch import Tensor, nn

DIGITS = 12  # of a SHA-256, to tell weights apart in records
MIRROR = "HARNESS_WEIGHTS_MIRROR"  # environment variable
SHOWN = 5  # entries named in a message


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
        if len(self.sha256) < len(found):
            check_first_use(self.path, self.path.name, found)
        return self.path

    def _fetch(self) -> None:
        """Into a file beside the final one, checked, then renamed: complete or absent."""
        sources = [f"{mirror}/{self.path.name}" for mirror in mirrors()]
        failures = []
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{self.path}.lock"):  # two processes download it once
                for url in (*sources, self.url):
                    if self.path.exists():
                        return
                    try:
                        torch.hub.download_url_to_file(url, str(self.path), self.sha256)
                    except (OSError, RuntimeError) as error:
                        failures.append(f"{url}: {error}" if sources else str(error))
        except OSError as error:
            failures.append(str(error))
        if failures and not self.path.exists():
            raise self._refused(f"cannot download {self.path.name}: {'; '.join(failures)}")

    def _refused(self, reason: str, *advice: str) -> ValueError:
        # Only by its digest is a file from elsewhere known to be the same.
        known = [f"SHA-256: {self.sha256}{'…' if len(self.sha256) < 64 else ''}"]
        given = "give --weights PATH or " if self.sha256 else ""
        return ValueError(
            "\n  ".join(
                [
                    reason,
                    f"from: {self.url}",
                    *(known if self.sha256 else []),
                    *advice,
                    f"set {MIRROR} to a folder or an address that has the file, or",
                    f"fetch it by hand, then {given}put it at {self.path}",
                    "or start from random weights: --weights none",
                ]
            )
        )


def mirrors() -> list[str]:
    """Addresses to download from before the published one, separated by blanks.

    A mirror is a folder on this machine or a URL, and has the files under their published names.
    Whatever it has is checked as the published file is.
    """
    given = os.environ.get(MIRROR, "").split()
    return [
        one.rstrip("/") if "://" in one else Path(os.path.expanduser(one)).absolute().as_uri()
        for one in given
    ]


def check_digest(file: Path, sha256: str, advice: str) -> None:
    """Refuse a file that is not the one that was published.

    Args:
        sha256: whole, or its first digits.
        advice: last part of the message, what to do.
    """
    found = digest_of_file(file)
    if not found.startswith(sha256):
        raise ValueError(
            f"{file} is damaged, or another file: its SHA-256 is {found}, not {sha256}; {advice}"
        )


def check_first_use(file: Path, name: str, found: str, revision: str = "") -> None:
    """Refuse weights of which no full SHA-256 is published if they changed since the first use.

    Args:
        name: of the weights, in one word.
        found: SHA-256 of the file.
        revision: of the repository that has the file, to ask for the same one next time.
    """
    kept = _first_use_path(name)
    first = first_use(name)
    if first and first["sha256"] != found:
        raise ValueError(
            f"{file} is another file than at its first use here\n  its SHA-256: {found}\n"
            f"  at the first use: {first['sha256']}\n"
            f"  if both are meant to be the same weights, delete {kept}; else restore the file"
        )
    if not first:
        with suppress(OSError):  # of a folder that only its administrator may write to
            kept.parent.mkdir(parents=True, exist_ok=True)
            unfinished = kept.with_name(f".{kept.name}.{os.getpid()}")
            unfinished.write_text(json.dumps({"sha256": found, "revision": revision}))
            os.replace(unfinished, kept)


def first_use(name: str) -> dict[str, str]:
    """SHA-256 and revision of weights when they were first used here; empty before that."""
    try:
        kept = json.loads(_first_use_path(name).read_bytes())
        return {"sha256": str(kept["sha256"]), "revision": str(kept["revision"])}
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def _first_use_path(name: str) -> Path:
    return Path(torch.hub.get_dir(), "checkpoints", f"{name}.first-use.json")


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
    file = Path(os.path.expanduser(path))
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
    state = read(file)
    if not isinstance(state, dict):
        raise unfit(file, f"holds a {type(state).__name__}, not a state dict of names to tensors")
    others = [
        repr(name)
        for name, value in state.items()
        if not (isinstance(name, str) and isinstance(value, Tensor))
    ]
    if others:
        raise unfit(
            file,
            f"holds more than names and tensors: {', '.join(others[:SHOWN])}; if one of these is "
            "the state dict of the trunk, save it alone",
        )
    # Without the versions that it may carry: old files have no counts of batches.
    kept = {name: value for name, value in state.items() if not name.startswith(without)}
    try:
        network.load_state_dict(kept)
    except (RuntimeError, AttributeError, TypeError) as error:
        lines = str(error).splitlines()
        raise unfit(file, "does not fit the trunk: " + " ".join(lines[:2])[:300]) from None


def check_finite(network: nn.Module, file: Path) -> None:
    """Refuse weights with infinities or NaN, of which no training makes anything."""
    for name, value in network.state_dict().items():
        if value.is_floating_point() and not value.isfinite().all():
            raise unfit(file, f"has values that are not finite in {name}")


# Of files that are often taken for weights, and of those of torch: zip, and pickle before that.
BEGINNINGS = {
    (b"<",): "looks like a web page, perhaps of a server that refused it",
    (b"version https://git-lfs",): "only points to a file that Git LFS keeps",
    (b"PK", b"\x80"): "is damaged or cut short, or an archive of something else",
}


def read(file: Path) -> Any:
    """What torch saved in a file, tensors and plain values alone."""
    try:
        _check_stored(file)
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can fail in any way
        # Not in torch's words, which advise to run whatever code the file holds.
        reason = _describe_damage(file, str(error))
        raise unfit(file, f"is no readable file of PyTorch weights: it {reason}") from error


def _check_stored(file: Path) -> None:
    """Refuse compressed entries, which unpack to any size; torch writes none."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise ValueError("compressed entries")


def _describe_damage(file: Path, said: str) -> str:
    """What a file that torch refused looks like, by how it begins."""
    with open(file, "rb") as opened:
        start = opened.read(64)
    if "Unsupported global" in said or "TorchScript" in said:
        return "holds more than tensors, perhaps a whole model; save its state_dict() alone"
    if said == "compressed entries":
        return "has compressed entries, which torch.save never writes"
    if start[8:9] == b"{":  # behind the length of a header
        return "looks like safetensors, which timm: trunks read from files so named"
    for beginnings, meaning in BEGINNINGS.items():
        if start.lstrip().startswith(beginnings):
            return meaning
    return "was not written by torch.save" if start else "is empty"


def unfit(file: Path, reason: str) -> ValueError:
    return ValueError(
        f"{file} {reason}\n  its SHA-256: {digest_of_file(file)}\n"
        "  give another file with --weights PATH, or none for random weights"
    )
