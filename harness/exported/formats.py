"""Exported models as files of other programs: ONNX, and programs of torch.export."""

from __future__ import annotations

import importlib.util
import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from harness.errors import HarnessError
from harness.system.trouble import first_line

INPUT, OUTPUT = "images", "embeddings"
ANY_NUMBER: dict[str, Any] = {INPUT: {0: torch.export.Dim.DYNAMIC}}  # of images
MOST_IN_ONE = 1_900_000_000  # bytes of weights; a file of ONNX holds 2 GiB


@dataclass(frozen=True)
class Format:
    """A kind of file.

    Attributes:
        file: name in the folder of the model.
        packages: that it needs beyond the requirements of the harness.
        write: (model, example images, file) -> None.
        run: (file, images) -> embeddings, by the program that the file is meant for.
    """

    file: str
    packages: tuple[str, ...]
    write: Callable[[nn.Module, Tensor, Path], None]
    run: Callable[[Path, Tensor], np.ndarray]

    def check(self) -> None:
        """Refuse the format if a package is missing, before any work."""
        missing = [name for name in self.packages if importlib.util.find_spec(name) is None]
        if missing:
            raise HarnessError(
                f"{self.file} needs {', '.join(missing)}; install with: "
                "pip install 'metric-harness[export]'"
            )


@contextmanager
def _exporting(file: Path) -> Iterator[None]:
    """Say in words what an exporter fails of; without its progress, which it prints."""
    try:
        with redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:  # of whatever the network does that the format cannot say
        reason = first_line(error)
        raise HarnessError(
            f"cannot write {file}: {reason}; the folder is complete without it"
        ) from error


def _write_onnx(model: nn.Module, images: Tensor, file: Path) -> None:
    size = sum(value.numel() * value.element_size() for value in model.state_dict().values())
    with _exporting(file):
        torch.onnx.export(
            model,
            (images,),
            str(file),
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=ANY_NUMBER,
            dynamo=True,
            external_data=size > MOST_IN_ONE,
        )


def _run_onnx(file: Path, images: Tensor) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    (found,) = session.run([OUTPUT], {INPUT: images.numpy()})
    return np.asarray(found)


def _write_program(model: nn.Module, images: Tensor, file: Path) -> None:
    with _exporting(file):
        program = torch.export.export(model, (images,), dynamic_shapes=ANY_NUMBER)
        torch.export.save(program, file)


def _run_program(file: Path, images: Tensor) -> np.ndarray:
    with torch.no_grad():
        return torch.export.load(file).module()(images).numpy()


FORMATS = {
    "onnx": Format("model.onnx", ("onnx", "onnxscript", "onnxruntime"), _write_onnx, _run_onnx),
    "torch": Format("model.pt2", (), _write_program, _run_program),
}
