"""The contract of a protocol: what may be handed to `--protocol`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from harness import registry
from harness.metrics.names import METRICS
from harness.protocols.fields import changeable_fields
from harness.protocols.protocol import SEPARATOR, EvaluationProtocol, check, parse_changes
from harness.protocols.splits import applicable_folds, split_classes
from harness.testing.expect import expect, expect_no_error
from harness.testing.exported import items_of

# Of a whole data set: the fewest that can be split, an odd number, Cars, CUB.
CLASS_COUNTS = (16, 17, 196, 200)


def check_protocol(protocol: EvaluationProtocol | str | Path) -> None:
    """Raise AssertionError unless a protocol keeps its contract.

    Args:
        protocol: itself, its name, or the path of a file that exports PROTOCOLS.
    """
    for one in items_of(
        protocol, "protocol", EvaluationProtocol, partial(registry.load_item, "protocol")
    ):
        for check_one in PROTOCOL_CHECKS:
            check_one(one)


def name_can_be_typed_and_be_a_folder(protocol: EvaluationProtocol) -> None:
    """Tables lie in a folder of its name; behind a + stand changes."""
    expect(
        re.fullmatch(r"[a-z0-9_-]+", protocol.name) is not None,
        f"the name '{protocol.name}' must consist of a-z, 0-9, _ and -",
    )
    expect(bool(protocol.summary), f"{protocol.name} has no summary, which `harness list` shows")


def data_sets_of_their_own_exist(protocol: EvaluationProtocol) -> None:
    """Settings under a mistyped name would never be used."""
    known = registry.names("dataset")
    allowed = {*changeable_fields(type(protocol)), "trials", "reproductions"}
    for dataset, settings in protocol.datasets.items():
        where = f"{protocol.name} has settings for '{dataset}'"
        expect(dataset in known, f"{where}; known are {', '.join(known)}")
        wrong = sorted(set(settings) - allowed)
        expect(not wrong, f"{where}: {wrong[:1]} is no field that may differ there")


def settles_on_every_data_set(protocol: EvaluationProtocol) -> None:
    """With values that a run can use, and under its own name."""
    for where, settled in _settled(protocol):
        with expect_no_error(where):
            check(settled)
        expect(settled.name == protocol.name, f"{where} is called {settled.name}")
        expect(
            settled.metric in METRICS,
            f"{where} selects by '{settled.metric}'; known are {', '.join(METRICS)}",
        )


def values_survive_their_spelling(protocol: EvaluationProtocol) -> None:
    """What `NAME+field=value` says is what the field holds, of the same type: 1 is not 1.0.

    Else the same settings would have two identities.
    """
    for where, settled in _settled(protocol):
        plain = type(protocol)("plain")
        for name in sorted(changeable_fields(type(protocol))):
            value = getattr(settled, name)
            spelled = plain.for_dataset("", {name: value}).name
            changes = spelled.removeprefix("plain").removeprefix(SEPARATOR)
            read = parse_changes(changes, type(protocol)) if changes else vars(plain)
            expect(
                repr(read[name]) == repr(value),
                f"{where}: {name}={value!r} is read back as {read[name]!r}",
            )


def identity_can_be_written(protocol: EvaluationProtocol) -> None:
    """As JSON, into every record."""
    for where, settled in _settled(protocol):
        with expect_no_error(where):
            json.dumps(settled.identity())


def trunk_takes_its_images(protocol: EvaluationProtocol) -> None:
    """The trunk is known, and the crop is of a size that it can take."""
    for where, settled in _settled(protocol):
        with expect_no_error(where):
            registry.load_trunk(settled.trunk).check_side(settled.crop)


def folds_share_no_class(protocol: EvaluationProtocol) -> None:
    """Whatever the number of classes: no class has two roles, and all are tested or trained on."""
    for where, settled in _settled(protocol):
        for count in CLASS_COUNTS:
            with expect_no_error(f"{where}, {count} classes"):
                scheme = applicable_folds(settled.folds, count, given=False)
                split = split_classes(count, scheme)
            expect(
                sorted((*split.trainval, *split.test)) == list(range(count)),
                f"{where}: of {count} classes some are neither for training nor for the test",
            )


PROTOCOL_CHECKS = (
    name_can_be_typed_and_be_a_folder,
    data_sets_of_their_own_exist,
    settles_on_every_data_set,
    values_survive_their_spelling,
    identity_can_be_written,
    trunk_takes_its_images,
    folds_share_no_class,
)


def _settled(protocol: EvaluationProtocol) -> Iterator[tuple[str, EvaluationProtocol]]:
    """On every data set, with how to call it."""
    for dataset in registry.names("dataset"):
        yield f"{protocol.name} on {dataset}", protocol.for_dataset(dataset)
