"""Passwords stay out of everything that is written down.

A URL of a database is read as SQLAlchemy reads it, who will connect by it: what it takes for a
password is hidden, whatever characters it holds.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

if TYPE_CHECKING:
    from sqlalchemy import URL

HIDDEN = "***"

_SCHEME = re.compile(r"[A-Za-z][\w+.-]*://")

# Parameters of drivers, behind the question mark: password, passwd, sslpassword, pwd, ...
_SECRET = re.compile(r"pass(?!file)|pwd|secret|token", re.IGNORECASE)


def redact(text: str) -> str:
    """A setting or an argument, without the password of the URL that it ends with, if it does."""
    found = _SCHEME.search(text)
    if found is None:
        return text
    return text[: found.start()] + _redacted(text[found.start() :], found[0])


def lacks_password(url: str) -> bool:
    """Whether a URL was written down here, without its password."""
    parsed = _parsed(url)
    if parsed is None:
        return url.endswith(f"://{HIDDEN}")
    return HIDDEN in (parsed.password, parsed.host, *_secrets_in_query(parsed))


def without_secrets(text: str, url: str) -> str:
    """What somebody said of a database, without the password of its URL."""
    parsed = _parsed(url)
    if parsed is None:
        return text.replace(url, redact(url))
    for secret in filter(None, (parsed.password, *_secrets_in_query(parsed))):
        for form in {str(secret), quote(str(secret)), quote_plus(str(secret)), repr(secret)[1:-1]}:
            # A short one may be a part of any word.
            around = "" if len(form) > 5 else r"\b" if form.isalnum() else ""
            text = re.sub(around + re.escape(form) + around, HIDDEN, text)
    return redact_all(text)


def redact_all(text: str) -> str:
    """A longer text, each of whose words may be a URL."""
    return "".join(redact(part) for part in re.split(r"(\s+)", text))


def _parsed(url: str) -> URL | None:
    # Not for everybody who only asks for help: it takes a fifth of a second.
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return None
    # A password that holds an @, or a user with a slash, would reach into what follows them.
    return None if "@" in f"{parsed.host}{parsed.database}" else parsed


def _redacted(url: str, scheme: str) -> str:
    parsed = _parsed(url)
    if parsed is None:
        return f"{scheme}{HIDDEN}" if "@" in url or _SECRET.search(url) else url
    if not parsed.password and not _secrets_in_query(parsed):
        return url
    query: dict[str, Any] = {
        name: HIDDEN if _SECRET.search(name) else value for name, value in parsed.query.items()
    }
    shown = parsed.set(query=query).render_as_string(hide_password=True)
    return shown.replace(quote(HIDDEN), HIDDEN)


def _secrets_in_query(parsed: URL) -> list[str]:
    found = [value for name, value in parsed.query.items() if _SECRET.search(name)]
    return [one for value in found for one in ([value] if isinstance(value, str) else value)]
