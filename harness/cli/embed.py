"""`harness embed`: the test embeddings of a table's models, for people's own tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.display import say
from harness.cli.options import Given, check_output, rows_named, takes_config
from harness.config import keys
from harness.errors import HarnessError, unknown
from harness.loss_file import is_file


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
    from harness.records.rows import label_of, read_rows

    folder = given.table
    rows = {label_of(row): row for row in read_rows(folder, [])}
    (name,) = rows_named([method], rows)
    if name not in rows:
        raise unknown("method", method, rows, f"these have records in {folder}")
    records = {record.repetition: record for record in rows[name]}
    if reproduction not in records:
        raise HarnessError(
            f"{name} has no reproduction {reproduction} in {folder}; it has "
            f"{', '.join(map(str, sorted(records)))}"
        )
    from harness.evaluation.export import write_embeddings
    from harness.evaluation.kept_models import find_kept

    # The record says which search made the models; the other keys say where they are.
    where = {k: value for k, value in given.values.items() if not keys()[k].picks_searches}
    kept = find_kept(records[reproduction], where, [method] if is_file(method) else [])
    images, size = write_embeddings(kept, output)
    say(f"{output}: {images} images, {size} dimensions, {name}, reproduction {reproduction}")
