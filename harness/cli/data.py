"""`harness data`: look after the files of data sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.display import say
from harness.cli.options import Given, progress, takes_config
from harness.errors import HarnessError

if TYPE_CHECKING:
    from harness.data.check import DatasetCheck, Duplicates

FEW = 3  # examples of what is only counted
MANY = 20  # of what somebody may have to mend
COPIES = 5  # images of one group of duplicates

data = typer.Typer(no_args_is_help=True, help="Check or prepare the files of a data set.")


@data.command()
@takes_config("data check")
def check(
    given: Given,
    dataset: Annotated[str, typer.Argument(help="Name of the data set, or folder:PATH.")],
    output: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write all findings to this JSON file.")
    ] = None,
) -> None:
    """Check counts, missing and broken files, unusual formats and duplicates of a data set.

    Opens every image, including the test classes, but trains and scores nothing. Prints a
    checksum.

    Exit code 2 if a file is missing or broken, or if a count differs from the published one.

    $ harness data check cub --data-root ~/data --output cub.json
    """
    from harness.data.check import check as run_check
    from harness.system.files import check_writable, write_json

    if output is not None:
        check_writable(output.parent)
    with progress(verbose=False) as listener:
        report = run_check(dataset, given.config.data_root, listener)
    if output is not None:
        write_json(output, {**asdict(report), "usable": report.usable})
    whole = f"the whole lists: {output or '--output FILE'}"
    _print_report(report)
    say(f"  {whole}")
    if not report.usable:
        raise HarnessError("\n".join(_complaints(report, whole)))
    say("usable")


@data.command()
@takes_config("data prepare")
def prepare(
    given: Given,
    dataset: Annotated[str, typer.Argument(help="Name of the data set, or folder:PATH.")],
    test: Annotated[
        bool, typer.Option("--test", help="Also prepare the test classes, which only eval needs.")
    ] = False,
) -> None:
    """Decode and cache the images in advance; under frozen protocols also the trunk's features.

    $ harness data prepare cub --data-root ~/data
    """
    from harness.data.sources import open_part
    from harness.experiment import build_benchmark

    benchmark = build_benchmark(given.config.updated({"dataset": dataset}))
    if benchmark.protocol.frozen:
        from harness.model.build import check_trunk

        check_trunk(benchmark)
    parts = ["trainval", "test"] if test else ["trainval"]
    with progress(verbose=False) as listener:
        sources = {part: open_part(benchmark, part, listener) for part in parts}
    for part, source in sources.items():
        absent = benchmark.absent(part, len(source.indices))
        without = f", {absent:,} missing or broken" if absent else ""
        say(f"{part}: {len(source.indices):,} images{without}, fingerprint {source.fingerprint}")
    if benchmark.unlisted:
        say(f"published images that are not listed: {benchmark.unlisted:,}")
    say(f"files: {benchmark.cache}")


@data.command("import-features")
def import_features(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="File of numpy.savez with features and labels.")
    ],
    name: Annotated[str, typer.Option(help="Name of the new data set.")],
    computed_by: Annotated[
        str, typer.Option(help="Network that computed the features. Default: features.")
    ] = "features",
) -> None:
    """Bring features that were computed elsewhere as a data set for the frozen protocols.

    The file has the arrays features (images, width) and labels (images,), whole numbers or text;
    and optionally class_names, one for each number from 0, and names (images,). The features are
    checked and kept under --name, so that the file is not needed any more.

    $ harness data import-features dinov2.npz --name mine --computed-by dinov2_vits14
    """
    from harness import registry
    from harness.imported_features import import_features as keep

    listing = keep(file, name, computed_by, registry.names("dataset"))
    features = listing.features
    assert features is not None
    say(
        f"{name}: {len(listing.names):,} features of {features.width:,} dimensions, "
        f"{listing.num_classes:,} classes"
    )
    say(f"  computed by: {features.computed_by}@{features.sha256[:8]}, as tables name it")
    say(f"  sha256: {features.sha256}")
    say(f"  files: {features.file.parent}")
    say(f"next: harness search --loss LOSS --dataset {name} --protocol frozen-pairs")


def _print_report(report: DatasetCheck) -> None:
    say(f"{report.dataset}:")
    for name, count in report.counts.items():
        published = report.expected.get(name)
        verdict = "" if published is None else "as published"
        if name in report.wrong_counts:
            verdict = f"WRONG, published: {published:,}"
        say(f"  {name.replace('_', ' '):<15} {count:>9,}  {verdict}".rstrip())
    (small, least), (large, most) = report.smallest, report.largest
    say(f"  images per class: {least:,} ({small}) to {most:,} ({large})")
    if report.superclasses:
        say(f"  superclasses: {report.superclasses}")
    say(f"  missing files: {_few(report.missing)}")
    say(f"  broken files: {_few([name for name, _ in report.broken])}")
    for mode, names in report.modes.items():
        say(f"  {mode} images: {_few(names)}")
    _print_duplicates("the same file twice", report.same_files)
    _print_duplicates("the same picture twice, perhaps encoded anew", report.same_pictures)
    say(f"  sha256 of names, labels and files: {report.checksum}")


def _print_duplicates(title: str, found: Duplicates) -> None:
    if not found.groups:
        say(f"  {title}: none")
        return
    say(
        f"  {title}: {len(found.groups):,}; across classes: {found.across_classes:,}; "
        f"across training and test: {found.across_split:,}"
    )
    for group in found.groups[:MANY]:
        more = f" = {len(group) - COPIES:,} more" if len(group) > COPIES else ""
        say(f"    {' = '.join(group[:COPIES])}{more}")
    if len(found.groups) > MANY:
        say(f"    and {len(found.groups) - MANY:,} more")


def _few(names: Sequence[str]) -> str:
    """How many, and the first of them."""
    if not names:
        return "none"
    more = ", ..." if len(names) > FEW else ""
    return f"{len(names):,} ({', '.join(names[:FEW])}{more})"


def _complaints(report: DatasetCheck, whole: str) -> list[str]:
    lines = [f"data set '{report.dataset}' is not usable as it is"]
    for name, (found, published) in report.wrong_counts.items():
        lines.append(f"  {name.replace('_', ' ')}: {found:,} instead of {published:,}")
    lines += [f"  missing: {name}" for name in report.missing[:MANY]]
    lines += [f"  broken: {name}: {problem}" for name, problem in report.broken[:MANY]]
    untold = max(len(report.missing) - MANY, 0) + max(len(report.broken) - MANY, 0)
    if untold:
        lines.append(f"  and {untold:,} more files; {whole}")
    lines.append("  get it again where files are missing or broken, then repeat this check")
    return lines
