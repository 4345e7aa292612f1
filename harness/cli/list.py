"""`harness list`: what there is to choose from."""

from __future__ import annotations

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
) -> None:
    """List losses with paper and search space, data sets, protocols, trunks and figures.

    $ harness list losses --dataset glyphs
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
        imported = imported_datasets() if singular == "dataset" else []
        more = {dataset.name: dataset for dataset in imported}
        for name, item in {**registry.items(singular), **more}.items():
            if singular == "loss":
                _print_method(item, given.config.dataset)
            else:
                say(f"  {name:<20} {item.summary}")
    if section in (FIGURES, "all"):
        _print_figures()


def _print_figures() -> None:
    from harness.sweeping.paper_figures import load_figures

    say(f"{FIGURES}: of papers, for harness sweep --figure NAME")
    for name, figure in load_figures().items():
        about = f"{figure.summary} ({figure.source})"
        say(f"  {name:<24} {about}; {figure.dataset}, {figure.protocol}")


def _print_method(method: Method, dataset: str) -> None:
    from harness.searching.samplers import spell_space

    names = " ".join([method.name, *(f"({alias})" for alias in method.aliases)])
    space = method.space(dataset, 75)
    lines = [method.paper, f"searches {len(space)}: {spell_space(space)}"]
    if method.base is not None:
        head = ", but with another head: its base is no point of its space"
        lines.append(f"base: {method.base.name}{head if method.base.replaces_head else ''}")
    if method.spaces:
        lines.append(f"other spaces: {', '.join(f'--space {name}' for name in method.spaces)}")
    lines.append(f"presets: {', '.join(_spell_preset(method, name) for name in method.presets)}")
    for title, line in zip([names, *[""] * len(lines)], lines, strict=False):
        say(f"  {title:<14} {line}")


def _spell_preset(method: Method, name: str) -> str:
    tuned = [data for data, preset in method.presets[name].items() if preset.tuned_by_us]
    return f"{name} (found by us for {', '.join(tuned)})" if tuned else name
