"""The parts of a benchmark as a model sees them: cropped images, or features of a frozen trunk.

Trainval and test are stored apart, so that a search never opens a test image.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import torch

from harness.config import RunConfig
from harness.data.arrays import load_array
from harness.data.batches import Source
from harness.data.crops import CropSettings, Images
from harness.data.features import Encode, Features, open_features
from harness.data.image_cache import ImageFiles, ImageStore, open_store, store_key
from harness.data.loading import Loader, image_loader
from harness.errors import HarnessError, convert_value_errors
from harness.experiment import Benchmark, build_benchmark, build_experiment, digest_of
from harness.model.build import build_trunk
from harness.system.device import device_count
from harness.system.progress import Listener, Prepared, ignore
from harness.system.workers import cores, run_workers, worker_count


def open_part(benchmark: Benchmark, part: str, listener: Listener = ignore) -> Source:
    """What a model sees of "trainval" or of "test". Only evaluation may ask for the latter."""
    if benchmark.protocol.frozen:
        return open_features_of(benchmark, part, listener)
    return open_images(benchmark, part, listener)


def open_images(benchmark: Benchmark, part: str, listener: Listener = ignore) -> Images:
    """The pixels of a part, decoded now if they are not in the cache."""
    if benchmark.listing.features is not None:
        raise HarnessError(f"data set '{benchmark.dataset_label}' has features and no images")
    protocol, config = benchmark.protocol, benchmark.config
    listed = benchmark.listed(part)
    store = open_store(
        benchmark.listing,
        listed,
        protocol.resize,
        benchmark.cache,
        allow_broken=config.allow_missing,
        decoded=config.cache == "on",
        depends_on=protocol.cache_key("images"),
        on_progress=_progress_events("decoding", benchmark, listener),
        stage=benchmark.stage,
    )
    _check_classes(benchmark, part, store)
    crops = CropSettings(
        protocol.crop,
        protocol.crop_scale,
        protocol.crop_ratio,
        protocol.flip,
        late=protocol.crops == "gpu",
    )
    originals = None
    if protocol.crop_from == "original":  # never cached: those of SOP would take 80 GB
        originals = ImageFiles(
            *(store.fingerprint, store.indices, benchmark.listing),
            short_side=None,
            digests=store.digests,
        )
    return Images(store, crops, originals)


def open_features_of(benchmark: Benchmark, part: str, listener: Listener = ignore) -> Features:
    """What the trunk makes of a part before any training, computed now if it is not cached."""
    protocol, config = benchmark.protocol, benchmark.config
    listed = benchmark.listed(part)
    if benchmark.listing.features is not None:
        return _open_given(benchmark, listed)
    key = {
        "images": store_key(benchmark.listing, listed, protocol.cache_key("images")),
        "allow_missing": config.allow_missing,
        "weights": benchmark.weights,
        "init": None if benchmark.pretrained else config.seed,
        **protocol.cache_key("features"),
    }

    def build_encoder() -> tuple[Encode, Loader]:
        device = benchmark.device
        trunk = build_trunk(benchmark, benchmark.seed("init", fold=0, repetition=0))
        return trunk.to(device).eval(), image_loader(config, device)

    folder = benchmark.cache / f"features-{digest_of(key)}"
    kept = [folder, *([benchmark.stage / folder.name] if benchmark.stage else [])]
    if not any(place.exists() for place in kept) and _workers_follow(benchmark):
        run_workers(_encode, (config, part), benchmark.device, 1, cores(), listener, apart=True)
    return open_features(
        folder,
        lambda: open_images(benchmark, part, listener),
        build_encoder,
        _progress_events("encoding", benchmark, listener),
        benchmark.stage,
    )


def _open_given(benchmark: Benchmark, listed: list[int]) -> Features:
    """The rows of a part of features that were computed elsewhere, apart from all others."""
    listing = benchmark.listing

    def read() -> Features:
        given = benchmark.trunk.own_weights
        assert given is not None
        with convert_value_errors():
            values = load_array(given.find(), np.float32)[listed]
        digest = hashlib.sha256()
        for index, row in zip(listed, values, strict=True):
            digest.update(f"{listing.names[index]}\0{listing.labels[index]}\0".encode())
            digest.update(row.tobytes())
        return Features(digest.hexdigest()[:24], listed, values)

    return open_features(
        benchmark.cache / f"features-{store_key(listing, listed, {})}",
        read,
        lambda: (lambda features: features, Loader(torch.device("cpu"))),
    )


def _workers_follow(benchmark: Benchmark) -> bool:
    """Whether processes of their own will train on cards, whose memory this one is not to hold."""
    config, device = benchmark.config, benchmark.device
    return device_count(device) > 0 and worker_count(config, 1, units=2, device=device) > 1


def _encode(job: tuple[RunConfig, str], device: str, listener: Listener) -> None:
    config, part = job
    alone = config.updated({"device": device, "workers": 1})
    build = build_experiment if config.loss else build_benchmark
    open_features_of(build(alone), part, listener)


def _progress_events(
    action: str, benchmark: Benchmark, listener: Listener
) -> Callable[[int, int], None]:
    return lambda done, total: listener(
        Prepared(dataset=benchmark.dataset_label, action=action, done=done, total=total)
    )


def _check_classes(benchmark: Benchmark, part: str, store: ImageStore) -> None:
    """A class that lost all its images changes the task, however many may be missing."""
    left = set(benchmark.listing.labels[list(store.indices)].tolist())
    empty = [label for label in benchmark.classes_of(part) if label not in left]
    if empty:
        name = benchmark.listing.class_names[empty[0]]
        raise HarnessError(
            f"{len(empty)} classes of {benchmark.dataset_label} have no readable image left, "
            f"the first is '{name}'; a split of fewer classes would be another task"
        )
