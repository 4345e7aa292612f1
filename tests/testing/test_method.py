"""The contract of a method finds what is wrong with one, and nothing in one that is right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from optuna.distributions import FloatDistribution
from pytorch_metric_learning.losses import ContrastiveLoss
from torch import Tensor, nn

from harness.losses.method import Base, Hook, Method, Preset
from harness.testing import check_method

OWN_LOSS = """
from optuna.distributions import FloatDistribution
from pytorch_metric_learning.losses import ContrastiveLoss

class MyLoss(ContrastiveLoss):
    pass

SPACE = {"pos_margin": FloatDistribution(0, 1), "neg_margin": FloatDistribution(0, 1)}
"""


def build_loss(num_classes: int, embedding_size: int, *, margin: float = 0.5) -> ContrastiveLoss:
    del num_classes, embedding_size
    return ContrastiveLoss(neg_margin=margin)


SOUND = Method(
    name="sound",
    paper="none",
    build_loss=build_loss,
    space=lambda dataset, num_classes: {"margin": FloatDistribution(0.1, 1.0)},
    presets={"mlrc": {"cub": Preset({"margin": 0.5})}},
)


class Flat(ContrastiveLoss):
    """Has no gradient."""

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return 0 * embeddings.sum()


class FirstCounts(ContrastiveLoss):
    """Depends on the order of a batch."""

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return embeddings[0].sum()


class Forgetful(ContrastiveLoss):
    """Counts its steps where no checkpoint sees them."""

    steps = 0

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        self.steps += 1
        return embeddings.square().sum() * self.steps


class Tongue(Hook):
    """Its facts cannot be written."""

    def facts(self) -> dict[str, Any]:
        return {"tensor": torch.zeros(1)}


def building(loss: type[ContrastiveLoss]) -> Method:
    def build(num_classes: int, embedding_size: int, *, margin: float = 0.5) -> ContrastiveLoss:
        del num_classes, embedding_size
        return loss(neg_margin=margin)

    return replace(SOUND, build_loss=build)


def swallows(num_classes: int, embedding_size: int, **params: Any) -> ContrastiveLoss:
    return ContrastiveLoss()


def only_many_classes(
    num_classes: int, embedding_size: int, *, margin: float = 0.5
) -> ContrastiveLoss:
    if num_classes < 10:
        raise ValueError("too few")
    return ContrastiveLoss(neg_margin=margin)


def build_wrapper(
    num_classes: int, embedding_size: int, *, low: float, high: float, weight: float = 1.0
) -> nn.Module:
    """The contrastive loss plus a little of the squared embeddings."""
    del num_classes, embedding_size
    return Wrapper(ContrastiveLoss(low, high), weight)


class Wrapper(nn.Module):
    def __init__(self, base: nn.Module, weight: float) -> None:
        super().__init__()
        self.base, self.weight = base, weight

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return self.base(embeddings, labels) + self.weight * embeddings.square().mean()


def wrapping(
    renamed: dict[str, str] | None = None,
    corner: dict[str, float] | None = None,
    narrower: bool = False,
    **changes: Any,
) -> Method:
    margin = FloatDistribution(-0.2, 1.0 if narrower else 2.0)
    space = {"low": margin, "high": margin, "weight": FloatDistribution(1e-3, 1.0, log=True)}
    names = {"pos_margin": "low", "neg_margin": "high"}
    values: dict[str, Any] = {
        "name": "wrapper",
        "paper": "none",
        "build_loss": build_wrapper,
        "space": lambda dataset, num_classes: space,
        "presets": presets(low=0.0, high=0.5, weight=1.0),
        "base": Base(
            "contrastive",
            names if renamed is None else renamed,
            {"weight": 1e-3} if corner is None else corner,
        ),
    }
    return Method(**{**values, **changes})


def presets(**params: Any) -> dict[str, dict[str, Preset]]:
    return {"mlrc": {"cub": Preset(params)}}


def test_a_sound_method_passes() -> None:
    check_method(SOUND)


def test_a_sound_wrapper_passes() -> None:
    check_method(wrapping())


def test_a_file_can_be_checked(tmp_path: Path) -> None:
    path = tmp_path / "my_loss.py"
    path.write_text(OWN_LOSS)
    check_method(path)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (replace(SOUND, presets=presets()), "has no margin, which is searched"),
        (replace(SOUND, presets=presets(margin=2.0)), "margin=2.0 is outside"),
        (replace(SOUND, presets=presets(margin=1)), "margin=1 is not what is trained with, 1.0"),
        (replace(SOUND, presets=presets(margin=0.5, depth=1)), "no parameter of .* named 'depth'"),
        (
            replace(SOUND, presets={"mlrc": {"cub": Preset({"margin": 0.5}, {"bach_size": 1})}}),
            "preset 'mlrc' of sound on",
        ),
        (replace(SOUND, build_loss=only_many_classes), "for 6 classes at .*too few"),
        (
            replace(SOUND, build_loss=swallows, loss_params={"margin": float}),
            "swallows parameters that it does not know",
        ),
        (building(Flat), "the gradient of sound is zero"),
        (building(FirstCounts), "in another order"),
        (building(Forgetful), "goes on with"),
        (replace(SOUND, build_hook=Tongue), "the hook of sound: TypeError"),
        (replace(SOUND, normalizer="cube"), "no normaliser named 'cube'"),
        (
            replace(SOUND, presets={"mlrc": {"cub": Preset({"margin": 0.5}, tuned_by_us=True)}}),
            "was tuned by us",
        ),
        (wrapping(renamed={}), "searches pos_margin in None .*, its base contrastive pos_margin"),
        (wrapping(narrower=True), "searches low in .*high=1.0.*, its base contrastive pos_margin"),
        (wrapping(samples_per_class=1), "has another samples_per_class than its base contrastive"),
        (wrapping(corner={"weight": 1.0}), "differs from its base contrastive by .*%"),
        (wrapping(corner={"weight": 0.0}), "wrapper has weight=0.0, which is outside of its space"),
    ],
)
def test_what_breaks_the_contract_is_named(method: Method, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_method(method)


def test_old_names_of_fields_are_still_read_and_written() -> None:
    base = Base("contrastive", corner={"weight": 1e-3})
    assert base == Base("contrastive", almost_base_at={"weight": 1e-3})
    assert base.corner == replace(base, corner={"weight": 1e-3}).almost_base_at == {"weight": 1e-3}
    preset = Preset({"margin": 0.5}, under=("mlrc",))
    assert preset == Preset({"margin": 0.5}, belongs_to=("mlrc",))
    assert preset.under == preset.belongs_to == ("mlrc",)
