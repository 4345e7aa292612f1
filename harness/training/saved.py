"""Tensors and plain values in a file: whole or refused, and never code that runs when it is read.

What torch saves is a pickle, which can name any function to be called. None but those that rebuild
tensors and arrays are.
"""

from __future__ import annotations

import errno
import io
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.foreign_files import RefusedFile, check_archive
from harness.system.files import replacing
from harness.system.trouble import first_line, trouble_in

# Arrays of numbers, in checkpoints that were written when they held the state of numpy's generator.
_REBUILD = np.ones(1).__reduce__()[0]
_SCALAR = np.float64(1).__reduce__()[0]
ARRAYS: tuple[Any, ...] = (
    *(np.ndarray, np.dtype),
    *(type(np.dtype(code)) for code in "?" + np.typecodes["AllInteger"] + np.typecodes["Float"]),
    *((_REBUILD, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
    *((_SCALAR, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
)

PLAIN = (Tensor, np.ndarray, np.generic, bool, int, float, complex, str, bytes, type(None))


def save(state: Any, path: Path) -> None:
    """Write tensors and plain values, which takes the place of `path` when it is complete."""
    _check_plain(state, "state")
    # In memory first: what a disk answers is lost on torch, which then speaks of a wrong position.
    content = io.BytesIO()
    torch.save(state, content)
    with replacing(path) as file:
        file.write(content.getbuffer())


def load(path: Path, device: torch.device) -> Any:
    """What `save` wrote. ValueError for a file that is damaged or holds anything else."""
    try:
        check_archive(path)  # torch itself does not look at checksums
        with torch.serialization.safe_globals(list(ARRAYS)), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location=device, weights_only=True)
    except RefusedFile:
        raise
    except UnpicklingError as error:
        # Not in torch's words, which advise to run whatever the file holds.
        refused = re.search(r"(?:GLOBAL|<class '|but got )\s*'?([\w.]+)", str(error))
        what = f", as {refused[1]}" if refused else ""
        raise ValueError(f"it holds more than tensors and plain values{what}") from None
    except Exception as error:  # whatever a damaged file makes zipfile and torch stumble over
        cut_short = isinstance(error, EOFError) or getattr(error, "errno", 0) == errno.EINVAL
        if trouble_in(error) is not None and not cut_short:
            raise
        raise ValueError(f"not a whole file of torch: {first_line(error)}") from None


def load_weights(path: Path, device: torch.device) -> dict[str, Tensor]:
    """The tensors of a trained model. ValueError also for weights that are not finite."""
    weights: dict[str, Tensor] = load(path, device)
    for name, value in weights.items():
        if value.is_floating_point() and not value.isfinite().all():
            raise ValueError(f"{name} in it has values that are not finite")
    return weights


def _check_plain(value: Any, place: str) -> None:
    """What could not be read back is refused while it is still known."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            _check_plain(part, f"{place}.{name}")
    elif isinstance(value, Sequence | set) and not isinstance(value, str | bytes):
        for part in value:
            _check_plain(part, place)
    elif not isinstance(value, PLAIN):
        raise TypeError(
            f"a checkpoint holds tensors, numbers, texts, lists and mappings; {place} is a "
            f"{type(value).__name__}"
        )
