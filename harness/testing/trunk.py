"""The contract of a trunk: what may be handed to `--trunk`."""

from __future__ import annotations

import re
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from harness import registry
from harness.testing.expect import expect, expect_no_error
from harness.testing.exported import items_of
from harness.trunks.trunk import RANDOM, Trunk

SIDE = 96  # pixels, if the trunk does not say on which its weights were trained
IMAGES = 2


def check_trunk(trunk: Trunk | str | Path) -> None:
    """Raise AssertionError unless a trunk keeps its contract; its own weights are not loaded.

    Args:
        trunk: itself, its name, or the path of a file that exports TRUNKS.
    """
    for one in items_of(trunk, "trunk", Trunk, registry.load_trunk):
        built = Built(one)
        for check in TRUNK_CHECKS:
            check(built)


@dataclass(frozen=True)
class Built:
    """A trunk and its network with random weights."""

    trunk: Trunk

    @property
    def name(self) -> str:
        return self.trunk.name

    @cached_property
    def network(self) -> nn.Module:
        return self.build()

    def build(self, weights: str = RANDOM) -> nn.Module:
        with torch.random.fork_rng(devices=[]), expect_no_error(f"building {self.name}"):
            torch.manual_seed(0)
            return self.trunk.build(self.trunk.channels or 1, weights)

    @cached_property
    def images(self) -> Tensor:
        """Images of noise, as the trunk's pixels come: uint8."""
        own = self.trunk.own_side or SIDE
        side = SIDE if self._takes(SIDE) and not self._takes(own) else own
        with expect_no_error(f"check_side({side}) of {self.name}"):
            self.trunk.check_side(side)
        shape = (IMAGES, self.trunk.channels or 1, side, side)
        generator = torch.Generator().manual_seed(0)
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)

    def _takes(self, side: int) -> bool:
        try:
            self.trunk.check_side(side)
        except ValueError:
            return False
        return True

    def features(self, network: nn.Module, images: Tensor, device: str = "") -> Tensor:
        """What a network gives for images.

        Args:
            device: of tensors that are created without a device; the usual one unless given.
        """
        with expect_no_error(f"features of {len(images)} images by {self.name}"):
            normalize = self.trunk.normalize
            with torch.device(device) if device else nullcontext():
                found: Tensor = network(normalize(images))
        return found


def name_can_be_typed_and_be_part_of_a_folder(built: Built) -> None:
    """Tables are in DATASET-TRUNK. A family has a colon: timm:resnet18."""
    expect(
        re.fullmatch(r"[a-z0-9_]+(:[\w.:-]+)?", built.name) is not None,
        f"the name '{built.name}' must consist of a-z, 0-9 and _",
    )
    expect(bool(built.trunk.summary), f"{built.name} has no summary, which `harness list` shows")


def pixels_can_be_normalised(built: Built) -> None:
    """One mean and one standard deviation for all channels, or one for each."""
    trunk = built.trunk
    for field, values in (("mean", trunk.mean), ("std", trunk.std)):
        expect(
            len(values) in (1, trunk.channels),
            f"{field} of {built.name} must have 1 value or one per channel, got {len(values)}",
        )
    expect(min(*trunk.std, trunk.scale) > 0, f"std and scale of {built.name} must be positive")


def features_are_a_map(built: Built) -> None:
    """(n, out_features, height, width), made on the device of the images."""
    expect(hasattr(built.network, "out_features"), f"{built.name} has no out_features")
    built.network.train()
    # A tensor created without device= would not mix with the images.
    features = built.features(built.network, built.images, device="meta")
    wanted = (IMAGES, built.network.out_features)
    expect(
        features.dim() == 4 and features.shape[:2] == wanted,
        f"{built.name} must give (n, out_features, height, width), here {wanted}, and gives "
        f"{tuple(features.shape)}",
    )
    with expect_no_error(f"the gradient of {built.name}"):
        features.square().mean().backward()
    first = next(built.network.parameters()).grad
    expect(
        first is not None and bool(first.isfinite().all()),
        f"the first parameter of {built.name} gets no finite gradient",
    )


def an_image_is_encoded_alike_in_every_batch(built: Built) -> None:
    """At evaluation the other images of a batch do not count."""
    built.network.eval()
    with torch.no_grad():
        together = built.features(built.network, built.images)
        alone = built.features(built.network, built.images[:1])
    close = 1e-3 * float(alone.abs().max())  # sums in another order differ a little
    expect(
        torch.allclose(together[:1], alone, rtol=0, atol=close),
        f"{built.name} gives an image other features beside another image",
    )


def random_weights_come_from_the_generator_of_torch(built: Built) -> None:
    """Else a run could not be repeated."""
    again = built.build().state_dict()
    for name, parameter in built.network.named_parameters():
        expect(
            torch.equal(parameter, again[name]),
            f"{name} of {built.name} differs between two builds with the same seed",
        )


def weights_of_another_network_are_refused(built: Built) -> None:
    """`--weights FILE` takes what fits the network and nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "weights.pt")
        torch.save({"unknown": torch.zeros(1)}, file)
        try:
            built.trunk.build(built.trunk.channels or 1, str(file))
        except ValueError:
            return
        raise AssertionError(f"{built.name} takes weights of another network")


TRUNK_CHECKS = (
    name_can_be_typed_and_be_part_of_a_folder,
    pixels_can_be_normalised,
    features_are_a_map,
    an_image_is_encoded_alike_in_every_batch,
    random_weights_come_from_the_generator_of_torch,
    weights_of_another_network_are_refused,
)
