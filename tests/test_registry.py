"""Names: suggestions, a user's own file, installed packages."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest
from optuna.distributions import FloatDistribution

from harness import registry
from harness.errors import HarnessError

PLAIN = '''
"""A loss of my own."""
from optuna.distributions import FloatDistribution
from pytorch_metric_learning.losses import ContrastiveLoss, ProxyAnchorLoss

class MyLoss({base}):
    pass

SPACE = {space}
'''


@pytest.fixture(autouse=True)
def fresh() -> None:
    registry.items.cache_clear()


@pytest.mark.parametrize(
    ("load", "name", "message"),
    [
        (registry.load_method, "contrastve", "no loss named 'contrastve'. Did you mean 'contrast"),
        (registry.load_dataset, "glyps", "no dataset named 'glyps'. Did you mean 'glyphs'"),
        (registry.load_trunk, "convnt", "no trunk named 'convnt'. Did you mean 'convnet'"),
    ],
)
def test_a_wrong_name_gets_the_nearest_and_the_known_ones(load, name: str, message: str) -> None:
    with pytest.raises(HarnessError, match=message) as raised:
        load(name)
    assert "known: " in str(raised.value)


def test_a_plain_file_with_a_class_and_a_space_is_a_method(tmp_path: Path) -> None:
    path = tmp_path / "my_loss.py"
    space = '{"margin": FloatDistribution(0, 1), "alpha": FloatDistribution(1, 100, log=True)}'
    path.write_text(PLAIN.format(base="ProxyAnchorLoss", space=space))
    method = registry.load_method(str(path))
    assert method.name.startswith("my_loss@")
    assert method.samples_per_class == 1
    assert set(method.space("cub", 10)) == {"margin", "alpha", "loss_lr"}
    assert method.preset("mlrc", "cars").params == pytest.approx(
        {"margin": 0.5, "alpha": 10.0, "loss_lr": 1e-3}
    )
    assert method.build_loss(7, 16, margin=0.3, alpha=9.0).proxies.shape == (7, 16)


def test_an_edited_file_is_another_method(tmp_path: Path) -> None:
    path = tmp_path / "my_loss.py"
    path.write_text(PLAIN.format(base="ContrastiveLoss", space="{}"))
    before = registry.load_method(str(path))
    path.write_text(path.read_text() + "# changed\n")
    assert registry.load_method(str(path)).name != before.name
    assert before.samples_per_class == 4 and dict(before.space("cub", 10)) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def (", "does not import: SyntaxError"),
        ("x = 1", r"must define one pytorch-metric-learning loss class \(it defines 0\)"),
        (PLAIN.format(base="ContrastiveLoss", space='{"mrgin": None}'), "names 'mrgin', which"),
    ],
)
def test_a_file_that_is_no_loss_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "my_loss.py"
    path.write_text(text)
    with pytest.raises(HarnessError, match=message):
        registry.load_method(str(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="no file at"):
        registry.load_method(str(tmp_path / "none.py"))


def test_an_installed_package_registers_through_an_entry_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plugin = ModuleType("plugin_of_somebody")
    base = registry.load_method("triplet")
    plugin.METHODS = (type(base)(**{**vars(base), "name": "plugged"}),)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "plugin_of_somebody", plugin)
    point = EntryPoint("plugged", "plugin_of_somebody", "harness.losses")
    monkeypatch.setattr(
        registry, "entry_points", lambda group: [point] if group == point.group else []
    )
    registry.items.cache_clear()
    assert registry.load_method("plugged").space("cub", 5)["margin"] == FloatDistribution(-0.2, 2)


def test_a_data_set_takes_a_path() -> None:
    dataset, path = registry.load_dataset("folder:/some/where")
    assert (dataset.name, path) == ("folder", Path("/some/where"))


def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="triplet has no preset 'papr'; it has: mlrc"):
        registry.load_method("triplet").preset("papr", "cub")
