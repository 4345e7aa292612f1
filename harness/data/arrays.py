"""Arrays of numbers in files of numpy: whole, mapped, or a ValueError."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def load_array(path: Path, dtype: type[np.generic]) -> np.ndarray:
    """The array in a file, as long as its header says, mapped and not read.

    As a plain array: indexing a memmap object costs more.
    """
    try:
        array = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except OSError:
        raise
    except Exception as error:  # numpy reads a header as Python code, and fails as that does
        raise ValueError(f"{path.name} is no whole array: {error}") from None
    if array.dtype != dtype:
        raise ValueError(f"{path.name} holds {array.dtype} instead of {np.dtype(dtype)}")
    return array
