"""How a check fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def expect(holds: bool, otherwise: str) -> None:
    """Raise AssertionError with a message unless something holds, whatever Python is run with."""
    if not holds:
        raise AssertionError(otherwise)


@contextmanager
def expect_no_error(doing: str) -> Iterator[None]:
    """Turn any exception into an AssertionError that says during what it came."""
    try:
        yield
    except Exception as error:
        raise AssertionError(f"{doing}: {type(error).__name__}: {error}") from error
