"""The table in losses/README.md: each loss with what people put around a loss, as tried here.

`HARNESS_TABLE=write pytest tests/losses/test_compatibility.py` writes the table again.
"""

from __future__ import annotations

import copy
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from loss_cases import (
    BATCH,
    CASES,
    DIM,
    EXPORTED,
    REDUCERS,
    Case,
    batches,
    pml_trainer,
)
from pytorch_metric_learning.distances import CosineSimilarity, LpDistance
from pytorch_metric_learning.losses import CrossBatchMemory
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from harness.losses import C1Loss, XBMLoss
from harness.losses.ball_losses import build_pair_loss

README = Path(__file__).parents[2] / "losses" / "README.md"
BEGIN, END = "<!-- compatibility -->\n", "<!-- end -->\n"

OF_BASES = {
    "C1Loss": Case("C1Loss", C1Loss),
    "XBMLoss": Case(
        "XBMLoss",
        lambda distance=None, **more: XBMLoss(
            build_pair_loss("c2", None, distance), DIM, memory_size=64, start=0, **more
        ),
    ),
}
LOSSES = [
    next((each for each in CASES if each.name == one.__name__), None) or OF_BASES[one.__name__]
    for one in EXPORTED
]


def value_of(case: Case, **settings: Any) -> float:
    loss, head = case.make(**settings)
    ((features, labels),) = batches(1)
    value = loss(head(features), labels)
    value.backward()
    assert value.isfinite()
    return value.item()


def miner(case: Case) -> str:
    """Whether the pairs of two anchors alone give another value than all pairs."""
    ((features, labels),) = batches(1)
    loss, head = case.make()
    anchors, others = torch.triu_indices(BATCH, BATCH, 1)
    anchors, others = anchors[anchors < 2], others[anchors < 2]
    same = labels[anchors] == labels[others]
    pairs = (anchors[same], others[same], anchors[~same], others[~same])
    value = loss(head(features), labels, pairs).item()
    assert value != pytest.approx(value_of(case), rel=1e-3)
    return "yes"


def reducer(case: Case) -> str:
    refused = []
    for name, build in REDUCERS.items():
        try:
            value_of(case, reducer=build())
        except ValueError:
            refused.append(name)
    return f"all except {' and '.join(refused)}" if refused else "yes"


def distance(case: Case) -> str:
    taken = []
    for name, other in (("Euclidean", LpDistance()), ("cosine", CosineSimilarity())):
        try:
            value_of(case, distance=other)
        except ValueError:
            continue
        taken.append(name)
    return "yes" if len(taken) == 2 else f"{taken[0]} only"


def ref_emb(case: Case) -> str:
    (features, labels), (others, other_labels) = batches(2)
    loss, head = case.make()
    references = head(others).detach()
    value = loss(head(features), labels, ref_emb=references, ref_labels=other_labels).item()
    assert value != pytest.approx(value_of(case), rel=1e-4)
    return "yes"


def cross_batch_memory(case: Case) -> str:
    loss, head = case.make()
    memory = CrossBatchMemory(loss, DIM, memory_size=4 * BATCH)
    assert all(memory(head(features), labels).isfinite() for features, labels in batches(3))
    return "yes"


def metric_loss_only(case: Case) -> str:
    loss, head = case.make()
    epochs: list[float] = [0.0]
    trainer = pml_trainer(
        loss,
        head,
        end_of_iteration_hook=lambda run: epochs.append(run.losses["total_loss"].item()),
    )
    trainer.train(num_epochs=8)
    assert sum(epochs[-4:]) < sum(epochs[1:5])
    return "yes"


def data_parallel(case: Case) -> str:
    """The gradients are those without it; its parameters, too, where the loss has any."""
    ((features, labels),) = batches(1)
    expected, plain_head = case.make()
    expected(plain_head(features), labels).backward()
    loss, head = case.make()
    wrapped = DistributedDataParallel(loss) if list(loss.parameters()) else loss
    wrapped(DistributedDataParallel(head)(features), labels).backward()
    for one, other in ((loss, expected), (head, plain_head)):
        for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad)
    return "yes"


def distributed_loss_wrapper(case: Case) -> str:
    """With two processes of the same batch, twice the value of the whole: PML multiplies."""
    ((features, labels),) = batches(1)
    loss, head = case.make()
    both = torch.cat([features, features]), torch.cat([labels, labels])
    expected = 2 * loss(head(both[0]), both[1])
    loss, head = case.make()
    with two_processes():
        value = DistributedLossWrapper(loss)(head(features), labels)
    value.backward()
    assert value.item() == pytest.approx(expected.item(), rel=1e-4)
    return "yes"


@contextmanager
def two_processes() -> Iterator[None]:
    """Gathering gives the own tensors once more, as from a process that has the same batch."""

    def gather(tensors: list[Tensor], own: Tensor, **more: Any) -> None:
        for tensor in tensors:
            tensor.copy_(own.detach())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.distributed, "get_world_size", lambda: 2)
        patch.setattr(torch.distributed, "all_gather", gather)
        patch.setattr("harness.losses.drml.get_world_size", lambda: 2)
        yield


def autocast(case: Case) -> str:
    ((features, labels),) = batches(1)
    loss, head = case.make()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(head(features), labels)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(value_of(case), rel=0.05, abs=0.02)
    return "float32"


def float64(case: Case) -> str:
    ((features, labels),) = batches(1)
    loss, head = (part.double() for part in case.make())
    value = loss(head(features.double()), labels)
    assert value.dtype == torch.float64
    assert value.item() == pytest.approx(value_of(case), rel=1e-4)
    return "yes"


def compiled(case: Case) -> str:
    """What `torch.compile` captures is run as it is; that is where a loss would break it."""
    ((features, labels),) = batches(1)
    loss, head = case.make()
    value = torch.compile(loss, backend="eager")(head(features), labels)
    assert value.item() == pytest.approx(value_of(case), rel=1e-4)
    return "yes"


def saved(case: Case) -> str:
    file = io.BytesIO()
    torch.save(case.make(), file)
    file.seek(0)
    return same_after(case, torch.load(file, weights_only=False))


def copied(case: Case) -> str:
    return same_after(case, copy.deepcopy(case.make()))


def same_after(case: Case, made: tuple[Any, nn.Module]) -> str:
    loss, head = made
    ((features, labels),) = batches(1)
    assert loss(head(features), labels).item() == value_of(case)
    return "yes"


TRIED: dict[str, Callable[[Case], str]] = {
    "miner": miner,
    "reducer": reducer,
    "distance": distance,
    "`ref_emb`": ref_emb,
    "`CrossBatchMemory`": cross_batch_memory,
    "`MetricLossOnly`": metric_loss_only,
    "`DistributedDataParallel`": data_parallel,
    "`DistributedLossWrapper`": distributed_loss_wrapper,
    "autocast": autocast,
    "float64": float64,
    "`torch.compile`": compiled,
    "save and load": saved,
    "deepcopy": copied,
}


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process group of this process alone."""
    file = tmp_path_factory.mktemp("group") / "meeting"
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def answer(attempt: Callable[[Case], str], case: Case) -> str:
    """What a cell says; a loss that cannot do something must say so in words."""
    try:
        return attempt(case)
    except (ValueError, NotImplementedError) as refusal:
        assert len(str(refusal).split()) > 3, refusal
        return "refused"
    except Exception as refusal:  # as PML's memory refuses
        assert type(refusal) is Exception and "not supported" in str(refusal), repr(refusal)
        return "refused by PML"


def tables() -> str:
    """One line per thing tried, and four losses in a table."""
    made = []
    for first in range(0, len(LOSSES), 4):
        some = LOSSES[first : first + 4]
        made.append(f"| with | {' | '.join(f'`{case.name}`' for case in some)} |")
        made.append(f"|---|{'---|' * len(some)}")
        for name, attempt in TRIED.items():
            cells = " | ".join(answer(attempt, case) for case in some)
            made.append(f"| {name} | {cells} |")
        made.append("")
    return "\n".join(made) + "\n"


@pytest.mark.slow
def test_the_table_says_what_each_loss_can_be_used_with(
    group: None, capfd: pytest.CaptureFixture[str]
) -> None:
    before, rest = README.read_text().split(BEGIN)
    told, after = rest.split(END)
    found = tables()
    capfd.readouterr()
    if os.environ.get("HARNESS_TABLE") == "write":
        README.write_text(f"{before}{BEGIN}\n{found}{END}{after}")
        return
    assert told.strip() == found.strip()
