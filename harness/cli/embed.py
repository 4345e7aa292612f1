"""`harness embed`: the test embeddings of a table's models, for people's own tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli import options
from harness.cli.display import say
from harness.errors import HarnessError, unknown


def embed(
    method: Annotated[str, typer.Argument(metavar="METHOD", help="A row of a table.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="FILE.npz.")],
    dataset: Annotated[str, typer.Option(help="Whose table.")] = "glyphs",
    protocol: options.Protocol = None,
    trunk: options.Trunk = None,
    reproduction: Annotated[int, typer.Option(min=1, help="Whose models.")] = 1,
    runs_dir: options.RunsDir = None,
    results_dir: options.ResultsDir = None,
    data_root: options.DataRoot = None,
    cache_dir: options.CacheDir = None,
    device: options.Device = None,
) -> None:
    """Write the embeddings of all test images, with labels and file names.

    Opens the test classes, which the ledger counts, and needs the models that eval left in
    --runs-dir. The file has: concatenated (images, size), separated (models, images, size),
    labels, class_names, files; and queries, where some images search the others.

    $ harness embed proxyanchor --dataset glyphs --output proxyanchor.npz
    """
    options.check_output(output, ".npz")
    flags = {name: value for name, value in locals().items() if name not in ("dataset", "protocol")}
    values = options.read_values(None, None, {**flags, "trunk": None})
    from harness.judgement.compare import find_table
    from harness.records.rows import label_of, read_rows

    folder = find_table(Path(results_dir or "results"), protocol or "mlrc", dataset, trunk)
    rows = {label_of(row): row for row in read_rows(folder, [])}
    (name,) = options.rows_named([method], rows)
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

    images, size = write_embeddings(find_kept(records[reproduction], values), output)
    say(f"{output}: {images} images, {size} dimensions, {name}, reproduction {reproduction}")
