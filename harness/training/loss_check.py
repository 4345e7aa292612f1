"""Checks a loss in seconds, before a search spends hours on it.

What each check finds is a sentence. A problem stops a search: its result would say nothing about
the loss that the user had in mind. A warning does not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from harness.config import RunConfig
from harness.errors import HarnessError, spell_code_error
from harness.experiment import Experiment, build_experiment
from harness.loss_file import is_file, unread_names
from harness.model.build import attach, build_model, check_trunk
from harness.system.forks import ending_forks
from harness.system.process_state import contained
from harness.system.progress import Listener, ignore
from harness.system.worker_process import Turn
from harness.system.workers import call_apart
from harness.training.jobs import limits_of

BATCHES = 3
FEATURES = 64  # width of the made-up features that the checks train on
MEASURED_STEPS = 5


@dataclass
class LossCheck:
    """What was found out about a loss.

    Attributes:
        method: name of its row in tables.
        parameters: name -> value that the checks were run with, those of the first trial.
        problems: what a search would fail of, or would silently do wrong.
        warnings: what may be meant as it is.
    """

    method: str
    parameters: dict[str, Any]
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def check_loss(experiment: Experiment) -> LossCheck:
    """Build the loss of an experiment and train it for some steps on made-up features."""
    params = experiment.published_params
    found = LossCheck(experiment.method.name, dict(params))
    loss_file = experiment.config.loss
    if is_file(loss_file):
        found.problems.extend(_unread(Path(loss_file)))
    steps = [_try_step(experiment, seed) for seed in range(BATCHES)]
    # A method with a hook may set its loss up when training begins, which does not happen here.
    doubtful = found.problems if experiment.method.build_hook is None else found.warnings
    doubtful.extend(_judge(steps))
    return found


def check_loss_file(experiment: Experiment) -> None:
    """Refuse to search a user's loss that has a problem."""
    if not is_file(experiment.config.loss):
        return
    found = check_loss(experiment)
    if found.problems:
        lines = [f"{experiment.config.loss} cannot be searched as it is:", *found.problems]
        raise HarnessError("\n  ".join(lines))


def inspect(experiment: Experiment) -> tuple[LossCheck, float | HarnessError]:
    """Check a loss, and measure its step or say why that cannot be done, in its own process."""
    config, method = experiment.config, experiment.method.name
    turn = Turn(method, (config.absolute(), method))
    cpu, threads = torch.device("cpu"), experiment.protocol.threads
    return call_apart(_inspect, turn, cpu, threads, ignore, limits_of(config))


def _inspect(
    given: tuple[RunConfig, str], device: str, listener: Listener
) -> tuple[LossCheck, float | HarnessError]:
    del device, listener  # a check is over before anybody asks
    experiment = build_experiment(*given)
    found = check_loss(experiment)
    try:
        return found, measure_step(experiment)
    except HarnessError as error:
        return found, error


def measure_step(experiment: Experiment) -> float:
    """Median time of a training step on this machine in seconds, without loading of images."""
    width = check_trunk(experiment)
    frozen, crop = experiment.protocol.frozen, experiment.protocol.crop
    params = experiment.published_params
    model = build_model(experiment, params, seed=0, width=width if frozen else None).train()
    loss = _make_loss(experiment, model.head)
    _, labels = _batch(experiment, seed=0)
    if frozen:
        inputs = torch.randn(len(labels), width)
    else:
        channels = experiment.trunk.channels or experiment.listing.channels
        inputs = torch.zeros(len(labels), channels, crop, crop, dtype=torch.uint8)
    optimizer = torch.optim.Adam([*model.parameters(), *loss.parameters()], lr=1e-5)
    times = []
    for _ in range(1 + MEASURED_STEPS):
        started = time.perf_counter()
        optimizer.zero_grad()
        loss(model(inputs), labels).backward()
        optimizer.step()
        times.append(time.perf_counter() - started)
    return sorted(times[1:])[MEASURED_STEPS // 2]


@dataclass(frozen=True)
class _Step:
    """One batch through head and loss.

    Attributes:
        gradient: largest absolute value in the gradient of the head; None if there is none.
        hides_nan: whether a term of the loss was NaN that the reducer left out.
    """

    value: float
    gradient: float | None
    hides_nan: bool


def _try_step(experiment: Experiment, seed: int) -> _Step:
    features, labels = _batch(experiment, seed)
    own = contained(experiment.loss_file)
    with own, ending_forks(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        method, size = experiment.method, experiment.protocol.embedding_size
        params = experiment.published_params
        try:
            head = method.make_head(FEATURES, size, params) or nn.Linear(FEATURES, size)
            loss = _make_loss(experiment, head)
            nans = _watch_for_nan(loss)
            value = loss(head(features), labels)
            if value.requires_grad:
                value.backward()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever the user's code raises
            raise HarnessError(
                f"{method.name} fails in its first step: {spell_code_error(error)}\n"
                f"  it was given {len(labels)} embeddings of {size} numbers, and labels from 0 to "
                f"{_num_classes(experiment) - 1}"
            ) from error
    gradients = [p.grad.abs().max().item() for p in head.parameters() if p.grad is not None]
    return _Step(float(value.detach()), max(gradients, default=None), bool(nans))


def _make_loss(experiment: Experiment, head: nn.Module) -> nn.Module:
    size, params = experiment.protocol.embedding_size, experiment.published_params
    hierarchy = experiment.hierarchy_of(experiment.split.folds[0].train)
    loss = experiment.method.make_loss(_num_classes(experiment), size, params, hierarchy)
    attach(loss, head)
    return loss


def _num_classes(experiment: Experiment) -> int:
    return len(experiment.split.folds[0].train)


def _batch(experiment: Experiment, seed: int) -> tuple[Tensor, Tensor]:
    """Features with a cluster for each class, composed as batches of the protocol are."""
    protocol, generator = experiment.protocol, torch.Generator().manual_seed(seed)
    per_class = protocol.samples_per_class or experiment.method.samples_per_class
    count = max(2, min(protocol.batch_size // per_class, _num_classes(experiment)))
    classes = torch.randperm(_num_classes(experiment), generator=generator)[:count]
    labels = classes.repeat_interleave(per_class)
    centres = torch.randn(_num_classes(experiment), FEATURES, generator=generator)
    noise = torch.randn(len(labels), FEATURES, generator=generator)
    return centres[labels] + noise, labels


def _watch_for_nan(loss: nn.Module) -> list[str]:
    """Notes when a loss of pytorch-metric-learning has a NaN among its terms.

    The default reducer of many such losses averages the terms above zero, and NaN is not above
    zero: such a loss is 0 and looks as if there were nothing left to learn.
    """
    found: list[str] = []
    compute = getattr(loss, "compute_loss", None)
    if compute is None:
        return found

    def watched(*arguments: Any, **named: Any) -> Any:
        terms = compute(*arguments, **named)
        if isinstance(terms, dict):
            for name, term in terms.items():
                value = term.get("losses") if isinstance(term, dict) else None
                if isinstance(value, Tensor) and value.isnan().any():
                    found.append(name)
        return terms

    loss.compute_loss = watched  # type: ignore[assignment]
    return found


def _judge(steps: list[_Step]) -> Iterator[str]:
    values = [step.value for step in steps]
    if any(step.hides_nan for step in steps):
        yield (
            "some terms of the loss are NaN, which the reducer of pytorch-metric-learning leaves "
            "out without a word; look for a division by zero or a logarithm of zero"
        )
        return
    if any(value != value or abs(value) == float("inf") for value in values):
        yield f"the loss is {values[0]} at the parameters of the first trial"
        return
    gradients = [step.gradient for step in steps]
    if all(gradient is None for gradient in gradients):
        yield "no gradient reaches the head: the loss is detached from the embeddings"
    elif any(gradient is not None and gradient != gradient for gradient in gradients):
        yield "the gradient that reaches the head is NaN"
    elif not any(gradients):
        shown = ", ".join(f"{value:.4g}" for value in values)
        yield f"the gradient that reaches the head is zero on {len(steps)} batches; losses: {shown}"


def _unread(path: Path) -> Iterator[str]:
    for name in unread_names(path):
        yield (
            f"it defines {name}, which nothing reads: the harness reads METHODS, or else one loss "
            "class and SPACE. Use it in the class, pass it to a Method in METHODS, or rename it"
        )
