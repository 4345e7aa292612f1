"""`harness list`: what there is to choose from."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from harness.cli import options
from harness.cli.display import short
from harness.errors import unknown


def list_(
    kind: Annotated[
        str, typer.Argument(help="losses, datasets, protocols, trunks or all.")
    ] = "all",
    dataset: options.Dataset = None,
) -> None:
    """What there is: losses with paper and search space, data sets, protocols, trunks.

    $ harness list losses --dataset glyphs
    """
    from harness import registry

    kinds = {"losses": "loss", "datasets": "dataset", "protocols": "protocol", "trunks": "trunk"}
    if kind not in (*kinds, "all"):
        raise unknown("list", kind, [*kinds, "all"])
    for plural, singular in kinds.items():
        if kind not in (plural, "all"):
            continue
        print(f"{plural}:")
        for name, item in registry.items(singular).items():
            if singular == "loss":
                _print_method(item, dataset or "glyphs")
            else:
                print(f"  {name:<20} {item.summary}")


def _print_method(method: Any, dataset: str) -> None:
    names = " ".join([method.name, *(f"({alias})" for alias in method.aliases)])
    print(f"  {names:<14} {method.paper}")
    space = method.space(dataset, 75)
    bounds = ", ".join(f"{name} {_bounds(dist)}" for name, dist in space.items())
    print(f"  {'':<14} space: {bounds or 'none'}")
    print(f"  {'':<14} presets: {', '.join(method.presets)}")


def _bounds(distribution: Any) -> str:
    if hasattr(distribution, "choices"):
        return "{" + ", ".join(map(str, distribution.choices)) + "}"
    log = " log" if distribution.log else ""
    return f"[{short(distribution.low)}, {short(distribution.high)}]{log}"
