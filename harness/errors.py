"""The error that is the user's to mend: the command line prints it and exits with 2."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches

MOST_SHOWN = 100  # known names listed in a message


class HarnessError(Exception):
    """Says what is wrong, what would be right, and what to do next."""


class MachineError(HarnessError):
    """No fault of a method: of a disk, of memory, of a device, of a missing or damaged file."""


class OutOfMemory(MachineError):
    """Memory was short, of the device or of the machine; it may be there the next time."""


class DeviceLost(MachineError):
    """This process can do no more on its device; a new process may."""


@contextmanager
def refusing(what: str = "") -> Iterator[None]:
    """Turn the ValueError of who refuses a value into the error that the user is shown.

    Losses, protocols, data sets and trunks know nothing of HarnessError. For a name that they do
    not know they raise ValueError(category, name, known names), which is worded here.

    Args:
        what: is refused, to be said first.
    """
    try:
        yield
    except ValueError as error:
        worded = str(unknown(*error.args)) if len(error.args) == 3 else str(error)
        raise HarnessError(f"{what}: {worded}" if what else worded) from None


def unknown(
    category: str,
    name: str,
    known: Iterable[str],
    advice: str = "",
    aliases: Mapping[str, str] | None = None,
) -> HarnessError:
    """The error for a name that is not there, with the nearest ones that are.

    Args:
        aliases: other names -> the known ones that they stand for.
    """
    names = sorted(known)
    many = len(names) > MOST_SHOWN
    meant = {other.lower(): other for other in (*(aliases or {}), *names)}  # typed in any case
    close = get_close_matches(name.lower(), meant, n=3 if many else 1, cutoff=0.5)
    near = [meant[one] for one in close]
    suggestion = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    listed = f"{len(names)} of them" if many else ", ".join(names)
    lines = [f"no {category} named '{name}'.{suggestion}", f"  known: {listed}"]
    return HarnessError("\n".join([*lines, *([f"  {advice}"] if advice else [])]))
