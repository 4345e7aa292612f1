"""`harness query`: the nearest neighbours of anybody's images, by an exported model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.display import say
from harness.cli.options import Given, check_output, progress, takes_config


@takes_config("query")
def query(
    given: Given,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Images to look for.")],
    model: Annotated[Path, typer.Option(metavar="DIR", help="Exported model to use.")],
    gallery: Annotated[Path, typer.Option(metavar="FOLDER", help="Images to search.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Page to write. Default: neighbours.html.")
    ] = Path("neighbours.html"),
    neighbours: Annotated[
        int, typer.Option(min=1, max=100, help="Neighbours of each image. Default: 8.")
    ] = 8,
    pixels: Annotated[
        int, typer.Option(min=16, max=512, help="Longer side of the images shown. Default: 96.")
    ] = 96,
) -> None:
    """Show the images of a folder that are most similar to some images, as a page.

    Needs an exported model and no data set. The page is one file that contains the images shown.

    $ harness query --model proxyanchor-cub --gallery photos photos/a.jpg
    """
    check_output(output, ".html")
    from harness.errors import HarnessError
    from harness.exported.model import load
    from harness.report.neighbours import find_neighbours, render_neighbours
    from harness.system.files import write_text
    from harness.system.progress import Prepared

    loaded = load(model, given.config.device)
    with progress(verbose=False) as listener:
        answers, count = find_neighbours(
            loaded,
            images,
            gallery,
            neighbours,
            pixels,
            lambda done, total: listener(
                Prepared(dataset=gallery.name, action="embedding", done=done, total=total)
            ),
        )
    try:
        write_text(output, render_neighbours(loaded, answers, gallery, count, pixels))
    except OSError as error:
        raise HarnessError(f"cannot write {output}: {error.strerror}") from None
    for answer in answers:
        nearest = answer.neighbours[0]
        say(f"{answer.file}: nearest is {nearest.file}, distance {nearest.distance:.3f}")
    say(f"{output}: {len(answers)} queries among {count} images; open it in a browser")
