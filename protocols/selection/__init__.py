"""Selection schemes: how a search scores its trials. A scheme is one file with a SCHEME."""

from __future__ import annotations

import importlib
import pkgutil

from harness.protocols.selection.partition import Scheme

SCHEMES: dict[str, Scheme] = {
    info.name: module.SCHEME
    for info in pkgutil.iter_modules(__path__)
    if hasattr(module := importlib.import_module(f"{__name__}.{info.name}"), "SCHEME")
}
