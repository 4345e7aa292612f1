"""Train the trunk `glyphnet` to tell characters apart that the data set `glyphs` does not have.

python -m pretraining.glyphnet    # writes harness/trunks/glyphnet.pt, in 65 s of one CPU core

On one machine it writes the same bytes every time.

Armenian, Georgian, Hebrew, double lines and punctuation, drawn as `glyphs` draws its characters, in
those of its faces that have them. What looks like one of the 200 classes in any face is left out.
"""

from __future__ import annotations

import time
import unicodedata
from functools import cache
from pathlib import Path

import numpy as np
import torch
from fontTools.ttLib import TTFont
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from harness.datasets import glyphs
from harness.trunks import glyphnet
from harness.trunks.trunk import Normalize

BLOCKS = (
    *((0x0531, 0x058A), (0x10A0, 0x10FF), (0x05D0, 0x05EA)),  # Armenian, Georgian, Hebrew
    *((0x2550, 0x256C), (0x0021, 0x002F), (0x003A, 0x0040)),  # double lines, punctuation
    *((0x005B, 0x0060), (0x007B, 0x007E)),  # more of it
)
CLASSES = tuple(char for chars in glyphs.SCRIPTS.values() for char in chars)
ALIKE = 0.75  # of the ink of two characters, the share that is of both

RENDERINGS = 160  # of each character
FIRST_RENDERING = 1_000_000  # none that the data set has
CROP = 24  # at a random place; without it the network knows its own characters better, others worse
BATCH_SIZE = 128
STEPS = 4000
LR = 3e-3
WEIGHT_DECAY = 1e-2
LABEL_SMOOTHING = 0.1
SEED = 0

FILE = Path(glyphnet.__file__).with_suffix(".pt")


def characters() -> dict[str, list[str]]:
    """Those to train on, with the faces that have them."""
    known = {face: TTFont(glyphs.font_path(face)).getBestCmap() for face in glyphs.FACES}
    found: dict[str, list[str]] = {}
    for code in (code for first, last in BLOCKS for code in range(first, last + 1)):
        faces = [face for face in glyphs.FACES if code in known[face]]
        composed = len(unicodedata.normalize("NFKD", chr(code))) > 1
        if faces and not composed and likeness(chr(code), faces) < ALIKE:
            found[chr(code)] = faces
    return found


def likeness(character: str, faces: list[str]) -> float:
    """To the class that it is most like, in the face in which it is; 1 for one without ink."""
    return max(float(shared_ink(shape(character, face), _classes(face)).max()) for face in faces)


def shape(character: str, face: str) -> np.ndarray:
    """(576,) 0 or 1: drawn large, cut to its ink and scaled to a square of 24 x 24."""
    mask = glyphs.font(face, 48).getmask(character)
    ink = np.asarray(mask).reshape(mask.size[::-1]) > 127
    rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
    if not rows.size:
        return np.zeros(24 * 24)
    cut = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    side = max(cut.shape)
    square = np.zeros((side, side))
    top, left = (side - cut.shape[0]) // 2, (side - cut.shape[1]) // 2
    square[top : top + cut.shape[0], left : left + cut.shape[1]] = cut
    picked = np.linspace(0, side - 1, 24).astype(int)
    return square[np.ix_(picked, picked)].ravel()


def shared_ink(one: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Of the ink of a shape and of each of others, the share that both have."""
    both = others @ one
    either = others.sum(axis=1) + one.sum() - both
    return both / either if one.any() else np.ones(len(others))


@cache
def _classes(face: str) -> np.ndarray:
    return np.stack([shape(char, face) for char in CLASSES])


def draw(known: dict[str, list[str]]) -> tuple[Tensor, Tensor]:
    """(n, 1, side, side) images and their labels, faces by turns."""
    images: list[bytes] = []
    labels: list[int] = []
    for label, (character, faces) in enumerate(known.items()):
        for rendering in range(RENDERINGS):
            index = FIRST_RENDERING + len(images)
            images.append(glyphs.render(character, faces[rendering % len(faces)], index))
            labels.append(label)
    pixels = np.frombuffer(b"".join(images), dtype=np.uint8)
    shape = (len(images), 1, glyphs.SIZE, glyphs.SIZE)
    return torch.from_numpy(pixels.reshape(shape).copy()), torch.tensor(labels)


def train(images: Tensor, labels: Tensor) -> glyphnet.GlyphNet:
    """By cross-entropy over a linear classifier, as trunks for photographs are."""
    torch.manual_seed(SEED)
    rng = np.random.default_rng(SEED)
    network = glyphnet.GlyphNet()
    classifier = nn.Linear(network.out_features, int(labels.max()) + 1)
    parameters = [*network.parameters(), *classifier.parameters()]
    optimizer = torch.optim.AdamW(parameters, LR, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, STEPS)
    normalize = Normalize(glyphnet.TRUNKS[0])
    for step in range(1, STEPS + 1):
        chosen = rng.integers(0, len(images), BATCH_SIZE)
        top, left = rng.integers(0, glyphs.SIZE - CROP + 1, 2)
        crops = images[chosen, :, top : top + CROP, left : left + CROP]
        logits = classifier(network(normalize(crops)).mean(dim=(2, 3)))
        loss = cross_entropy(logits, labels[chosen], label_smoothing=LABEL_SMOOTHING)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 500 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    return network


def main() -> None:
    torch.set_num_threads(1)
    known = characters()
    print(f"{len(known)} characters: {''.join(known)}")
    network = train(*draw(known))
    # Half precision halves the file.
    torch.save({name: value.half() for name, value in network.state_dict().items()}, FILE)
    print(f"{FILE}: {FILE.stat().st_size:,} bytes, {time.process_time():.0f} s of CPU time")


if __name__ == "__main__":
    main()
