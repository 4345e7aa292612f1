"""Caches and checkpoints that somebody damaged: built anew, refused, or of the same content."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from ends import cases
from hypothesis import given
from hypothesis import strategies as st
from mutations import damaged_bytes, damaged_json, damaged_tree

from harness.data.features import Features, open_features
from harness.data.image_cache import open_store
from harness.data.loading import Loader
from harness.datasets import folder
from harness.training.saved import load


def _damage(data: st.DataObject, folder: Path, *names: str) -> None:
    path = folder / data.draw(st.sampled_from(names))
    damage = damaged_json if path.suffix == ".json" else damaged_bytes
    path.write_bytes(data.draw(damage(path.read_bytes())))


@cases(0.06)
@given(data=st.data())
def test_damaged_images_in_the_cache_are_decoded_again(
    data: st.DataObject, pictures: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    listing, cache = folder.list_images(pictures), tmp_path_factory.getbasetemp() / "fuzz_pixels"
    shutil.rmtree(cache, ignore_errors=True)
    intact = open_store(listing, range(4), 8, cache, on_progress=lambda done, total: None)
    (place,) = (path for path in cache.iterdir() if path.is_dir())
    expected = [intact.image(i).copy() for i in range(4)]
    _damage(data, place, "meta.json", "index.npy")
    again = open_store(listing, range(4), 8, cache, allow_broken=True)
    for i in again.indices:
        assert np.array_equal(again.image(i), expected[i])


@cases(0.06)
@given(data=st.data())
def test_damaged_features_in_the_cache_are_computed_again(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.getbasetemp() / "fuzz_features"
    shutil.rmtree(place, ignore_errors=True)
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    source = Features("f1", [0, 1, 2, 3], values)

    def opened() -> Features:
        return open_features(
            place, lambda: source, lambda: (lambda block: block, Loader(torch.device("cpu")))
        )

    opened()
    _damage(data, place, "meta.json", "indices.npy", "features.npy")
    again = opened()
    assert np.array_equal(again.values, values) or again.fingerprint != "f1"
    assert again.indices == source.indices


STATE = {
    "model": {"weight": torch.ones(2, 2), "bias": torch.zeros(2)},
    "progress": {"step": 4, "best_score": 0.5, "history": [[2, 0.1, 0.2]]},
    "numpy_rng": {"state": {"key": np.arange(4, dtype=np.uint32), "pos": 3}},
}


def _saved(state: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


class Hostile:
    """Would run a function when it is unpickled."""

    def __reduce__(self) -> object:
        return print, ("it ran",)

    def __deepcopy__(self, known: object) -> Hostile:
        return self  # by which it would run here


@cases(0.08)
@given(
    content=st.one_of(
        damaged_bytes(_saved(STATE)),
        damaged_tree(STATE, [Hostile(), object, np.float64(1), {1, 2}, "x", None]).map(_saved),
    )
)
def test_a_damaged_checkpoint_is_refused_or_holds_plain_values(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(content)
    try:
        load(path, torch.device("cpu"))
    except ValueError as refused:
        assert str(refused).strip()
    assert "it ran" not in capsys.readouterr().out
    assert path.read_bytes() == content
