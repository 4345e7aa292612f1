"""Features that were computed elsewhere, kept under a name as a data set without images.

`harness data import-features` checks a file of numpy once and keeps what is in it. Searches then
read features.npy and listing.json, whose checksum must be that of the features.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zipfile
from collections.abc import Container, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypedDict

import numpy as np
from msgspec import Meta

from harness.datasets.dataset import ComputedFeatures, Dataset, Listing, check_names
from harness.errors import HarnessError, convert_value_errors
from harness.foreign_files import RefusedFile, check_regular, read_foreign
from harness.system.files import replacing, write_json
from harness.typed import convert

VARIABLE = "HARNESS_FEATURES"  # environment variable: the folder that all imports are kept in
FEATURES, LISTING = "features.npy", "listing.json"
MOST_BYTES = 2**36  # of the arrays of a file, unpacked

# Names under which an array is looked for: `harness embed --model` writes the second ones.
NAMES_OF = {
    "features": ("features", "embeddings"),
    "labels": ("labels",),
    "class_names": ("class_names",),
    "names": ("names", "files"),
}
NEEDED = ("features", "labels")


class _Said(TypedDict):
    """What listing.json says, with one label and one name for each row of the features."""

    computed_by: str
    sha256: str
    width: Annotated[int, Meta(ge=1)]
    labels: list[int]
    names: list[str]
    class_names: list[str]


def import_features(file: Path, name: str, computed_by: str, taken: Container[str]) -> Listing:
    """Check a file of features and keep it as the data set `name`.

    Args:
        file: of numpy.savez, with the arrays features (n, width) and labels (n,), whole numbers or
            text; and optionally class_names, one for each label, and names (n,).
        computed_by: name of the network, for tables.
        taken: names of data sets that cannot be used.
    """
    for what, text in (("--name", name), ("--computed-by", computed_by)):
        allowed = r"[a-z0-9_]+" if what == "--name" else r"[A-Za-z0-9._-]+"
        if not re.fullmatch(allowed, text):
            raise HarnessError(f"{what} consists of the characters {allowed[1:-2]}, got '{text}'")
    if name in taken:
        raise HarnessError(f"there is a data set named '{name}' already; give another --name")
    with convert_value_errors(f"{file} cannot be imported"):
        arrays = _read_arrays(file)
        features = _checked_features(arrays["features"])
        labels, class_names = _checked_labels(arrays, len(features))
        names = _checked_names(arrays, len(features))
    folder = _folder(name)
    with replacing(folder / FEATURES) as opened:
        np.save(opened, features)
    # Last: where the two do not belong together, the checksum tells.
    with open(folder / FEATURES, "rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    said = _Said(
        computed_by=computed_by,
        sha256=digest,
        width=features.shape[1],
        labels=labels.tolist(),
        names=names,
        class_names=class_names,
    )
    write_json(folder / LISTING, said)
    return _list(folder, None)


def find_imported(name: str) -> Dataset | None:
    """The imported data set of a name, if there is one."""
    if not re.fullmatch(r"[a-z0-9_]+", name) or not (_folder(name) / LISTING).is_file():
        return None
    return Dataset(
        name,
        "features that were imported; for frozen protocols",
        partial(_list, _folder(name)),
        needs_root=False,
    )


def imported_datasets() -> list[Dataset]:
    """All of them, in the order of their names."""
    names = sorted(path.parent.name for path in _home().glob(f"*/{LISTING}"))
    return [dataset for name in names if (dataset := find_imported(name)) is not None]


def _home() -> Path:
    default = "~/.local/share/metric-harness/features"
    return Path(os.path.expanduser(os.environ.get(VARIABLE) or default))


def _folder(name: str) -> Path:
    return _home() / name


def _list(folder: Path, root: Path | None) -> Listing:
    """The listing of an import; a ValueError if its files are damaged."""
    del root
    try:
        said = convert(json.loads(read_foreign(folder / LISTING, most_bytes=2**30)), _Said, LISTING)
        labels = np.array(said["labels"], dtype=np.int64)
        counted = np.arange(len(said["class_names"]))
        if not np.array_equal(np.unique(labels), counted) or len(labels) != len(said["names"]):
            raise ValueError(f"the labels, names and classes in {LISTING} do not fit")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{folder} is damaged: {error}; import the features again") from None
    return Listing(
        names=tuple(said["names"]),
        labels=labels,
        class_names=tuple(said["class_names"]),
        read=_no_image,
        stamp=lambda index: said["sha256"],
        features=ComputedFeatures(
            said["computed_by"], folder / FEATURES, said["sha256"], said["width"]
        ),
    )


def _no_image(index: int) -> bytes:
    raise ValueError(f"row {index} of imported features has no image")


def _read_arrays(file: Path) -> dict[str, np.ndarray]:
    """The arrays of a file by our names for them."""
    try:
        check_regular(file)
        with zipfile.ZipFile(file) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > MOST_BYTES:
            raise ValueError(f"its arrays have {size / 2**30:.0f} GiB, the limit is 64")
        with np.load(file, allow_pickle=False) as found:
            named = {
                ours: next((found[one] for one in theirs if one in found), None)
                for ours, theirs in NAMES_OF.items()
            }
            there = ", ".join(found.files) or "nothing"
    except OSError as error:
        raise HarnessError(f"cannot read {file}: {error.strerror or error}") from None
    except RefusedFile:
        raise
    except (zipfile.BadZipFile, EOFError):
        raise ValueError("it is not a file of numpy.savez (.npz)") from None
    for name in NEEDED:
        if named[name] is None:
            raise ValueError(
                f"it has no array '{name}', but {there}; write it with "
                "numpy.savez(FILE, features=features, labels=labels)"
            )
    return {name: array for name, array in named.items() if array is not None}


def _checked_features(features: np.ndarray) -> np.ndarray:
    if features.ndim != 2 or 0 in features.shape:
        raise ValueError(f"features must have the shape (n, width), got {features.shape}")
    if not np.issubdtype(features.dtype, np.floating):
        raise ValueError(f"features must be floating-point numbers, got {features.dtype}")
    with np.errstate(over="ignore"):
        found = np.ascontiguousarray(features, dtype="<f4")
    wrong = np.flatnonzero(~np.isfinite(found).all(axis=1))
    if len(wrong):
        raise ValueError(
            f"{len(wrong)} of {len(found)} rows of features have values that are not finite "
            f"float32 numbers, the first is row {wrong[0]}"
        )
    return found


def _checked_labels(arrays: Mapping[str, np.ndarray], count: int) -> tuple[np.ndarray, list[str]]:
    """(n,) labels from 0, and the name of each class, in the order of what the user called them."""
    given = arrays["labels"]
    if given.shape != (count,):
        raise ValueError(f"labels must have the shape ({count},) of features, got {given.shape}")
    if given.dtype.kind not in "iuU":
        raise ValueError(f"labels must be whole numbers or text, got {given.dtype}")
    classes, labels = np.unique(given, return_inverse=True)
    names = [str(one) for one in classes]
    if "class_names" in arrays:
        listed = arrays["class_names"]
        if given.dtype.kind == "U" or classes[0] < 0 or classes[-1] >= len(listed):
            raise ValueError(
                f"class_names has {len(listed)} names; labels must be whole numbers from 0 to "
                f"{len(listed) - 1} to go with them"
            )
        names = [str(listed[one]) for one in classes]
    check_names(names)
    return labels, names


def _checked_names(arrays: Mapping[str, np.ndarray], count: int) -> list[str]:
    if "names" not in arrays:
        return [f"row {number}" for number in range(count)]
    names: Any = arrays["names"]
    if names.shape != (count,) or names.dtype.kind != "U":
        raise ValueError(f"names must be {count} texts, got {names.dtype} {names.shape}")
    check_names(names.tolist())
    return names.tolist()
