"""Whose fault an error is: the machine's, which may be over the next time, or a method's own."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from filelock import Timeout

from harness.errors import DeviceLost, EnvironmentFault, MachineError, OutOfMemory
from harness.system.device_errors import is_broken_device, is_out_of_memory
from harness.system.files import is_disk_trouble, spell_os_error

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

# How torch tells of a process that loads images, and of memory or files that it shares with it.
_OF_A_LOADER = re.compile(
    r"DataLoader worker .*(exited unexpectedly|is killed by signal)"
    r"|unable to (open|write|resize|mmap|map|stat)|too many open files|items of ancdata",
    re.IGNORECASE,
)


def trouble_in(error: BaseException) -> MachineError | None:
    """The error in words, if it is the machine's; None if it is a method's own."""
    if isinstance(error, MachineError):
        return error
    if isinstance(error, Timeout):  # of a lock, which another worker has
        return None
    if is_broken_device(error):
        return DeviceLost(f"the device failed: {first_line(error)}")
    if is_out_of_memory(error):
        return OutOfMemory(f"out of memory: {first_line(error)}")
    if isinstance(error, OSError):
        return MachineError(spell_os_error(error))
    if isinstance(error, EOFError) or (
        isinstance(error, RuntimeError) and _OF_A_LOADER.search(str(error))
    ):
        return MachineError(f"{type(error).__name__}: {first_line(error)}")
    return None


@contextmanager
def naming_trouble() -> Iterator[None]:
    """Turn trouble of the machine into a MachineError; what meets every run stays as it is."""
    try:
        yield
    except Exception as error:
        trouble = trouble_in(error)
        if trouble is None or trouble is error or is_disk_trouble(error):
            raise
        raise trouble from error


def forgiving(action: Callable[[], Result]) -> Result:
    """Do something that may be done twice: again, if the machine makes trouble the first time."""
    try:
        with naming_trouble():
            return action()
    except (DeviceLost, EnvironmentFault):  # which trying again does not change
        raise
    except MachineError as trouble:
        logger.warning("%s; trying again", trouble)
    with naming_trouble():
        return action()


def first_line(error: BaseException) -> str:
    """What CUDA and torch say behind it is the same every time."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
