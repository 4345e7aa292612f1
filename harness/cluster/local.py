"""The tasks of a step on this machine, beside each other, where there is no Slurm."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.cluster.batch import Resources, Step
from harness.cluster.submissions import URL_VARIABLE, Submission, SubmittedStep
from harness.config import RunConfig
from harness.errors import HarnessError
from harness.system.cards import VISIBLE, visible_cards
from harness.system.device import choose_device, device_count
from harness.system.stopping import TERMINATED
from harness.system.workers import worker_count

KILLED = 128  # an exit code from here on is that of a signal


def share_machine(step: Step, config: RunConfig) -> Step:
    """The step with commands that leave each task its share of the GPUs or CPU cores."""
    if device_count(choose_device(config.device)):  # each task sees only its own cards
        more = ["--device", "cuda"]
    elif config.workers:
        return step
    else:
        cores = worker_count(config, threads=1, units=10**6)
        more = ["--workers", str(max(1, cores // step.tasks))]
    return replace(step, commands=[*step.commands[:-1], [*step.commands[-1], *more]])


def share_cards(config: RunConfig, resources: Resources) -> list[list[str]]:
    """The GPUs of this machine that each task takes, dealt evenly; nothing on a CPU."""
    nodes, gpus = resources.nodes, resources.gpus
    device = choose_device(config.device)
    if not device_count(device):
        return [[] for _ in range(nodes)]
    there = visible_cards()
    if device.index is not None:
        there = [there[device.index]]
    if gpus > len(there):
        raise HarnessError(f"--gpus {gpus} is more than the {len(there)} of this machine")
    if gpus:
        turns = [range(i * gpus, (i + 1) * gpus) for i in range(nodes)]
    else:  # all of them; where there are more tasks than cards, one each, in turn
        turns = [range(i, max(i + 1, len(there)), nodes) for i in range(nodes)]
    return [[there[turn % len(there)] for turn in turns_of_one] for turns_of_one in turns]


def run_step(
    submission: Submission,
    step: SubmittedStep,
    script: Path,
    url: str,
    cards: Sequence[Sequence[str]],
) -> None:
    """Run all tasks of a step, and wait for them; an error if one of them fails.

    Args:
        url: of the database, if there is one.
        cards: the GPUs of each task; a task without any sees those of this machine.
    """
    running = [
        _start(submission.log(step, task), script, _environment(task, url, cards[task]))
        for task in range(step.tasks)
    ]
    try:
        codes = [process.wait() for process in running]
    except KeyboardInterrupt:  # or SIGTERM: the tasks save their work
        for process in running:
            process.terminate()
        for process in running:
            process.wait()
        raise
    for task, code in enumerate(codes):
        if code:
            log = submission.log(step, task)
            said = submission.last_error(step, task) or f"it ended with exit code {code}"
            if code == TERMINATED:
                said = "it was stopped; repeat the command to go on"
            elif code < 0 or code >= KILLED:
                said = (
                    "it was killed, or the machine ran out of memory; repeat the command to go "
                    "on where it stopped"
                )
            raise HarnessError(f"task {task} of {step.name} failed: {said}\n  see {log}")


def _start(log: Path, script: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with log.open("ab") as out:
        return subprocess.Popen(["bash", str(script)], env=environment, stdout=out, stderr=out)


def _environment(task: int, url: str, cards: Sequence[str]) -> dict[str, str]:
    variables = {"SLURM_ARRAY_TASK_ID": str(task)}
    if cards:
        variables[VISIBLE] = ",".join(cards)
    if url:
        variables[URL_VARIABLE] = url
    return {**os.environ, **variables}
