"""What model.json of an exported model says: everything that its weights leave open."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from harness.errors import HarnessError
from harness.foreign_files import RefusedFile, read_foreign
from harness.protocols.fields import one_of
from harness.protocols.protocol import Norm, Pooling, Precision
from harness.records.records import Setting
from harness.system.files import write_json
from harness.typed import convert

FILE = "model.json"
FORMAT = 1  # of the folder; raises when an older version could not read it
MOST_BYTES = 2**34  # of one file of weights

# A hostile folder must not be able to ask for all of the memory.
Side = Annotated[int, Meta(ge=1, le=2**12)]
Width = Annotated[int, Meta(ge=1, le=2**16)]
Normalizer = Annotated[str, one_of("l2", "ball")]
Models = Annotated[list[str], Meta(min_length=1, max_length=64)]


@dataclass(frozen=True)
class Preprocessing:
    """How an image becomes the input of the trunk.

    Attributes:
        mode: Pillow's name of the pixel format, "RGB" or "L" (grey).
        resize: short side in pixels, bilinear.
        crop: side of the middle square in pixels.
        mean, std: subtracted from, and divided into, pixels that are scaled to 0..`scale`.
        bgr: whether the channels are reversed.
    """

    mode: Literal["RGB", "L"]
    resize: Side
    crop: Side
    mean: list[float]
    std: list[float]
    scale: float
    bgr: bool

    def __post_init__(self) -> None:
        if self.crop > self.resize:
            raise ValueError(f"the crop ({self.crop}) exceeds the short side ({self.resize})")
        for values in (self.mean, self.std):
            if len(values) not in (1, 3):
                raise ValueError(f"mean and std have 1 or 3 values, got {len(values)}")


@dataclass(frozen=True)
class Head:
    """The layer from features to embeddings.

    Attributes:
        method: whose head it is; empty for a linear layer.
        params: of that method's head.
        bias: of a linear layer.
    """

    method: str = ""
    params: dict[str, Setting] = field(default_factory=dict)
    bias: bool = True


@dataclass(frozen=True)
class Description:
    """An exported model.

    Attributes:
        format: version of this description.
        made_by: name and version of the program that exported it.
        method, dataset, protocol: as its table calls them.
        trunk: name of the network; its weights are in the files.
        embedding_size: of each model; they are concatenated.
        normalizer: applied to the embeddings of each model, and to all together.
        models: files of weights, one for each model.
        shared_trunk: file of the trunk that all models share; empty if each has its own.
        sha256: of each file of weights.
        licence: what may restrict the use of the weights, a sentence each.
        record: the test record of the row, as in the folder of results.
    """

    format: int
    made_by: str
    method: str
    dataset: str
    protocol: str
    trunk: str
    pooling: Pooling
    norm: Norm
    head: Head
    embedding_size: Width
    normalizer: Normalizer
    precision: Precision
    preprocessing: Preprocessing
    models: Models
    shared_trunk: str
    sha256: dict[str, str]
    licence: list[str]
    record: dict[str, Any]

    def __post_init__(self) -> None:
        for name in self.files:
            if name not in self.sha256:
                raise ValueError(f"it has no SHA-256 of {name}")

    @property
    def files(self) -> list[str]:
        """The files of weights."""
        return [*self.models, *filter(None, [self.shared_trunk])]

    @property
    def size(self) -> int:
        """Of the embeddings of all models together."""
        return self.embedding_size * len(self.models)

    def write(self, folder: Path) -> None:
        write_json(folder / FILE, asdict(self))


def read_description(folder: Path) -> Description:
    """The description in a folder; a HarnessError says why it is not an exported model."""
    try:
        values = json.loads(read_foreign(folder / FILE))
        if isinstance(values, dict) and values.get("format", FORMAT) != FORMAT:
            raise ValueError(
                f"it has format {values['format']} and this version reads format {FORMAT}; "
                "install the version of metric-harness that wrote it"
            )
        return convert(values, Description, FILE)
    except OSError as error:
        raise HarnessError(
            f"{folder} is not an exported model: cannot read {FILE} ({error.strerror}); "
            "`harness export METHOD --output DIR` writes one"
        ) from None
    except (ValueError, RecursionError) as error:  # ValueError: also of JSON and RefusedFile
        raise HarnessError(f"{folder} is not an exported model: {error}") from None


def read_weights(folder: Path, name: str, sha256: str) -> bytes:
    """The content of a file of weights, which must be the one that was exported."""
    try:
        content = read_foreign(folder / name, within=folder, most_bytes=MOST_BYTES)
    except OSError as error:
        raise HarnessError(f"cannot read {folder / name}: {error.strerror}") from None
    except RefusedFile as error:
        raise HarnessError(f"{folder / name}: {error}") from None
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise HarnessError(
            f"{folder / name} is damaged, or another file: its SHA-256 is {found}, and {FILE} "
            f"says {sha256}; export the model again"
        )
    return content
