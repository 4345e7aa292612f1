"""Embedded data set: 200 characters in the 16 faces that matplotlib ships, no download.

A class is a character, an image one of its renderings in one face under random size, shift,
rotation, contrast and noise. The settings below were fixed before any loss was compared on it.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

import matplotlib
import numpy as np
import PIL
from PIL import Image, ImageDraw, ImageFont

from harness.datasets.dataset import Dataset, Listing

# Scripts are the superclasses. Characters that look alike, in one case or across scripts and
# cases (A, Α, А; c, C, С), stand here once.
SCRIPTS = {
    "digit": "0123456789",
    "latin": "ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghijmnqrty",
    "greek": "ΓΔΞΣΦΨΩαβγδεζηικλμνξπςστφχψωϑϖϠ",
    "cyrillic": "ЂЉЊДЖЗЛУЧШЩЪЫЬЭЮЯбдюфцђѢҐћ",
    "symbol": "!#$%&+<=>?@~¢£¥§¬±¶×÷†€∂",
    "phonetic": "ÆØÞßæðøþŊŒœƒƕƪƺɐɒɔɕɖɗəɚɝɞɟɠʣɣɤɥɧɫɬɮɰɲɳɱɷɹɺɻɽɾɿʁʂʃʆʇʉʊʌʍʎʐʑʒʔʖʗʚʛʜʝʞʡ",
}
FACES = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique"),
    *("DejaVuSansMono-BoldOblique", "DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic"),
    *("DejaVuSerif-BoldItalic", "STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic"),
    "STIXGeneralBolIta",
)
RENDERINGS_PER_FACE = 3
PER_CLASS = len(FACES) * RENDERINGS_PER_FACE  # images
SIZE = 28  # pixels of a side
FONT_SIZE = (15, 23)  # pixels, inclusive
MAX_SHIFT = 3.0  # pixels, each way
MAX_ROTATION = 20.0  # degrees, each way
CONTRAST = (0.4, 1.0)
PAPER = (0.0, 0.2)  # brightness behind the ink
NOISE = 0.15  # standard deviation, of a range of 1
SEED = 20200823


def list_images(root: Path | None = None) -> Listing:
    """200 classes of 48 images; the order of classes is drawn once, so scripts mix."""
    del root
    characters = [(char, s) for s, chars in enumerate(SCRIPTS.values()) for char in chars]
    order = np.random.default_rng(SEED).permutation(len(characters))
    classes = [characters[i] for i in order]
    names = tuple(
        f"U+{ord(char):04X}/{face}-{rendering}"
        for char, _ in classes
        for face in FACES
        for rendering in range(RENDERINGS_PER_FACE)
    )

    def read(index: int) -> bytes:
        label, image = divmod(index, PER_CLASS)
        return render(classes[label][0], FACES[image // RENDERINGS_PER_FACE], index)

    settings = (SIZE, FONT_SIZE, MAX_SHIFT, MAX_ROTATION, CONTRAST, PAPER, NOISE, SEED)
    version = f"{settings} {PIL.__version__} {_fonts_digest()}"
    return Listing(
        names=names,
        labels=np.repeat(np.arange(len(classes)), PER_CLASS),
        class_names=tuple(f"U+{ord(char):04X} {char}" for char, _ in classes),
        read=read,
        stamp=lambda index: version,
        decode=lambda encoded: Image.frombytes("L", (SIZE, SIZE), encoded),
        mode="L",
        superclasses=np.array([script for _, script in classes]),
        superclass_names=tuple(SCRIPTS),
    )


def arrays(num_classes: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(n, 28, 28) uint8 images and (n,) labels of the first classes, of all unless told."""
    listing = list_images()
    labels = listing.labels[: None if num_classes is None else num_classes * PER_CLASS]
    images = [np.asarray(listing.decode(listing.read(index))) for index in range(len(labels))]
    return np.stack(images), labels


def render(character: str, face: str, index: int) -> bytes:
    """The pixels of image `index`: a function of its arguments and the settings alone."""
    rng = np.random.default_rng([SEED, index])
    face_font = font(face, int(rng.integers(FONT_SIZE[0], FONT_SIZE[1] + 1)))
    shift_x, shift_y = rng.uniform(-MAX_SHIFT, MAX_SHIFT, 2)
    canvas = Image.new("L", (SIZE, SIZE))
    centre = (SIZE / 2 + shift_x, SIZE / 2 + shift_y)
    # Anchored in the middle of the face's line, so that height and depth still tell p from P.
    ImageDraw.Draw(canvas).text(centre, character, fill=255, font=face_font, anchor="mm")
    angle = float(rng.uniform(-MAX_ROTATION, MAX_ROTATION))
    rotated = canvas.rotate(angle, Image.Resampling.BILINEAR)
    ink = np.asarray(rotated, dtype=np.float64) / 255 * rng.uniform(*CONTRAST)
    paper = rng.uniform(*PAPER)
    pixels = paper + ink * (1 - paper) + rng.normal(0, NOISE, ink.shape)
    return (np.clip(pixels, 0, 1) * 255).astype(np.uint8).tobytes()


@lru_cache(maxsize=256)
def font(face: str, size: int) -> ImageFont.FreeTypeFont:
    # The basic layout engine: the complex one depends on libraries of the machine.
    return ImageFont.truetype(font_path(face), size, layout_engine=ImageFont.Layout.BASIC)


def font_path(face: str) -> Path:
    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{face}.ttf"


@lru_cache(maxsize=1)
def _fonts_digest() -> str:
    digest = hashlib.sha256()
    for face in FACES:
        digest.update(font_path(face).read_bytes())
    return digest.hexdigest()[:12]


DATASETS = (
    Dataset("glyphs", "embedded: 200 characters in 16 faces", list_images, needs_root=False),
)
