"""What the workers of a study share, wherever it is kept."""

from __future__ import annotations

import os
import re
import secrets
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

from optuna.storages import BaseStorage

Result = TypeVar("Result")

WANTED = "wanted"  # fact of a study: number of trials to end up with


class Storage(ABC):
    """What the workers of a study share.

    Attributes:
        optuna: keeps the trials.
        place: name for people.
        lost: whether trials were found to be missing when it was opened.
    """

    optuna: BaseStorage
    place: str
    lost: bool = False

    @abstractmethod
    def exclusive(self) -> AbstractContextManager[None]:
        """One worker of the study at a time, on whatever machine; ends when its holder dies."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A block whose changes are kept all together, where the storage can do that."""
        yield

    @abstractmethod
    def joined(self) -> AbstractContextManager[str]:
        """Be a worker: a name, alive until the block or the process ends."""

    @abstractmethod
    def living(self, workers: Collection[str]) -> set[str]:
        """Those of these workers that still work."""

    def alive(self, worker: str) -> bool:
        """Whether the worker of that name still works."""
        return worker in self.living([worker])

    def is_beside(self, worker: str) -> bool:
        """Whether the worker of that name works in the same folder, on whatever machine."""
        return True

    def insist(self, action: Callable[[], Result]) -> Result:
        """Do something that may be done twice, however often it takes."""
        return action()

    @contextmanager
    def naming_trouble(self) -> Iterator[None]:
        """Say in words what became of the storage, for who does not wait until it is back."""
        yield


def worker_name() -> str:
    """Of a process, and no other one, on whatever machine."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def worker_place(name: str) -> str:
    """The host and the process of a worker, for people."""
    found = re.match(r"(.+)-(\d+)-[0-9a-f]+", name)
    return f"{found[1]}, process {found[2]}" if found else name or "unknown worker"
