"""Your own images: a folder of class folders, searched and evaluated in seconds.

python examples/folder_run.py [FOLDER]    # everything is written there, by default to folder_run
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image

import harness
from harness.config import Settings

# For small pictures, a small network and a short run. Real photographs need none of this: leave
# the protocol at `mlrc` and the trunk at the protocol's.
SETTINGS = {
    "resize": 20,
    "crop": 16,
    "crop_scale": "none",
    "freeze_batchnorm": "false",
    "optimizer": "adam",
    "lr": 0.003,
    "batch_size": 16,
    "max_steps": 30,
    "validate_every": 10,
}
PROTOCOL = "+".join(["mlrc", *(f"{field}={value}" for field, value in SETTINGS.items())])


def draw(folder: Path, classes: int = 16, images: int = 8) -> None:
    """Noisy stripes: a class is an angle and a colour."""
    rng = np.random.default_rng(0)
    across, down = np.meshgrid(np.arange(24), np.arange(24))
    for number in range(classes):
        place = folder / f"class_{number:02d}"
        place.mkdir(parents=True, exist_ok=True)
        angle, colour = rng.uniform(0, np.pi), rng.uniform(100, 150, 3)
        for image in range(images):
            tilt, tint = angle + rng.normal(0, 0.1), colour + rng.normal(0, 20, 3)
            phase = across * np.cos(tilt) + down * np.sin(tilt) + rng.uniform(0, 6)
            stripes = tint * (1 + 0.3 * np.sin(phase)[..., None])
            pixels = stripes + rng.normal(0, 40, stripes.shape)
            picture = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
            picture.save(place / f"{image}.png")


def main(folder: Path) -> None:
    draw(folder / "stripes")
    settings: Settings = {
        "dataset": f"folder:{folder / 'stripes'}",
        "protocol": PROTOCOL,
        "trunk": "convnet",
        "trials": 2,
        "reproductions": 2,
        "workers": 1,
        "runs_dir": str(folder / "runs"),
        "results_dir": str(folder / "results"),
        "cache_dir": str(folder / "cache"),
    }
    found = harness.search("contrastive", **settings)
    print(f"best of {found.trials} trials: {found.best_score:.3f} with {found.best_params}")
    (board,) = harness.evaluate("contrastive", **settings)
    print(board.frame[["method", "map_at_r_concatenated", "p_at_1_concatenated"]])
    print(f"files: {board.folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "folder_run"))
