"""`harness list`: what there is to choose from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.display import say
from harness.cli.options import Given, takes_config
from harness.errors import unknown

if TYPE_CHECKING:
    from harness.losses.method import Method


FIGURES = "figures"


@takes_config("list")
def list_(
    given: Given,
    section: Annotated[
        str,
        typer.Argument(help="What to list: losses, datasets, protocols, trunks, figures or all."),
    ] = "all",
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also print search spaces and presets.")
    ] = False,
) -> None:
    """List losses, data sets, protocols, trunks and figures of papers.

    $ harness list losses

    $ harness list losses --verbose --dataset cub
    """
    from harness import registry
    from harness.imported_features import imported_datasets

    sections = {"losses": "loss", "datasets": "dataset", "protocols": "protocol", "trunks": "trunk"}
    if section not in (*sections, FIGURES, "all"):
        raise unknown("list", section, [*sections, FIGURES, "all"])
    for plural, singular in sections.items():
        if section not in (plural, "all"):
            continue
        say(f"{plural}:")
        if singular == "loss":
            _print_methods(registry.items(singular).values(), given.config.dataset, verbose)
            continue
        imported = imported_datasets() if singular == "dataset" else []
        more = {dataset.name: dataset for dataset in imported}
        for name, item in {**registry.items(singular), **more}.items():
            say(f"  {name:<20} {item.summary}")
    if section in (FIGURES, "all"):
        _print_figures()


def _print_figures() -> None:
    from harness.sweeping.paper_figures import load_figures

    say(f"{FIGURES} of papers, for harness sweep --figure NAME:")
    for name, figure in load_figures().items():
        about = f"{figure.summary} ({figure.source})"
        say(f"  {name:<24} {about}; {figure.dataset}, {figure.protocol}")


def _print_methods(methods: Iterable[Method], dataset: str, verbose: bool) -> None:
    """The losses of one family after the other, a line each."""
    families: dict[str, list[Method]] = {}
    for method in methods:
        families.setdefault(_family(method), []).append(method)
    for family in sorted(families, key=lambda name: (name not in FAMILIES, name)):
        say(f"  {family}:")
        for method in families[family]:
            names = " ".join([method.name, *(f"({alias})" for alias in method.aliases)])
            about = f"extends {method.base.name}" if method.base is not None else method.paper
            say(f"    {names:<18} {about}")
            if verbose:
                for line in _details(method, dataset):
                    say(f"      {line}")


# Of losses that extend no other; the others are listed by their paper.
FAMILIES = ("Losses on pairs and triplets", "Losses with proxies or class weights")


def _family(method: Method) -> str:
    if method.base is not None:
        return method.paper
    return FAMILIES[method.samples_per_class == 1]


def _details(method: Method, dataset: str) -> Iterator[str]:
    from harness.searching.samplers import spell_space

    space = method.space(dataset, 75)
    yield f"searches {len(space)}: {spell_space(space)}"
    if method.base is not None and method.base.replaces_head:
        yield "replaces the head, so its search does not include its base"
    if method.spaces:
        yield f"other spaces: {', '.join(f'--space {name}' for name in method.spaces)}"
    yield f"presets: {', '.join(_spell_preset(method, name) for name in method.presets)}"


def _spell_preset(method: Method, name: str) -> str:
    tuned = [data for data, preset in method.presets[name].items() if preset.tuned_by_us]
    return f"{name} (found by us for {', '.join(tuned)})" if tuned else name
