"""Embeddings of anybody's images as a file for other tools."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from harness.errors import HarnessError
from harness.system.files import replacing

PARQUET = ".parquet"


def check_format(output: Path) -> None:
    """Refuse Parquet, before any work, where pandas cannot write it."""
    if output.suffix == PARQUET and importlib.util.find_spec("pyarrow") is None:
        raise HarnessError(
            f"{output.name} needs pyarrow; install with: pip install 'metric-harness[export]', "
            "or give a file that ends in .npz"
        )


def write_embeddings(
    embeddings: np.ndarray, files: Sequence[Path], folder: Path, output: Path
) -> None:
    """Write embeddings with the name of each image in `folder`, and with the folder it is in."""
    names = [file.relative_to(folder) for file in files]
    classes = np.array([name.parent.as_posix() for name in names])
    posix = [name.as_posix() for name in names]
    try:
        with replacing(output) as opened:
            if output.suffix == PARQUET:
                import pandas as pd

                columns = {"file": posix, "class_name": classes, "embedding": list(embeddings)}
                pd.DataFrame(columns).to_parquet(opened)
            else:
                class_names, labels = np.unique(classes, return_inverse=True)
                np.savez_compressed(
                    opened,
                    embeddings=embeddings,
                    labels=labels,
                    class_names=class_names,
                    files=np.array(posix),
                )
    except OSError as error:
        raise HarnessError(f"cannot write {output}: {error.strerror}") from None
