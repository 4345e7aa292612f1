"""Tests of the machine before a failed run is charged to its method.

A method is to blame only if the data it read are intact, disk and memory have room, and a training
that is known to work does work here.
"""

from __future__ import annotations

import logging
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from harness.errors import DeviceLost, EnvironmentFault, HarnessError, OutOfMemory
from harness.system.files import check_writable
from harness.system.memory import available_memory
from harness.system.process_state import IN_PROCESS
from harness.system.trouble import first_line
from harness.training.unit import Unit

logger = logging.getLogger(__name__)

LEAST_MEMORY = 256_000_000  # bytes; torch alone needs as many
LONGEST_TRAINING = 600  # seconds; 6 on an idle machine
PAUSE = 600  # seconds between two known-good trainings of one worker


class KnownGoodTraining:
    """Trains in a fresh process: once for each cause of failure, and at most every ten minutes."""

    def __init__(self) -> None:
        self._causes: set[str] = set()
        self._last = -math.inf

    def check(self, device: str, cause: str) -> None:
        """Raise EnvironmentFault if the training fails.

        Args:
            cause: why a trial failed. Numbers in it do not make another cause.
        """
        kind = re.sub(r"\d+", "#", cause)
        if kind in self._causes or time.monotonic() - self._last < PAUSE:
            return
        problem = train_in_fresh_process(device)
        self._causes.add(kind)
        self._last = time.monotonic()
        if problem:
            raise EnvironmentFault(
                f"a short training that is known to work fails on {device} as well: {problem}\n"
                "  check the device, its driver, and the memory and temporary folder of the machine"
            )


known_good = KnownGoodTraining()  # of this worker


def train_in_fresh_process(device: str) -> str:
    """What went wrong; empty if the training reached a plausible score."""
    logger.info("testing the machine with a short training that is known to work")
    search_path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    try:
        ended = subprocess.run(
            [sys.executable, "-P", "-m", "harness.training.known_good", device],
            env={**os.environ, "PYTHONPATH": search_path, IN_PROCESS: "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONGEST_TRAINING,
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {LONGEST_TRAINING // 60} minutes"
    except OSError as error:
        return f"no process can be started: {error.strerror}"
    if ended.returncode:
        said = ended.stderr.strip().splitlines()
        return said[-1] if said else f"exit code {ended.returncode}"
    return ""


def find_fault(unit: Unit, failure: BaseException) -> EnvironmentFault | None:
    """Test the machine after a run failed.

    Args:
        unit: the run.
        failure: what it failed with.

    Returns:
        What has to be repaired, or None if the machine passes all tests.
    """
    if isinstance(failure, DeviceLost | EnvironmentFault):
        return None  # which say what is wrong themselves
    experiment = unit.experiment
    try:
        unit.trainval.check_stored()
        _check_disk(experiment.runs)
        _check_memory()
        # Memory of a card may be short because other workers of this search train on it.
        if unit.of_search and not isinstance(failure, OutOfMemory):
            known_good.check(str(experiment.device), str(failure))
    except EnvironmentFault as fault:
        return EnvironmentFault(
            f"{fault}\n  {experiment.method.name} is not charged with its failure here: "
            f"{first_line(failure)}"
        )
    return None


def _check_disk(folder: Path) -> None:
    try:
        check_writable(folder)
    except HarnessError as error:
        raise EnvironmentFault(f"{error}\n  make room, then repeat the command to go on") from None


def _check_memory() -> None:
    free = available_memory()
    if free is not None and free < LEAST_MEMORY:
        raise EnvironmentFault(
            f"only {free / 1e6:.0f} MB of memory are free; at least {LEAST_MEMORY / 1e6:.0f} MB "
            "are needed\n  end other programs, or give fewer --workers, then repeat the command"
        )
