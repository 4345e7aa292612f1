"""The error that is the user's to mend: the command line prints it and exits with 2."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class HarnessError(Exception):
    """Says what is wrong, what would be right, and what to do next."""


@contextmanager
def refusing() -> Iterator[None]:
    """Turn the ValueError of who refuses a value into the error that the user is shown."""
    try:
        yield
    except ValueError as error:
        raise HarnessError(str(error)) from None


def unknown(kind: str, name: str, known: Iterable[str], advice: str = "") -> HarnessError:
    """The error for a name that is not there, with the nearest one that is."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    lines = [f"no {kind} named '{name}'." + (f" Did you mean '{near[0]}'?" if near else "")]
    lines.append(f"  known: {', '.join(names)}")
    if advice:
        lines.append(f"  {advice}")
    return HarnessError("\n".join(lines))
