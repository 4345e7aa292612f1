"""What errors of devices and of memory look like, without the libraries that raise them."""

from __future__ import annotations

import errno
import re

# What torch, NVIDIA's libraries, faiss and the system say where memory is short, on the card or on
# the host. cuBLAS and cuDNN take theirs on first use, and say that they could not be started.
_OUT_OF_MEMORY = re.compile(
    r"out of (shared )?memory|not enough memory|(can't|cannot|unable to) allocate|bad_alloc"
    r"|cu\w+_(alloc_failed|not_initialized|insufficient_resources)|when calling `cu\w+create"
    r"|cudnn_status_internal_error|unable to find an engine|find a valid cudnn algorithm"
    r"|killed by signal: (killed|bus error)",  # a process that loads images
    re.IGNORECASE,
)

# What a process says whose CUDA context is lost: nothing that it asks of the card later works.
_BROKEN_DEVICE = re.compile(
    r"illegal (memory access|instruction|address)|misaligned address|invalid program counter"
    r"|not supported on global/shared address space|device-side assert triggered"
    r"|launch (failure|failed|timed out)|hardware stack error|context is destroyed"
    r"|uncorrectable (ecc|nvlink) error|invalid access of peer gpu memory"
    r"|(cuda|hip)( driver)? error: (unknown error|no \w+-capable device|driver shutting down)"
    r"|gpu is lost|fallen off the bus|busy or unavailable|mps (server|client)"
    r"|cu\w+_status_(execution_failed|mapping_error)",
    re.IGNORECASE,
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory was short, of the card or of the host: it may be there the next time."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    return _says(error, _OUT_OF_MEMORY) and not is_broken_device(error)


def is_broken_device(error: BaseException) -> bool:
    """Whether this process can do no more on its card; a new process may."""
    return _says(error, _BROKEN_DEVICE)


def _says(error: BaseException, pattern: re.Pattern[str]) -> bool:
    # What the machine has to say it says as a RuntimeError; a ValueError is about values.
    return isinstance(error, RuntimeError | OSError) and bool(pattern.search(str(error)))
