"""Config: in and out of YAML, flags and --set, and everything it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from harness.config import RunConfig, load_config, parse_assignments
from harness.errors import HarnessError


def test_a_config_survives_yaml(tmp_path: Path) -> None:
    config = RunConfig(loss="ms", trials=7, params={"alpha": 0.1, "num_bins": 3})
    (tmp_path / "c.yaml").write_text(config.to_yaml())
    assert RunConfig().updated(load_config(tmp_path / "c.yaml")) == config


def test_assignments_are_read_as_yaml() -> None:
    values = parse_assignments(["trials=5", "params.lr=1e-3", "params.kind=avg", "device=cpu"])
    # YAML 1.1 takes 1e-3 for text; a parameter is given its type by the method that has it.
    assert values == {"trials": 5, "params": {"lr": "1e-3", "kind": "avg"}, "device": "cpu"}


@pytest.mark.parametrize("word", ["on", "off"])
def test_the_cache_is_turned_on_and_off_in_yaml(tmp_path: Path, word: str) -> None:
    (tmp_path / "c.yaml").write_text(f"cache: {word}")
    assert RunConfig().updated(load_config(tmp_path / "c.yaml")).cache == word
    assert RunConfig().updated(parse_assignments([f"cache={word}"])).cache == word


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"losss": "ms"}, "no config key named 'losss'. Did you mean 'loss'"),
        ({"trials": "many"}, r"'trials' takes a whole number, got 'many' \(str\)"),
        ({"trials": True}, "'trials' takes a whole number, got True"),
        ({"loss": 3}, "'loss' takes text, got 3"),
        ({"params": [1]}, "'params' takes a mapping"),
        ({"trials": -1}, "'trials' takes a whole number >= 0, got -1"),
        ({"workers": -2}, "'workers' takes a whole number >= 0, got -2"),
    ],
)
def test_unknown_and_ill_typed_keys_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(HarnessError, match=message):
        RunConfig().updated(values)


@pytest.mark.parametrize(
    ("text", "message"),
    [("a: [1", "is not valid YAML"), ("- 1\n- 2", "must hold `key: value` lines, got a list")],
)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(HarnessError, match=message):
        load_config(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match=r"cannot read config .*none\.yaml"):
        load_config(tmp_path / "none.yaml")


def test_yaml_that_would_run_code_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.dump(Path("x")))
    with pytest.raises(HarnessError, match="is not valid YAML"):
        load_config(path)


def test_an_assignment_without_a_value_is_refused() -> None:
    with pytest.raises(HarnessError, match="--set takes key=value, got 'trials'"):
        parse_assignments(["trials"])
