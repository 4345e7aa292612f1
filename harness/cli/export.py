"""`harness export`: the models of a row as a folder that can be taken away."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.display import say
from harness.cli.kept import find_row
from harness.cli.options import Given, takes_config
from harness.errors import unknown


@takes_config("export")
def export(
    given: Given,
    method: Annotated[str, typer.Argument(metavar="METHOD", help="Row of the table.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="New folder to write.")
    ],
    format_: Annotated[
        list[str] | None,
        typer.Option(
            "--format", help="Also write the model in this format: onnx, or torch (torch.export)."
        ),
    ] = None,
    reproduction: Annotated[
        int, typer.Option(min=1, help="Number of the reproduction whose models to use.")
    ] = 1,
) -> None:
    """Write the models of a row to a folder with weights, description and README.

    `harness.load`, `harness embed` and `harness query` take the folder, on any machine, without
    the data set. Each file is compared with the original models on training images. Needs the
    models that eval left in --runs-dir.

    $ harness export proxyanchor --dataset glyphs --output proxyanchor-glyphs
    """
    from harness.exported.export import export as write
    from harness.exported.formats import FORMATS

    formats = list(dict.fromkeys(format_ or ()))
    for name in formats:
        if name not in FORMATS:
            raise unknown("format", name, FORMATS)
    record, kept = find_row(given, method, reproduction)
    done = write(kept, record, output, formats)
    said = done.description
    say(
        f"{output}: {said.method}, reproduction {reproduction}, {len(said.models)} models, "
        f"{said.size} dimensions"
    )
    for file, difference in done.differences.items():
        say(
            f"  {file}: largest difference to the original embeddings {difference:.1e} "
            f"on {done.images} training images"
        )
    for note in said.licence:
        say(f"  {note}")
