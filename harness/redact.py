"""Passwords stay out of everything that is written down."""

from __future__ import annotations

import re

HIDDEN = "***"

# scheme://user:PASSWORD@host, and the form that PostgreSQL also takes: ?password=PASSWORD
_PASSWORD = re.compile(r"(://[^:/@\s]*:|[?&]password=)[^@&\s]+(?=@|&|\s|$)")


def redact(text: str) -> str:
    """The same text with the passwords of its URLs hidden."""
    return _PASSWORD.sub(rf"\g<1>{HIDDEN}", text)
