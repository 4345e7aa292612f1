"""The trunk of the embedded data set: what it was trained on, and that this helps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

from harness import registry
from harness.data.sources import open_part
from harness.datasets import glyphs
from harness.errors import HarnessError
from harness.experiment import Experiment
from harness.metrics.retrieval import evaluate
from harness.model.build import build_trunk, check_trunk
from harness.trunks.glyphnet import Shipped
from harness.trunks.weights import digest_of_file
from pretraining.glyphnet import ALIKE, CLASSES, characters, likeness


def test_it_was_trained_on_no_class_and_on_nothing_that_looks_like_one() -> None:
    known = characters()
    assert len(known) > 150 and not set(known) & set(CLASSES)
    # Armenian and Hebrew letters, signs and lines that look like O, U, q, o, I, = and J.
    homoglyphs = "ՕՍզօ|═]ן"
    assert not set(known) & set(homoglyphs)
    assert likeness("Օ", ["DejaVuSans"]) == likeness("O", ["DejaVuSans"]) == 1.0
    assert likeness("Ж", list(glyphs.FACES)) == 1.0
    assert 0.1 < likeness("შ", ["DejaVuSans"]) < ALIKE


def test_its_weights_are_those_that_its_name_stands_for() -> None:
    file = Shipped().find()
    assert digest_of_file(file) == Shipped.sha256
    assert registry.load_trunk("glyphnet").label(str(file)) == "glyphnet"


def test_it_finds_characters_it_has_never_seen(make_experiment: Callable[..., Experiment]) -> None:
    def score(weights: str) -> float:
        experiment = make_experiment(trunk="glyphnet", weights=weights)
        images = open_part(experiment, "trainval")
        chosen = experiment.of_classes(images.indices, experiment.split.folds[0].val)
        trunk = build_trunk(experiment, seed=0).eval()
        with torch.no_grad():
            features = normalize(trunk(images.for_evaluation(chosen)))
        labels = torch.from_numpy(experiment.listing.labels[chosen])
        return evaluate(features, labels, metrics=("map_at_r",)).values["map_at_r"]

    assert score("") > 3 * score("none")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"protocol": "mlrc+crop=16"}, "takes images of 17 px or more, got 16"),
        ({"dataset": "folder:{}", "protocol": "mlrc+crop=24+resize=28"}, "takes grey images"),
    ],
)
def test_images_that_it_cannot_take_are_refused(
    make_experiment: Callable[..., Experiment],
    image_folder: Path,
    values: dict[str, str],
    reason: str,
) -> None:
    given = {name: value.format(image_folder) for name, value in values.items()}
    with pytest.raises(HarnessError, match=reason):
        check_trunk(make_experiment(trunk="glyphnet", **given))
