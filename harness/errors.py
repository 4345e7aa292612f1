"""Errors that a user can fix: the command line prints their message and exits with 2.

This module is below all others, and imports nothing of them.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

MOST_SHOWN = 100  # known names listed in a message


class HarnessError(Exception):
    """Says what is wrong, what would be right, and what to do next."""


class MachineError(HarnessError):
    """No fault of a method: of a disk, of memory, of a device, of a missing or damaged file."""


class OutOfMemory(MachineError):
    """Memory was short, of the device or of the machine; it may be there the next time."""


class DeviceLost(MachineError):
    """This process can do no more on its device; a new process may."""


class EnvironmentFault(MachineError):
    """The machine was tested and failed the test; nothing can go on before it is repaired."""


class UnknownName(HarnessError, ValueError):
    """A name that does not exist; the message suggests similar ones. Made by `unknown`."""


@contextmanager
def convert_value_errors(what: str = "") -> Iterator[None]:
    """Turn a ValueError of a loss, protocol, data set or trunk into a HarnessError.

    Args:
        what: the message begins with this. Default: the message of the ValueError alone.
    """
    try:
        yield
    except ValueError as error:
        message = f"{what}: {error}" if what else str(error)
        kind = UnknownName if isinstance(error, UnknownName) else HarnessError
        raise kind(message) from None


def unknown(
    category: str,
    name: str,
    known: Iterable[str],
    advice: str = "",
    aliases: Mapping[str, str] | None = None,
) -> UnknownName:
    """Return the error for a name that does not exist, with the most similar known names.

    Args:
        category: what the name should have named, such as "protocol field".
        advice: last line of the message.
        aliases: other names -> the known names that they mean.
    """
    names = sorted(known)
    many = len(names) > MOST_SHOWN
    meant = {other.lower(): other for other in (*(aliases or {}), *names)}  # typed in any case
    close = get_close_matches(name.lower(), meant, n=3 if many else 1, cutoff=0.5)
    near = [meant[one] for one in close]
    suggestion = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    listed = f"{len(names)} of them" if many else ", ".join(names) or "none"
    lines = [f"no {category} named '{name}'.{suggestion}", f"  known: {listed}"]
    return UnknownName("\n".join([*lines, *([f"  {advice}"] if advice else [])]))


def spell_code_error(error: BaseException) -> str:
    """What other people's code raised, with the file and line where it did."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(at.filename).name}, line {at.lineno})"
