"""A method is charged with a failure only after the machine has passed its tests.

In each case the machine is damaged in the middle of a search. The search must end with a message
that says what to repair, and count no trial as failed. After the repair, the same command must
reach the scores of a search that was not disturbed.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import FOLDER, study_of, write_images
from PIL import Image

from harness.config import RunConfig
from harness.data import mapped_file
from harness.data.batches import TrainBatches
from harness.data.image_cache import CachedImages, ImageFiles, open_store
from harness.data.sources import open_part
from harness.datasets import folder
from harness.errors import EnvironmentFault, HarnessError, MachineError
from harness.experiment import build_experiment
from harness.records.layout import FAILURE
from harness.searching.loop import search
from harness.searching.trials import index_of
from harness.system.progress import Event, TrialEnded
from harness.training import environment_check, known_good, saved

FROZEN = "frozen+batch_size=8+crop=12+max_steps=4+resize=16+validate_every=2"
train_in_fresh_process = environment_check.train_in_fresh_process  # the fixture replaces it


@pytest.fixture(autouse=True)
def new_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_check, "known_good", environment_check.KnownGoodTraining())


@pytest.fixture
def make_config(tmp_path: Path) -> Callable[..., RunConfig]:
    """Two trials on a folder of pictures; `name` separates one search from another."""
    write_images(tmp_path / "pictures", per_class=20)

    def make(name: str, **values: Any) -> RunConfig:
        return RunConfig(
            loss="proxyanchor",
            dataset=f"folder:{tmp_path / 'pictures'}",
            trunk="convnet",
            trials=2,
            workers=1,
            device="cpu",
            runs_dir=str(tmp_path / name / "runs"),
            cache_dir=str(tmp_path / name / "cache"),
        ).updated(values)

    return make


def scores_of(config: RunConfig) -> list[tuple[int, Any, Any]]:
    return [(index_of(t), t.params, t.values) for t in study_of(build_experiment(config)).counted()]


def search_and_damage(
    config: RunConfig, damage: Callable[[], None], repair: Callable[[], None] = lambda: None
) -> str:
    """Search; damage the machine after the first trial. Returns the message of the end."""

    def listen(event: Event) -> None:
        if isinstance(event, TrialEnded) and event.trial == 1:
            damage()

    with pytest.raises(HarnessError) as end:
        search([config], listen)
    repair()
    (first,) = scores_of(config)
    assert first[0] == 0 and first[2], "the first trial counts, and no other"
    assert not list(Path(config.runs_dir).glob(f"**/{FAILURE}"))
    return str(end.value)


def check_goes_on(config: RunConfig, undisturbed: RunConfig) -> None:
    """The same command finishes the search, with the scores of one that was left alone."""
    (summary,) = search([config])
    assert (summary.trials, summary.failed) == (2, 0)
    search([undisturbed])
    assert scores_of(config) == scores_of(undisturbed)


def cached(config: RunConfig, file: str) -> Path:
    (path,) = Path(config.cache_dir).glob(f"**/{file}")
    return path


def overwrite(path: Path, content: bytes) -> None:
    """Write in the middle of a file, in place."""
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2 - len(content) // 2)
        file.write(content)


@pytest.mark.parametrize("content", [b"\xff" * 20_000, b"\x3f" * 20_000], ids=["nan", "0.747"])
def test_features_that_are_damaged_during_a_search_are_not_charged_to_the_method(
    make_config: Callable[..., RunConfig], content: bytes
) -> None:
    """Not a number fails the training; other numbers would silently change its score."""
    frozen = {"protocol": FROZEN, "weights": "none"}
    config = make_config("damaged", **frozen)
    said = search_and_damage(config, lambda: overwrite(cached(config, "features.npy"), content))
    assert f"{cached(config, 'features.npy')} is damaged between bytes 0 and" in said
    assert "built again when you repeat the command" in said
    check_goes_on(config, make_config("undisturbed", **frozen))


def test_pixels_that_are_damaged_during_a_search_are_not_charged_to_the_method(
    make_config: Callable[..., RunConfig],
) -> None:
    """Their cache is too large to be compared with its checksums whenever it is opened."""
    config = make_config("damaged", protocol=FOLDER)
    said = search_and_damage(config, lambda: overwrite(cached(config, "pixels.u8"), b"\xff" * 9999))
    assert "pixels.u8 is damaged between bytes" in said
    check_goes_on(config, make_config("undisturbed", protocol=FOLDER))


def test_the_message_says_where_a_file_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_file, "BLOCK_BYTES", 100)
    path = tmp_path / "data"
    with open(path, "wb") as opened:
        writer = mapped_file.ChecksummingWriter(opened)
        for size in (1, 250, 0, 99, 200, 7):  # across the bounds of blocks
            writer.write(os.urandom(size))
        writer.write_checksums(tmp_path)
    file = mapped_file.MappedFile.describe(path, tmp_path / "meta.json")
    file.check()
    content = bytearray(path.read_bytes())
    content[333] ^= 1
    content[556] ^= 1
    path.write_bytes(content)
    with pytest.raises(EnvironmentFault, match="between bytes 300 and 557: 2 of 6 blocks"):
        file.check()
    os.truncate(path, 99)
    with pytest.raises(EnvironmentFault, match="has 99 bytes instead of 557"):
        file.check()
    path.rename(tmp_path / "elsewhere")
    file.check()  # a cache may be deleted at any time: what is mapped remains
    path.write_bytes(content)
    with pytest.raises(EnvironmentFault, match="was replaced by another process"):
        file.check()


@pytest.mark.parametrize("kind", ["features", "pixels"])
def test_a_cache_without_block_checksums_gets_them_when_it_is_opened(
    make_config: Callable[..., RunConfig], kind: str
) -> None:
    protocol = FROZEN if kind == "features" else FOLDER
    config = make_config("old", protocol=protocol, weights="none")
    open_part(build_experiment(config), "trainval")
    file = "features.npy" if kind == "features" else "pixels.u8"
    place = cached(config, file).parent
    written = (place / mapped_file.CHECKSUMS).read_bytes()
    (place / mapped_file.CHECKSUMS).unlink()
    (place / "digests.npy").unlink(missing_ok=True)
    time = cached(config, file).stat().st_mtime_ns
    source = open_part(build_experiment(config), "trainval")
    assert cached(config, file).stat().st_mtime_ns == time, "it was not built again"
    assert (place / mapped_file.CHECKSUMS).read_bytes() == written
    source.check_stored()
    overwrite(cached(config, file), b"\xff")
    with pytest.raises(EnvironmentFault, match="is damaged"):
        source.check_stored()


def test_images_that_are_replaced_without_a_cache_are_not_charged_to_the_method(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = make_config("replaced", protocol=FOLDER, cache="off")
    pictures, kept = tmp_path / "pictures", tmp_path / "kept"
    shutil.copytree(pictures, kept)

    def replace_all() -> None:
        for path in pictures.glob("*/*.png"):
            Image.new("RGB", (16, 20)).save(path)

    said = search_and_damage(
        config, replace_all, lambda: shutil.copytree(kept, pictures, dirs_exist_ok=True)
    )
    assert "changed while it was in use" in said and "restore the images" in said
    check_goes_on(config, make_config("undisturbed", protocol=FOLDER))


def test_an_image_that_disappeared_is_not_charged_to_the_method(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = make_config("gone", protocol=FOLDER, cache="off")
    pictures, kept = tmp_path / "pictures", tmp_path / "kept"
    said = search_and_damage(config, lambda: pictures.rename(kept), lambda: kept.rename(pictures))
    assert "cannot read image 'class_" in said and "restore the images" in said
    check_goes_on(config, make_config("undisturbed", protocol=FOLDER))


def test_images_without_digests_are_compared_with_the_fingerprint_of_all(
    image_folder: Path, tmp_path: Path
) -> None:
    """As in a cache that was written before there were digests."""
    listing = folder.list_images(image_folder)
    open_store(listing, range(80), 16, tmp_path / "cache", decoded=False)
    (digests,) = (tmp_path / "cache").glob("*/digests.npy")
    digests.unlink()
    store = open_store(listing, range(80), 16, tmp_path / "cache", decoded=False)
    assert isinstance(store, ImageFiles) and store.digests is None
    store.check_stored()
    shutil.copy(image_folder / "class_00/0.png", image_folder / "class_01/1.png")
    with pytest.raises(EnvironmentFault, match="not those that the work began with"):
        store.check_stored()


def test_originals_are_compared_whenever_they_are_read(image_folder: Path, tmp_path: Path) -> None:
    listing = folder.list_images(image_folder)
    store = open_store(listing, range(80), 16, tmp_path / "cache")
    assert isinstance(store, CachedImages)
    originals = ImageFiles(
        store.fingerprint, store.indices, listing, short_side=None, digests=store.digests
    )
    originals.image(6)
    shutil.copy(image_folder / "class_00/0.png", image_folder / "class_01/1.png")
    with pytest.raises(MachineError, match=r"image 'class_01/1.png' changed"):
        originals.image(6)


def test_files_that_may_not_grow_are_not_charged_to_the_method(
    make_config: Callable[..., RunConfig],
) -> None:
    """The system answers EFBIG, as some file systems do for a full quota."""
    config = make_config("limited", protocol=FOLDER)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        said = search_and_damage(
            config, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "checkpoint.pt: File too large" in said and "make room" in said
    check_goes_on(config, make_config("undisturbed", protocol=FOLDER))


@pytest.mark.parametrize("name", ["ENOSPC", "EDQUOT", "EFBIG"])
def test_a_full_disk_is_not_charged_to_the_method(
    make_config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    config = make_config("full", protocol=FOLDER)
    number = getattr(errno, name)

    def full(path: Path) -> Any:
        raise OSError(number, os.strerror(number), str(path))

    with monkeypatch.context() as patched:
        said = search_and_damage(config, lambda: patched.setattr(saved, "replacing", full))
    assert os.strerror(number) in said and "make room" in said
    check_goes_on(config, make_config("undisturbed", protocol=FOLDER))


def fail_second_trial(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> Callable[[], None]:
    def failing(self: TrainBatches, step: int) -> Any:
        raise error

    return lambda: monkeypatch.setattr(TrainBatches, "__getitem__", failing)


OWN = ZeroDivisionError("division by zero")
TWICE = OSError(errno.EIO, "Input/output error", "/data/a.jpg")


@pytest.mark.parametrize("error", [OWN, TWICE], ids=["own", "disk"])
@pytest.mark.parametrize("test", ["disk", "memory", "training"])
def test_a_machine_that_fails_a_test_is_to_blame(
    make_config: Callable[..., RunConfig],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    test: str,
) -> None:
    config = make_config("broken", protocol=FOLDER)
    with monkeypatch.context() as patched:
        fail = fail_second_trial(patched, error)

        def damage() -> None:
            fail()
            if test == "disk":
                usage = shutil.disk_usage("/")._replace(free=1_000_000)
                patched.setattr(shutil, "disk_usage", lambda path: usage)
            elif test == "memory":
                patched.setattr(environment_check, "available_memory", lambda: 5_000_000)
            else:
                patched.setattr(
                    environment_check, "train_in_fresh_process", lambda device: "it is nan"
                )

        said = search_and_damage(config, damage)
    expected = {
        "disk": "only 1 MB are free for",
        "memory": "only 5 MB of memory are free",
        "training": "a short training that is known to work fails on cpu as well: it is nan",
    }
    assert expected[test] in said
    assert "proxyanchor is not charged with its failure" in said
    check_goes_on(config, make_config("undisturbed", protocol=FOLDER))


def test_a_method_that_fails_on_a_healthy_machine_is_charged(
    make_config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config("own", protocol=FOLDER)
    fail_second_trial(monkeypatch, OWN)()
    with pytest.raises(HarnessError, match="no trial of proxyanchor completed"):
        search([config])
    failed = study_of(build_experiment(config)).counted()
    assert [trial.user_attrs["reason"] for trial in failed] == [
        "ZeroDivisionError: division by zero"
    ] * 2


def test_the_known_good_training_runs_once_for_each_cause_and_every_ten_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, trained = [0.0], []

    def train(device: str) -> str:
        trained.append((clock[0], device))
        return ""

    monkeypatch.setattr(environment_check.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(environment_check, "train_in_fresh_process", train)
    training = environment_check.KnownGoodTraining()
    for clock[0], cause in [
        (0.0, "the loss became nan between steps 0 and 50"),
        (100.0, "ValueError: margin"),  # too early
        (700.0, "the loss became nan between steps 50 and 100"),  # known
        (700.0, "ValueError: margin"),
        (9999.0, "ValueError: margin"),
    ]:
        training.check("cpu", cause)
    assert trained == [(0.0, "cpu"), (700.0, "cpu")]


@pytest.mark.slow
def test_the_known_good_training_works_on_this_machine_and_says_why_it_does_not() -> None:
    assert train_in_fresh_process("cpu") == ""
    assert "no device named 'cpuu'" in train_in_fresh_process("cpuu")


@pytest.mark.slow
def test_a_known_good_training_that_learns_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_good, "LEAST_SCORE", 0.99)
    with pytest.raises(EnvironmentFault, match="at least 99%"):
        known_good.train_known_good("cpu")
