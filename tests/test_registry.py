"""Names: suggestions, a user's own file, installed packages."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

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
        (
            PLAIN.format(base="ContrastiveLoss", space='{"mrgin": FloatDistribution(0, 1)}'),
            "names 'mrgin', which",
        ),
    ],
)
def test_a_file_that_is_no_loss_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "my_loss.py"
    path.write_text(text)
    with pytest.raises(HarnessError, match=message):
        registry.load_method(str(path))


TWO_METHODS = """
from dataclasses import replace
from harness.registry import load_method

METHODS = tuple(replace(load_method("triplet"), name=name) for name in ("one", "other"))
"""


def test_a_file_with_two_methods_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "both.py"
    path.write_text(TWO_METHODS)
    with pytest.raises(HarnessError, match="must hold one method, got 2; give each a file"):
        registry.load_method(str(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="no file at"):
        registry.load_method(str(tmp_path / "none.py"))


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A package of somebody else's, with one thing of a category."""

    def run(category: str, item: Any) -> None:
        group, export = registry.CATEGORIES[category].group, registry.CATEGORIES[category].export
        plugin = ModuleType("plugin_of_somebody")
        setattr(plugin, export, (item,))
        monkeypatch.setitem(sys.modules, plugin.__name__, plugin)
        point = EntryPoint("plugged", plugin.__name__, group)
        monkeypatch.setattr(
            registry, "entry_points", lambda group: [point] if group == point.group else []
        )
        registry.items.cache_clear()

    return run


def test_an_installed_package_registers_through_an_entry_point(
    install: Callable[..., None],
) -> None:
    install("loss", replace(registry.load_method("triplet"), name="plugged"))
    assert registry.load_method("plugged").space("cub", 5)["margin"] == FloatDistribution(-0.2, 2)


@pytest.mark.parametrize("category", list(registry.CATEGORIES))
def test_two_of_one_name_are_refused_with_where_they_are(
    install: Callable[..., None], category: str
) -> None:
    name, item = next(iter(registry.items(category).items()))
    install(category, item)
    with pytest.raises(HarnessError, match=f"two of {category} '{re.escape(name)}'") as raised:
        registry.names(category)
    assert "and in plugin_of_somebody; rename one" in str(raised.value)


def test_an_alias_that_is_the_name_of_another_is_refused(install: Callable[..., None]) -> None:
    method = replace(registry.load_method("triplet"), name="plugged", aliases=("proxyanchor",))
    install("loss", method)
    with pytest.raises(HarnessError, match="two of loss 'proxyanchor'"):
        registry.load_method("ms")


def test_a_data_set_takes_a_path() -> None:
    dataset, path = registry.load_dataset("folder:/some/where")
    assert (dataset.name, path) == ("folder", Path("/some/where"))


def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no preset of triplet named 'papr'"):
        registry.load_method("triplet").preset("papr", "cub")
