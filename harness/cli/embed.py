"""`harness embed`: embeddings of a table's test images, or of anybody's, for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.display import say
from harness.cli.kept import find_row
from harness.cli.options import Given, check_output, progress, takes_config
from harness.errors import HarnessError

TAKEN_WITH_MODEL = ("device",)  # config keys


@takes_config("embed")
def embed(
    given: Given,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File to write: FILE.npz, or FILE.parquet.")
    ],
    method: Annotated[
        str | None, typer.Argument(metavar="[METHOD]", help="Row of the table.")
    ] = None,
    reproduction: Annotated[
        int | None,
        typer.Option(min=1, help="Number of the reproduction whose models to use. Default: 1."),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Exported model to use, instead of METHOD."),
    ] = None,
    images: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of images, with --model.")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="Images that pass the model at once, with --model. Default: 64."),
    ] = None,
) -> None:
    """Write the embeddings of all test images, or of a folder of images, to a file.

    With METHOD: opens the test classes, which is noted in the ledger, and needs the models that
    eval left in --runs-dir. The file has these arrays: concatenated (images, size), separated
    (models, images, size), labels, class_names, files, and queries if the data set separates
    queries from gallery.

    With --model and --images: needs nothing but the two folders. The file has these arrays, or
    columns: embeddings (images, size), files, labels and class_names, the folder of each image.

    $ harness embed proxyanchor --dataset glyphs --output proxyanchor.npz

    $ harness embed --model proxyanchor-glyphs --images photos --output photos.parquet
    """
    if (method is None) == (model is None):
        raise HarnessError("give METHOD or --model DIR, one of the two")
    if model is not None:
        if images is None:
            raise HarnessError("--model needs --images FOLDER, the images to embed")
        _check_without_table(given, reproduction)
        check_output(output, ".npz", ".parquet")
        _embed_folder(given, model, images, output, batch_size)
        return
    if images is not None or batch_size is not None:
        raise HarnessError("--images and --batch-size go with --model DIR, not with METHOD")
    check_output(output, ".npz")
    number = reproduction or 1
    record, kept = find_row(given, method or "", number)
    from harness.evaluation.export import write_embeddings

    count, size = write_embeddings(kept, output)
    label = record.identity["method"]
    say(f"{output}: {count} images, {size} dimensions, {label}, reproduction {number}")


def _check_without_table(given: Given, reproduction: int | None) -> None:
    """Refuse flags that choose a table, which --model does without."""
    flags = [name for name in given.values if name not in TAKEN_WITH_MODEL]
    flags += ["reproduction"] if reproduction is not None else []
    if flags:
        raise HarnessError(f"--{flags[0].replace('_', '-')} goes with METHOD, not with --model DIR")


def _embed_folder(
    given: Given, model: Path, images: Path, output: Path, batch_size: int | None
) -> None:
    from harness.exported.embeddings import check_format, write_embeddings
    from harness.exported.model import BATCH, list_files_of, load
    from harness.system.progress import Prepared

    check_format(output)
    loaded, files = load(model, given.config.device), list_files_of(images)
    with progress(verbose=False) as listener:
        found = loaded.embed(
            files,
            batch_size or BATCH,
            lambda done, total: listener(
                Prepared(dataset=images.name, action="embedding", done=done, total=total)
            ),
        )
    write_embeddings(found, files, images, output)
    label = loaded.description.method
    say(f"{output}: {len(files)} images, {loaded.size} dimensions, {label} of {model}")
