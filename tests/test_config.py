"""Config: in and out of YAML, flags and --set, and everything it refuses."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml
from conftest import unit_of

import harness
from harness.config import RunConfig, Settings, load_config, parse_assignments
from harness.errors import HarnessError
from harness.experiment import build_experiment


def test_a_config_survives_yaml(tmp_path: Path) -> None:
    config = RunConfig(loss="ms", trials=7, params={"alpha": 0.1, "num_bins": 3})
    (tmp_path / "c.yaml").write_text(config.to_yaml())
    assert RunConfig().updated(load_config(tmp_path / "c.yaml")) == config


def test_the_settings_of_public_functions_are_the_fields_of_a_config() -> None:
    fields = get_type_hints(RunConfig)
    assert fields.pop("loss") is str
    assert get_type_hints(Settings) == fields


@pytest.mark.parametrize("function", [harness.search, harness.evaluate, harness.train])
def test_a_public_function_takes_every_setting_by_name(function: Callable[..., Any]) -> None:
    (settings,) = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is parameter.VAR_KEYWORD
    ]
    assert settings.annotation == "Unpack[Settings]"


def test_assignments_are_read_as_yaml() -> None:
    values = parse_assignments(["trials=5", "params.lr=1e-3", "params.kind=avg", "device=cpu"])
    # YAML 1.1 takes 1e-3 for text; a parameter is given its type by the method that has it.
    assert values == {"trials": 5, "params": {"lr": "1e-3", "kind": "avg"}, "device": "cpu"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("loss_lr: 1e-3", 0.001),  # text to YAML 1.1
        ("loss_lr: 1", 1.0),
        ("trunk_lr: 1e-3", 0.001),  # in no space
        ("num_bins: 17.0", 17),
    ],
)
def test_a_parameter_has_one_type_however_it_is_written(
    config: RunConfig, tmp_path: Path, text: str, value: float
) -> None:
    (tmp_path / "c.yaml").write_text(f"params: {{{text}}}")
    name = text.partition(":")[0]
    loss = "fastap" if name == "num_bins" else "proxyanchor"
    written = config.updated({**load_config(tmp_path / "c.yaml"), "loss": loss})
    found = build_experiment(written).published_params[name]
    assert found == value and type(found) is type(value)


def test_one_and_one_point_nought_are_the_same_run(config: RunConfig) -> None:
    written = [parse_assignments([f"params.alpha={text}"]) for text in ("32", "32.0", "3.2e1")]
    folders = {unit_of(build_experiment(config.updated(values))).folder for values in written}
    assert len(folders) == 1


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
    with pytest.raises(HarnessError, match="one parameter at a time"):
        parse_assignments(["params=1", "params.margin=2"])
