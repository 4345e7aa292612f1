"""Training images per second of our image path against torchvision and PIL from the same JPEGs.

Both make uint8 batches of RandomResizedCrop(227) and flip on images of short side 256, in one
loader process; files are read once before, so that both find them in the page cache.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from harness import registry
from harness.data.batches import TrainBatches
from harness.data.crops import CropSettings, Images
from harness.data.image_cache import open_store
from harness.datasets.dataset import Listing
from harness.system.device import choose_device

SHORT_SIDE, CROP, SCALE, RATIO = 256, 227, (0.16, 1.0), (0.75, 1.33)


class Files(Dataset[Tensor]):
    """The peer: decode, resize, crop and flip at every visit, as torchvision's examples do."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths
        self.transform = transforms.Compose(
            [
                transforms.Resize(SHORT_SIDE),
                transforms.RandomResizedCrop(CROP, scale=SCALE, ratio=RATIO),
                transforms.RandomHorizontalFlip(),
                transforms.PILToTensor(),
            ]
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        return self.transform(Image.open(self.paths[index]).convert("RGB"))


def theirs(paths: list[Path], batch_size: int) -> Iterator[Tensor]:
    loader = DataLoader(Files(paths), batch_size, shuffle=True, num_workers=1)
    while True:
        yield from loader


def ours(listing: Listing, chosen: list[int], batch_size: int, cache: Path) -> Iterator[Tensor]:
    store = open_store(listing, chosen, SHORT_SIDE, cache)
    labels = listing.labels[chosen]
    batches = TrainBatches(
        source=Images(store, CropSettings(CROP, SCALE, RATIO, flip=True)),
        indices=tuple(np.array(chosen)[labels == label] for label in np.unique(labels)),
        batch_size=batch_size,
        samples_per_class=4,
        seed=0,
    )
    loader: DataLoader[tuple[Tensor, Tensor]] = DataLoader(
        batches,  # type: ignore[arg-type]  # indexable by step is all it needs
        batch_size=None,
        sampler=range(2**20),
        num_workers=1,
    )
    return (images for images, _ in loader)


def images_per_second(batches: Iterable[Tensor], count: int) -> float:
    """After a few batches, which start the loader and fill its queue."""
    stream = iter(batches)
    for batch in islice(stream, 5):
        assert batch.dtype == torch.uint8 and batch.shape[1:] == (3, CROP, CROP)
        assert batch.is_contiguous()  # so that nobody leaves the work to the next step
    start, seen = time.perf_counter(), 0
    while seen < count:
        seen += len(next(stream))
    return seen / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path, help="folder of CUB_200_2011")
    parser.add_argument("--images", type=int, default=2000, help="drawn from all classes")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each, the best counts")
    options = parser.parse_args()
    choose_device("cpu")  # as every command does; what it sets for memory holds for both
    listing = registry.load_dataset("cub")[0].list_images(options.root)
    rng = np.random.default_rng(0)
    chosen = sorted(rng.choice(len(listing.names), options.images, replace=False).tolist())
    with tempfile.TemporaryDirectory() as name:
        paths = []
        for i in chosen:  # copies: both read the very same bytes, and the pages become warm
            paths.append(Path(name, f"{i}.jpg"))
            paths[-1].write_bytes(listing.read(i))
        speeds: dict[str, list[float]] = {"ours": [], "torchvision": []}
        for _ in range(options.repeats):
            cache = Path(name, "cache")
            stream = ours(listing, chosen, options.batch_size, cache)
            speeds["ours"].append(images_per_second(stream, 3 * options.images))
            files = theirs(paths, options.batch_size)
            speeds["torchvision"].append(images_per_second(files, options.images))
    best = {contender: max(found) for contender, found in speeds.items()}
    print(f"{options.images} images of CUB, batches of {options.batch_size}, one loader process")
    for contender, speed in best.items():
        print(f"{contender:<12}{speed:>8.0f} images per second")
    print(f"{'ratio':<12}{best['ours'] / best['torchvision']:>8.1f}")


if __name__ == "__main__":
    main()
