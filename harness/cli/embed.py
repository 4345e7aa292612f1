"""`harness embed`: the test embeddings of a table's models, for people's own tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.display import say
from harness.cli.kept import find_row
from harness.cli.options import Given, check_output, find_file, takes_config


@takes_config("embed")
def embed(
    given: Given,
    method: Annotated[str, typer.Argument(metavar="METHOD", help="Row of the table.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write, FILE.npz.")],
    reproduction: Annotated[
        int, typer.Option(min=1, help="Number of the reproduction whose models to use.")
    ] = 1,
) -> None:
    """Write the embeddings of all test images, with labels and file names.

    Opens the test classes, which is noted in the ledger, and needs the models that eval left in
    --runs-dir. The file has these arrays: concatenated (images, size), separated (models, images,
    size), labels, class_names, files, and queries if the data set separates queries from gallery.

    $ harness embed proxyanchor --dataset glyphs --output proxyanchor.npz
    """
    check_output(output, ".npz")
    record, kept = find_row(given, find_file(method), reproduction)
    from harness.evaluation.export import write_embeddings

    images, size = write_embeddings(kept, output)
    name = record.identity["method"]
    say(f"{output}: {images} images, {size} dimensions, {name}, reproduction {reproduction}")
