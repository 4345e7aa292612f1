"""The graphics cards of this machine: whether the installed torch can use them, and what they are.

Nothing here opens a context, which would hold memory of a card: that is for who trains.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import torch

VISIBLE = "CUDA_VISIBLE_DEVICES"
DEVICES = Path("/dev")  # where a card that may be used has a file
DRIVER = Path("/proc/driver/nvidia/version")
MPS_PIPE = "CUDA_MPS_PIPE_DIRECTORY"
BUILDS = "https://pytorch.org/get-started"


def trouble() -> str | None:
    """Why torch cannot use the cards that are here, and what to install; None if it can."""
    if are_hidden():
        return None
    if torch.cuda.is_available():
        return next((text for i in range(torch.cuda.device_count()) if (text := _lacks(i))), None)
    if any(DEVICES.glob("nvidia[0-9]*")):
        return _unused_nvidia()
    if (DEVICES / "kfd").exists() and torch.version.hip is None:
        return f"torch {torch.__version__} was built without ROCm; install one with it ({BUILDS})"
    return None


def are_hidden() -> bool:
    """Whether the user told every program to leave the cards alone."""
    return os.environ.get(VISIBLE, "0").strip() in ("", "-1")


def _unused_nvidia() -> str:
    torch_is = f"torch {torch.__version__}"
    if torch.version.cuda is None:
        return f"{torch_is} was built without CUDA; install one with it ({BUILDS})"
    said = ""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        said = str(error).strip().partition(". ")[0].splitlines()[0]
    return (
        f"{torch_is} was built for CUDA {torch.version.cuda}, and the driver here is "
        f"{driver_version() or 'unknown'}: {said or 'it sees no card'}\n"
        f"  install a newer driver, or a torch for the CUDA of this one ({BUILDS})"
    )


def _lacks(card: int) -> str | None:
    """What is missing if the installed torch has no kernels for a card."""
    major, minor = torch.cuda.get_device_capability(card)
    built = torch.cuda.get_arch_list()
    if torch.version.hip or not built or any(_runs_on(one, major, minor) for one in built):
        return None
    return (
        f"{torch.cuda.get_device_name(card)} (sm_{major}{minor}) has no kernels in torch "
        f"{torch.__version__}, which was built for {', '.join(built)}\n"
        f"  install a torch that was built for it ({BUILDS}), or leave it out: {VISIBLE}=NUMBERS"
    )


def _runs_on(built: str, major: int, minor: int) -> bool:
    """Whether code for one architecture runs on a card: a binary, or text to be compiled there."""
    form, number = built.split("_")
    digits = re.sub(r"\D", "", number)
    their_major, their_minor = int(digits[:-1]), int(digits[-1])
    if form == "compute":
        return (their_major, their_minor) <= (major, minor)
    return their_major == major and their_minor <= minor


def visible_cards() -> list[str]:
    """What CUDA_VISIBLE_DEVICES calls the cards that this process sees, in its order."""
    named = [name for name in os.environ.get(VISIBLE, "").split(",") if name.strip()]
    return named or [str(number) for number in range(torch.cuda.device_count())]


def free_memory() -> int | None:
    """Bytes that are free on the fullest of the visible cards, where nvidia-smi can tell."""
    free = _asked("memory.free")
    return min(int(value) for value in free) * 2**20 if free else None


def driver_version() -> str | None:
    found = _asked("driver_version")
    if found:
        return found[0]
    if not DRIVER.exists():
        return None
    numbers = re.search(r"\d+\.\d+(\.\d+)?", DRIVER.read_text())
    return numbers[0] if numbers else None


def _asked(what: str) -> list[str]:
    """A column of nvidia-smi, a line per visible card."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    which = ["--id", ",".join(visible_cards())] if visible_cards() else []
    command = [program, f"--query-gpu={what}", "--format=csv,noheader,nounits", *which]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def mps_runs() -> bool:
    """Whether NVIDIA's Multi-Process Service runs, by which processes share a card at once."""
    folder = os.environ.get(MPS_PIPE, "/tmp/nvidia-mps")
    return (Path(folder) / "control").exists()


def describe(device: torch.device) -> dict[str, str]:
    """What a record says of the card and of what drives it; nothing for a CPU."""
    if device.type != "cuda":
        return {}
    facts = {
        "gpu": torch.cuda.get_device_name(device),
        "capability": ".".join(map(str, torch.cuda.get_device_capability(device))),
        "cuda": torch.version.cuda or "",
        "hip": torch.version.hip or "",
        "cudnn": str(torch.backends.cudnn.version() or ""),
        "driver": driver_version() or "",
    }
    return {name: value for name, value in facts.items() if value}
