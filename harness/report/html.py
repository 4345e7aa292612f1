"""What all pages share: templates, style, and a policy that lets nothing in from outside."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined


def environment() -> Environment:
    """For the templates of the pages; what a template names must exist."""
    return Environment(
        loader=PackageLoader("harness.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def asset(name: str) -> str:
    """The content of a file beside the templates."""
    return (files("harness.report") / "templates" / name).read_text(encoding="utf-8")


def squeezed(text: str) -> str:
    """Without blank lines, which are a tenth of what a template makes."""
    return re.sub(r"\n\s*\n+", "\n", text)


def policy(scripts: Sequence[str]) -> str:
    """Nothing from outside, and no script but ours, each known by its hash."""
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    allowed = {
        "default-src": "'none'",
        "script-src": " ".join(f"'sha256-{value}'" for value in hashes) or "'none'",
        "style-src": "'unsafe-inline'",  # Plotly sets styles of its elements
        "img-src": "data: blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in allowed.items())
