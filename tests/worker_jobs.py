"""What workers do in tests, in a module that a new process imports quickly."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from harness.errors import DeviceLost, HarnessError
from harness.system.progress import Listener, Prepared, Waiting


def _seen(device: str) -> str:
    return f"{device} of {os.environ.get('CUDA_VISIBLE_DEVICES', 'all')}"


def tell_threads(job: Any, device: str, listener: Listener) -> None:
    threads = torch.get_num_threads()
    listener(
        Prepared(method=_seen(device), dataset=job, action="asking", done=threads, total=threads)
    )


def start_a_process(job: Any, device: str, listener: Listener) -> None:
    tell_threads(job, device, listener)
    loader = torch.utils.data.DataLoader(range(3), num_workers=1)
    loaded = sum(int(number) for number in loader)
    listener(Prepared(method=_seen(device), dataset=job, action="loading", done=loaded, total=3))


def die(job: Any, device: str, listener: Listener) -> None:
    os._exit(3)


def complain(job: Any, device: str, listener: Listener) -> None:
    raise HarnessError("what the user can mend")


def lose_the_device(job: tuple[str, int], device: str, listener: Listener) -> None:
    """The first so many processes do, each leaving a file; later ones do their work."""
    folder, count = job
    for number in range(count):
        with suppress(FileExistsError):
            Path(folder, str(number)).touch(exist_ok=False)
            raise DeviceLost("the device failed: gone")
    listener(Prepared(method="at last", dataset="", action="asking", done=1, total=1))


def complain_if_first(first: str, device: str, listener: Listener) -> None:
    try:
        Path(first).touch(exist_ok=False)
    except FileExistsError:
        listener(Waiting(method="the other one"))
        return
    raise HarnessError("no connection is free")
