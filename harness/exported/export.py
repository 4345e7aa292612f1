"""From the kept models of a row to a folder that needs neither them nor the data set."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from harness.errors import HarnessError
from harness.evaluation.kept_models import KeptModels
from harness.experiment import Experiment
from harness.exported import description
from harness.exported.description import Description, Head, Preprocessing
from harness.exported.formats import FORMATS
from harness.exported.images import open_listing
from harness.exported.model import load
from harness.exported.readme import readme_of
from harness.loss_file import is_file
from harness.model.build import build_trunk
from harness.records.records import TestRecord
from harness.system.device import cpu_threads
from harness.system.files import make_folder, replacing
from harness.training.embed import concatenate, embed_with
from harness.training.unit import evaluation_loader

COMPARED = 32  # training images
LARGEST_DIFFERENCE = 1e-3  # between embeddings of length 1; beyond, something is wrong
TRUNK = "trunk.safetensors"


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        differences: file -> largest absolute difference to an embedding of the original models.
        images: number of images that they were compared on.
    """

    description: Description
    differences: Mapping[str, float]
    images: int


def export(
    kept: KeptModels, record: TestRecord, folder: Path, formats: Sequence[str] = ()
) -> Exported:
    """Write the models of a row and compare what was written with them. Opens no test class.

    Args:
        folder: to make; an existing one must be empty.
        formats: more than the weights: names of FORMATS.
    """
    if kept.experiment.listing.features is not None:
        raise HarnessError(
            f"{record.identity['method']} was trained on imported features: without the network "
            "that computed them, nothing can embed images"
        )
    head = _head_of(kept.experiment, record)
    for name in formats:
        FORMATS[name].check()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise HarnessError(f"{folder} exists already; give a new folder to --output")
    with cpu_threads(kept.experiment.protocol.threads):
        indices, originals = _embed_some(kept)
        make_folder(folder)
        said = _write(kept, record, head, folder)
        written = load(folder, device="cpu")
        listing = kept.experiment.listing
        images = open_listing(listing, said.preprocessing).for_evaluation(indices)
        with torch.no_grad():
            found = {description.FILE: written(images).numpy()}
        for name in formats:
            format_ = FORMATS[name]
            format_.write(written, images, folder / format_.file)
            found[format_.file] = format_.run(folder / format_.file, images)
    differences = {
        file: float(np.abs(embeddings - originals).max()) for file, embeddings in found.items()
    }
    for file, difference in differences.items():
        if not difference <= LARGEST_DIFFERENCE:
            raise HarnessError(
                f"{folder / file} gives other embeddings than the models of the run: they differ "
                f"by {difference:.1e} on {len(indices)} images; do not use it"
            )
    return Exported(said, differences, len(indices))


def _embed_some(kept: KeptModels) -> tuple[list[int], np.ndarray]:
    """Some training images, by their index, and what the original models make of them."""
    experiment, source = kept.experiment, kept.opened.trainval
    among = np.array(source.indices)
    places = np.linspace(0, len(among) - 1, min(COMPARED, len(among))).astype(int)
    indices = among[places].tolist()
    loader = evaluation_loader(experiment, experiment.device)
    normalizer = experiment.method.normalizer
    embeddings = [embed_with(model, source, indices, loader, normalizer) for model in kept.load()]
    return indices, concatenate(embeddings, normalizer).cpu().numpy()


def _head_of(experiment: Experiment, record: TestRecord) -> Head:
    method = experiment.method
    if method.build_head is None:
        return Head(bias=experiment.protocol.head_bias)
    if is_file(experiment.config.loss):
        raise HarnessError(
            f"{method.name} builds a head in a loss file, which is not part of an export; only "
            "linear heads and those of installed methods can be exported"
        )
    params = {name: record.params[name] for name in method.head_params if name in record.params}
    return Head(method.name.partition("+")[0], params)


def _write(kept: KeptModels, record: TestRecord, head: Head, folder: Path) -> Description:
    """The weights, and last the description, without which the folder is no exported model."""
    experiment = kept.experiment
    protocol, trunk = experiment.protocol, experiment.trunk
    states = {
        f"model-{number}.safetensors": model.state_dict()
        for number, model in enumerate(kept.load(), start=1)
    }
    models = list(states)
    if protocol.frozen:
        seed = experiment.seed("init", fold=0, repetition=0)
        network = build_trunk(experiment, seed).state_dict(prefix="trunk.")
        states[TRUNK] = network
    said = Description(
        format=description.FORMAT,
        made_by=f"metric-harness {version('metric-harness')}",
        method=record.identity["method"],
        dataset=record.identity["dataset"],
        protocol=str(record.identity["protocol"]["name"]),
        trunk=trunk.name,
        pooling=protocol.pooling,
        norm=protocol.norm,
        head=head,
        embedding_size=protocol.embedding_size,
        normalizer=experiment.method.normalizer,
        precision=protocol.precision,
        preprocessing=Preprocessing(
            mode="L" if (trunk.channels or experiment.listing.channels) == 1 else "RGB",
            resize=protocol.resize,
            crop=protocol.crop,
            mean=list(trunk.mean),
            std=list(trunk.std),
            scale=trunk.scale,
            bgr=trunk.bgr,
        ),
        models=models,
        shared_trunk=TRUNK if protocol.frozen else "",
        sha256={name: _save(state, folder / name) for name, state in states.items()},
        licence=_licence(experiment),
        record=asdict(record),
    )
    with replacing(folder / "README.md") as file:
        file.write(readme_of(said).encode())
    said.write(folder)
    return said


def _save(state: Mapping[str, Tensor], file: Path) -> str:
    """Write tensors; returns the SHA-256 of the file."""
    content = safetensors.torch.save(
        {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}
    )
    with replacing(file) as opened:
        opened.write(content)
    return hashlib.sha256(content).hexdigest()


def _licence(experiment: Experiment) -> list[str]:
    trunk = experiment.trunk
    notes = [
        f"The models were trained on images of the data set {experiment.dataset_label}. "
        "Its terms may restrict the use of the weights."
    ]
    if experiment.weights_sha256:
        under = f" Their licence, as published: {trunk.licence}." if trunk.licence else ""
        notes.append(
            f"Training began with weights of the trunk {experiment.trunk_label} (SHA-256 "
            f"{experiment.weights_sha256}), whose licence also applies.{under}"
        )
    return notes
