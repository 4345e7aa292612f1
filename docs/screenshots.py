"""Take the screenshots of docs/report/ again, from a page that `harness report` made.

Needs chromium and chromedriver. A page with pictures and one of the committed results:

$ harness report --pictures --runs-dir RUNS --results-dir RESULTS --output glyphs.html
$ python docs/screenshots.py glyphs.html --name glyphs
$ harness report --output results.html
$ python docs/screenshots.py results.html --name results

--all takes every part at both widths, light and dark, to look at and not to keep.
"""

from __future__ import annotations

import argparse
import base64
import io
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from browser import resize, start  # noqa: E402
from selenium import webdriver  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402

# Part, width, dark: what documents show.
SHOTS = (
    *(("conclusion", 1400, False), ("differences", 1400, False), ("search", 1200, True)),
    *(("training", 1200, False), ("classes", 1200, False), ("pictures", 1200, True)),
    *(("cost", 1200, False), ("conclusion", 375, True)),
)
TALLEST = 1000  # pixels of a picture in a document
COLOURS = 64  # of a picture: a third of the bytes, and nobody sees it


def parts(browser: webdriver.Chrome) -> list[str]:
    found = browser.find_elements(By.CSS_SELECTOR, "main > section")
    return [section.get_attribute("id") or "" for section in found]


def draw(browser: webdriver.Chrome, part: str) -> None:
    """Scroll through a part until all its figures are drawn, then to its top."""
    for figure in browser.find_elements(By.CSS_SELECTOR, f"#{part} .plot"):
        if figure.is_displayed():
            browser.execute_script("arguments[0].scrollIntoView({behavior: 'instant'})", figure)
            until = time.monotonic() + 20
            while not figure.get_attribute("data-drawn") and time.monotonic() < until:
                time.sleep(0.1)
    browser.execute_script("window.scrollTo({top: 0, behavior: 'instant'})")
    time.sleep(0.3)


def take(browser: webdriver.Chrome, part: str, width: int, tallest: int) -> Image.Image:
    box = browser.execute_script(
        "const r = document.getElementById(arguments[0]).getBoundingClientRect();"
        "return [r.top + scrollY, r.height]",
        part,
    )
    above = 20  # the heading begins on the edge of its part
    size = {"width": width, "height": min(box[1], tallest) + above}
    clip = {"x": 0, "y": box[0] - above, "scale": 1, **size}
    shot = browser.execute_cdp_cmd(
        "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}
    )
    return Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("page", type=Path)
    parser.add_argument("--name", required=True, help="what the files begin with")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "report")
    parser.add_argument("--parts", nargs="*", help="only these")
    parser.add_argument("--all", action="store_true", help="every part, width and theme")
    asked = parser.parse_args()
    asked.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile:
        browser = start(Path(profile))
        try:
            browser.get(asked.page.resolve().as_uri())
            every = [(p, w, d) for w in (1600, 375) for d in (False, True) for p in parts(browser)]
            for part, width, dark in every if asked.all else SHOTS:
                if asked.parts and part not in asked.parts:
                    continue
                resize(browser, width, dark=dark)
                browser.get(asked.page.resolve().as_uri())
                draw(browser, part)
                image = take(browser, part, width, 6000 if asked.all else TALLEST)
                small = "-small" if width < 500 else ""
                path = asked.output / f"{asked.name}-{part}{small}{'-dark' if dark else ''}.png"
                image.quantize(COLOURS).save(path, optimize=True)
                print(f"{path}: {path.stat().st_size // 1024} KiB")
        finally:
            browser.quit()


if __name__ == "__main__":
    main()
