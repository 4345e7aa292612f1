"""A model that was exported: from images to embeddings, without a data set and its run folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from pytorch_metric_learning.utils.inference import InferenceModel
from safetensors import SafetensorError
from torch import Tensor, nn

from harness import registry
from harness.errors import HarnessError, convert_value_errors
from harness.exported.description import Description, read_description, read_weights
from harness.exported.images import batches, find_images, list_paths, open_listing
from harness.model.network import NORMALIZERS, Model, PooledTrunk
from harness.system.device import choose_device
from harness.system.precision import training_precision
from harness.training.embed import concatenate

BATCH = 64  # images that pass the network at once
SHOWN = 3  # names of weights in a message

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def load(folder: str | Path, device: str = "auto") -> ExportedModel:
    """Load a model that `harness export` wrote. No code from the folder is run.

    Args:
        folder: with model.json and the weights.
        device: auto, cuda, cuda:N or cpu.

    Raises:
        HarnessError: if the folder is not an exported model, or its weights do not fit.

    >>> harness.load("proxyanchor-cub").embed(["a.jpg", "b.jpg"])
    """
    place = Path(folder)
    description = read_description(place)
    chosen = choose_device(device)
    # First without memory: a description of a huge network that the weights do not fit costs none.
    with torch.device("meta"):
        fitting = _build(description)
    states = [_read_state(place, description, name) for name in description.models]
    for model, state, name in zip(fitting, states, description.models, strict=True):
        _check_fit(model.state_dict(), state, place / name)
    with torch.random.fork_rng(devices=[]):  # initial weights draw from it
        models = _build(description)
    for model, state in zip(models, states, strict=True):
        model.load_state_dict(state)
    return ExportedModel(description, models).to(chosen).eval()


class ExportedModel(nn.Module):
    """The models of one row of a table, side by side.

    Attributes:
        description: what model.json says.
    """

    def __init__(self, description: Description, models: Sequence[Model]) -> None:
        super().__init__()
        self.description = description
        self.models = nn.ModuleList(models)

    @property
    def size(self) -> int:
        """Number of dimensions of an embedding."""
        return self.description.size

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def forward(self, images: Tensor) -> Tensor:
        """(n, channels, crop, crop) uint8 -> (n, size) float32, normalised.

        A grey image has one channel, any other has red, green and blue. `open_listing` in
        harness.exported.images makes such images of files.
        """
        normalizer = self.description.normalizer
        if self.description.shared_trunk:
            features = self.models[0].features(images)  # type: ignore[operator]
            raw = [model.embed(features) for model in self.models]  # type: ignore[operator]
        else:
            raw = [model(images) for model in self.models]
        return concatenate([NORMALIZERS[normalizer](one) for one in raw], normalizer)

    def embed(
        self,
        images: Paths,
        batch_size: int = BATCH,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> np.ndarray:
        """(n, size) float32: the embeddings of image files, in their order.

        Args:
            images: paths of files, or one folder, whose images are taken in the order of their
                names, with those in the folders within it.
            batch_size: number of images that pass the network at once.
            on_progress: called after each batch with the numbers of images done and in total.
        """
        if batch_size < 1:
            raise HarnessError(f"batch_size must be at least 1, got {batch_size}")
        files = list_files_of(images)
        found = np.empty((len(files), self.size), dtype=np.float32)
        done = 0
        preprocessing = self.description.preprocessing
        source = open_listing(list_paths(files, preprocessing.mode), preprocessing)
        self.eval()
        with torch.no_grad(), training_precision(self.description.precision, self.device):
            for batch in batches(source, batch_size):
                found[done : done + len(batch)] = self(batch.to(self.device)).cpu()
                done += len(batch)
                on_progress(done, len(files))
        return found

    def inference_model(self, **options: Any) -> InferenceModel:
        """As pytorch-metric-learning's InferenceModel, which also takes lists of image files.

        Args:
            options: further arguments of InferenceModel, such as match_finder.
        """
        return _PathInference(
            self, **{"normalize_embeddings": False, "data_device": self.device, **options}
        )


def list_files_of(images: Paths) -> list[Path]:
    """The image files that were named one by one, or by their folder."""
    if not isinstance(images, str | os.PathLike):
        return [Path(os.path.expanduser(one)) for one in images]
    path = Path(os.path.expanduser(images))
    return [path] if path.is_file() else find_images(path)


class _PathInference(InferenceModel):
    """An InferenceModel whose inputs may be paths of images instead of tensors."""

    def get_embeddings_from_tensor_or_dataset(self, inputs: Any, batch_size: int) -> Any:
        if _are_paths(inputs):
            return torch.from_numpy(self.trunk.embed(inputs, batch_size)).to(self.data_device)
        return super().get_embeddings_from_tensor_or_dataset(inputs, batch_size)

    def get_embeddings(self, x: Any) -> Any:
        if _are_paths(x):
            return self.get_embeddings_from_tensor_or_dataset(x, BATCH)
        return super().get_embeddings(x)


def _are_paths(inputs: Any) -> bool:
    if isinstance(inputs, list | tuple):
        return all(isinstance(one, str | os.PathLike) for one in inputs)
    return isinstance(inputs, str | os.PathLike)


def _build(description: Description) -> list[Model]:
    """The networks as they are before their weights are loaded."""
    made = description.preprocessing
    trunk = replace(
        registry.load_trunk(description.trunk),
        mean=tuple(made.mean),
        std=tuple(made.std),
        scale=made.scale,
        bgr=made.bgr,
    )

    def pooled() -> PooledTrunk:
        network = trunk.network(trunk.channels or len(made.mode), None)
        return PooledTrunk(network, trunk.normalize, description.pooling)

    with convert_value_errors(f"trunk {description.trunk} of the exported model"):
        trunk.check_side(made.crop)
        count = 1 if description.shared_trunk else len(description.models)
        trunks = [pooled() for _ in range(count)]
    return [
        Model(
            trunks[number % len(trunks)],
            description.norm,
            _build_head(description, trunks[0].out_features),
            description.precision,
        )
        for number in range(len(description.models))
    ]


def _build_head(description: Description, width: int) -> nn.Module:
    head, size = description.head, description.embedding_size
    if not head.method:
        return nn.Linear(width, size, bias=head.bias)
    method = registry.load_item("loss", head.method)
    try:
        built = method.make_head(width, size, head.params)
    except (ValueError, TypeError) as error:
        raise HarnessError(f"the head of {head.method} cannot be built: {error}") from None
    if built is None:
        raise HarnessError(f"the exported model names {head.method}, which has no head")
    return built


def _read_state(folder: Path, description: Description, name: str) -> dict[str, Tensor]:
    """The weights of one model, with those of the trunk that it shares."""
    state: dict[str, Tensor] = {}
    for file in filter(None, [description.shared_trunk, name]):
        content = read_weights(folder, file, description.sha256[file])
        try:
            state |= safetensors.torch.load(content)
        except SafetensorError as error:
            raise HarnessError(f"{folder / file} is not a safetensors file: {error}") from None
    return state


def _check_fit(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor], file: Path) -> None:
    """Refuse weights of another network, and weights that are not finite."""
    problems = [f"{name} is missing" for name in wanted if name not in found]
    problems += [f"{name} is unknown" for name in found if name not in wanted]
    problems += [
        f"{name} has the shape {tuple(found[name].shape)}, not {tuple(value.shape)}"
        for name, value in wanted.items()
        if name in found and found[name].shape != value.shape
    ]
    if problems:
        more = f" and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise HarnessError(
            f"{file} does not fit the network that model.json describes: "
            f"{'; '.join(problems[:SHOWN])}{more}"
        )
    for name, value in found.items():
        if value.is_floating_point() and not value.isfinite().all():
            raise HarnessError(f"{file} has values that are not finite in {name}")
